package whatif

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// Prediction is how much faster the program would be. Low and High are to hold the true speed-up 9 times in 10: see
// interval.
type Prediction struct {
	cause.Gain
	Before uint64 `json:"before_ns"` // how long the work takes that was replayed, without what recording it cost
	After  uint64 `json:"after_ns"`
	// time that the plan changes, in all threads and streams: not what it gains
	Touched uint64  `json:"touched_ns"`
	Doubt   float64 `json:"doubt"` // share of Touched whose cause is guessed
	// patterns of the plan that nothing of the recording matches; of a plan of one edit see Empty
	Unmatched []string `json:"unmatched,omitempty"`
}

// Empty reports whether nothing of the recording is what the plan is about, so that it says nothing of the program.
func (p *Prediction) Empty() bool { return p.Touched == 0 && p.Speedup == 1 }

// Predict replays with all edits at once.
func (s *Study) Predict(edits ...Edit) Prediction {
	p := Prediction{Gain: cause.Gain{Speedup: 1, Low: 1, High: 1}, Before: s.alone}
	for i, e := range edits {
		if i > 0 {
			p.Plan += ", "
		}
		p.Plan += e.String()
	}
	if !s.Any() {
		return p
	}
	h := usual()
	h.kernels, _ = s.lengthening(s.with(edits, h))
	p.After = s.with(edits, h)
	p.Speedup = s.speedup(p.After)
	s.interval(&p, edits, h)
	s.bounded(&p, edits, h)
	s.doubtThreads(&p, edits)
	s.inThread(&p, edits, h)
	s.reweighed(&p, edits, h)
	for _, e := range edits {
		if len(edits) > 1 && !s.matches(e) {
			p.Unmatched = append(p.Unmatched, e.Pattern)
		}
	}
	if slices.ContainsFunc(edits, sharesWork) && s.cpus > 0 {
		p.CPUsNow, p.FreeCPUs = s.workerCPUs(), s.free
		p.CPUs = p.CPUsNow * p.Speedup
	}
	return p
}

// matches reports whether an edit changes anything by itself, or names anything.
func (s *Study) matches(e Edit) bool {
	return slices.ContainsFunc(s.parts, func(p part) bool {
		plan := p.graph.Unchanged()
		s.apply(e, usual(), p.graph, plan)
		for i := range plan.Changes {
			if s.changed(&p.graph.Whats[i], &plan.Changes[i], []Edit{e}) {
				return true
			}
		}
		return false
	})
}

// ofThreads is why workers of one process may share less work than they are many.
const ofThreads = "threads of one process share its memory and, in Python, its lock: more of them may bring nothing"

// doubtThreads widens a prediction of more workers that are threads of the process that launches, down to what those
// bring that there are. Four threads that unpack 8 MB each with zlib were 1.7 times as fast as one, and not four times
// (the program `handlers` of test/gpu, H100).
func (s *Study) doubtThreads(p *Prediction, edits []Edit) {
	i := slices.IndexFunc(edits, func(e Edit) bool { return sharesWork(e) && e.Workers != 1 })
	if i < 0 || !s.awaitsOwnThreads() {
		return
	}
	present := slices.Clone(edits)
	present[i].Workers = 1
	if low := s.expected(present...); low < p.Low {
		p.Low, p.Because = low, ofThreads
	}
}

// awaitsOwnThreads reports whether threads that launch wait for others of their own process that compute, and for those
// most.
func (s *Study) awaitsOwnThreads() bool {
	processes := map[uint32]bool{}
	for th := range s.launches {
		processes[th.pid] = true
	}
	var own, others float64
	for _, p := range s.parts {
		computed := map[thread]float64{} // less what it waited for things outside
		for i := range p.graph.Whats {
			w := &p.graph.Whats[i]
			switch th := (thread{w.PID, w.TID}); w.Kind {
			case replay.Run:
				computed[th] += float64(p.graph.Times[i].Own)
			case replay.External:
				computed[th] -= float64(p.graph.Times[i].Own)
			}
		}
		for th, ns := range computed {
			if awaited := float64(p.graph.Awaited(th.pid, th.tid)); s.launches[th] {
				continue
			} else if processes[th.pid] && ns > 0 {
				own += awaited
			} else {
				others += awaited
			}
		}
	}
	return own > others
}

// how says how edits are made.
type how struct {
	// how much of an edit is done: 1 all, less where it is not sure that all of the time belongs to it
	strength         func(*replay.What) float64
	maxMisattributed float64   // see mostly
	kernels          float64   // by how much kernels take longer
	refill           float64   // see warmed
	link             linkSpeed // how fast pinned copies are
	looks            bool      // see unread
	late             bool      // see awake
	overlaps         bool      // who slept while another thread did what it was asked for does not wait for that
	collects         bool      // an edit says itself what becomes of garbage collections
	crowded          bool      // other programs give way, so that all CPUs of the host may be had
	waits            bool      // a function that is faster waits for less, too
	unseen           bool      // see unseenWakers
}

// usual is how they are expected to be.
func usual() how {
	return how{strength: func(*replay.What) float64 { return 1 }, maxMisattributed: maxMisattributed, kernels: 1}
}

func (s *Study) with(edits []Edit, h how) uint64 {
	return s.length(func(g *replay.Graph, plan *replay.Plan) { s.change(edits, h, g, plan) })
}

// change makes a plan of edits.
func (s *Study) change(edits []Edit, h how, g *replay.Graph, plan *replay.Plan) {
	h.collects = slices.ContainsFunc(edits, func(e Edit) bool { return e.Cause == cause.GC })
	for _, e := range edits {
		s.apply(e, h, g, plan)
	}
	if h.unseen {
		s.unseenWakers(g, plan)
	}
	warmed(g, plan, h.refill)
	if !h.late {
		awake(g, plan)
	}
	if h.kernels != 1 {
		longer(g, plan, h.kernels)
	}
}

// speedup is how many times the work fits into the time that it took. Where nothing is left it is bounded, so that it
// can be written down.
func (s *Study) speedup(after uint64) float64 {
	return float64(s.alone) / float64(max(after, s.alone/MaxSpeedup, 1))
}

// MaxSpeedup is the largest speed-up that is claimed.
const MaxSpeedup = 1000
