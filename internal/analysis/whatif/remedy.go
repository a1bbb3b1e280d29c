package whatif

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// forNothing is how many times as fast is as good as not at all.
const forNothing = 1e6

// hasLess reports whether a cause is work of the CPU, or a wait for somebody outside, that can be moved off the path
// and done less as well: these are two remedies.
func hasLess(id cause.ID) bool {
	switch id {
	case cause.PythonWork, cause.NativeWork, cause.Preprocessing, cause.Serialization, cause.Disk, cause.Network:
		return true
	}
	return false
}

// editOf returns the edit that a remedy is.
func editOf(r cause.Remedy) Edit {
	if r.Merge {
		return Edit{Verb: Merge, Pattern: r.Cause.String(), Cause: r.Cause}
	}
	if r.Less {
		return Edit{Verb: Faster, Pattern: r.Cause.String(), Cause: r.Cause, Factor: forNothing}
	}
	return Edit{Verb: Without, Pattern: r.Cause.String(), Cause: r.Cause}
}

// Together predicts remedies that are all made, and reports whether each is known and changes anything.
func (s *Study) Together(remedies ...cause.Remedy) (Prediction, bool) {
	var edits []Edit
	for _, r := range remedies {
		if r.Merge {
			edits = append(edits, editOf(r))
			continue
		}
		if !HasRemedy(r.Cause) || r.Less && !hasLess(r.Cause) {
			return Prediction{}, false
		}
		edits = append(edits, editOf(r))
	}
	if !s.Any() || len(edits) == 0 {
		return Prediction{}, false
	}
	var p Prediction
	if len(remedies) == 1 && remedies[0].Cause == cause.Worker && !remedies[0].Merge {
		p = s.enough()
	} else {
		p = s.Predict(edits...)
	}
	// A synchronization that nobody waits for any more may have taken no time of its own.
	return p, p.Touched > 0 || p.Speedup != 1
}

// Of predicts the remedy of a cause, and reports whether there is one.
func (s *Study) Of(id cause.ID) (Prediction, bool) {
	if !HasRemedy(id) || !s.Any() {
		return Prediction{}, false
	}
	if id == cause.Worker {
		return s.enough(), true
	}
	return s.Predict(editOf(cause.Remedy{Cause: id})), true
}

// uncovered is how many times as fast a second remedy makes the program at least, for it to be what limits the program
// once a first one is made.
const uncovered = 1.1

// Next returns the cause whose remedy brings most once another remedy is made: what limits the program then. It may
// bring little as long as the first cause hides it. False where none brings much.
func (s *Study) Next(first cause.Remedy) (cause.ID, bool) {
	if !s.Any() || !HasRemedy(first.Cause) {
		return 0, false
	}
	best, most := cause.Count, uncovered*s.expected(editOf(first))
	for id := range cause.Count {
		if id == first.Cause || !HasRemedy(id) {
			continue
		}
		if by := s.expected(editOf(first), editOf(cause.Remedy{Cause: id})); by >= most {
			best, most = id, by
		}
	}
	return best, best != cause.Count
}

// mostWorkers bounds how many workers are tried.
const mostWorkers = 64

// sufficient is the share of what any number of workers brings from which on there are enough.
const sufficient = 0.97

// enough predicts as many workers as make a difference, and says how many times as many as there are these are. Where
// none makes any, it says what that comes from: those that there are may have work all the time already.
func (s *Study) enough() Prediction {
	worker := editOf(cause.Remedy{Cause: cause.Worker})
	best := s.Predict(worker)
	for worker.Workers = 1; worker.Workers <= mostWorkers; worker.Workers++ {
		if s.expected(worker) >= sufficient*best.Speedup {
			p := s.Predict(worker)
			if p.Empty() {
				return best
			}
			p.Workers = worker.Workers
			if p.Workers > 1 {
				worker.Workers = 1
				p.Present = s.expected(worker)
			}
			return p
		}
	}
	return best
}

// expected is the speed-up of a prediction without its interval.
func (s *Study) expected(edits ...Edit) float64 {
	h := usual()
	return s.speedup(max(s.with(edits, h), s.floor(edits, h).ns, s.contended(edits, h)))
}

// sharesWork reports whether an edit lets several threads share what one did.
func sharesWork(e Edit) bool { return e.Verb == Without && e.Cause == cause.Worker }

// unshared are edits without those that share work: it is no less for that.
func unshared(edits []Edit) []Edit { return slices.DeleteFunc(slices.Clone(edits), sharesWork) }
