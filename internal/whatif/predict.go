package whatif

import (
	"math"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/replay"
)

// Prediction is how much faster the program would be. Low and High are to hold the true speed-up 9 times in 10: see interval.
type Prediction struct {
	Plan    string  `json:"plan"`
	Speedup float64 `json:"speedup"` // throughput after, of what it was
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Before  uint64  `json:"before_ns"` // how long the work took that was replayed
	After   uint64  `json:"after_ns"`
	Touched uint64  `json:"touched_ns"` // time that the plan changes, in all threads and streams: not what it gains
	Doubt   float64 `json:"doubt"`      // share of Touched whose cause is guessed
}

// Predict replays with all edits at once.
func (s *Study) Predict(edits ...Edit) Prediction {
	p := Prediction{Before: s.observed, Speedup: 1, Low: 1, High: 1}
	for i, e := range edits {
		if i > 0 {
			p.Plan += ", "
		}
		p.Plan += e.String()
	}
	if !s.Any() {
		return p
	}
	all := func(*replay.What) float64 { return 1 }
	p.After = s.with(edits, all)
	p.Speedup = s.speedup(p.After)
	s.interval(&p, edits)
	return p
}

func (s *Study) with(edits []Edit, strength func(*replay.What) float64) uint64 {
	return s.length(func(g *replay.Graph, plan *replay.Plan) {
		for _, e := range edits {
			s.apply(e, g, plan, strength)
		}
	})
}

// speedup is how many times the work fits into the time that it took. Where nothing is left it is bounded, so that it
// can be written down.
func (s *Study) speedup(after uint64) float64 {
	return float64(s.replayed) / float64(max(after, s.replayed/most, 1))
}

// most is the largest speed-up that is claimed.
const most = 1000

// modelError is the share of the remaining time by which a prediction is off even where every name is right: what
// changes does not change alone (caches, clocks, the length of waits). Two standard deviations of the error of the predictions in
// docs/whatif.md.
const modelError = 0.05

// sigmas is how many standard deviations hold 9 of 10 values of a normal distribution.
const sigmas = 1.64

// clocks is by how much longer kernels may take on a GPU that is busy all of the time than on one that is nearly idle: its clocks follow what it
// draws. Products of 4096 x 4096 matrices took 14% longer once a sleep was gone that had kept an H200 idle for 62% of the time (the twin of
// `sleep`, docs/whatif.md).
const clocks = 0.22

// interval widens a prediction by what it rests on: the replay's own error, the model's, how much the program's pace
// varied by itself, how well one half of the recording foretells the other, and for the time that is changed how sure its names are: two
// standard deviations of the share that samples give, and all that is guessed. A GPU that has more to do may be slower.
func (s *Study) interval(p *Prediction, edits []Edit) {
	touched, guessed, doubt := s.touched(edits)
	p.Touched = touched
	if touched > 0 {
		p.Doubt = guessed / float64(touched)
	}
	weaker := s.with(edits, func(w *replay.What) float64 {
		if w.Kind != replay.Run {
			return 1
		}
		return 1 - doubt[thread{w.PID, w.TID}]
	})
	after, half := float64(p.After), math.Abs(float64(weaker)-float64(p.After))
	model := modelError*after + math.Abs(s.Error())*float64(s.observed)
	pace := sigmas * s.varies * after
	learned := s.learned * after
	half = math.Sqrt(half*half + model*model + pace*pace + learned*learned)
	slower := math.Hypot(half, s.warmer(p.After, edits))
	if p.After == s.replayed && weaker == s.replayed {
		half = math.Abs(s.Error()) * float64(s.observed) // nothing was changed that matters
		slower = half
	}
	p.Low = s.speedup(uint64(after + slower))
	p.High = s.speedup(uint64(max(0, after-half)))
}

// warmer returns by how much longer it may take because GPUs are idle for less of the time, ns.
func (s *Study) warmer(after uint64, edits []Edit) float64 {
	work := 0.0
	for _, p := range s.parts {
		for i := range p.graph.Whats {
			if p.graph.Whats[i].Kind == replay.Kernel {
				work += float64(p.graph.Times[i].Own)
			}
		}
	}
	busy := func(of uint64) float64 { return min(1, work/float64(max(of, 1))) }
	by := 1 + clocks*(busy(after)-busy(s.replayed))
	if by <= 1 {
		return 0
	}
	longer := s.length(func(g *replay.Graph, plan *replay.Plan) {
		for _, e := range edits {
			s.apply(e, g, plan, func(*replay.What) float64 { return 1 })
		}
		for i := range g.Whats {
			if g.Whats[i].Kind == replay.Kernel {
				plan.Changes[i].Scale *= by
			}
		}
	})
	return float64(longer) - float64(after)
}

// touched returns how much time edits change, how much of it is guessed, and by thread what share of the computing
// that they change may not be what it is called.
func (s *Study) touched(edits []Edit) (ns uint64, guessed float64, doubt map[thread]float64) {
	type sums struct{ hit, all, guessed float64 }
	by := map[thread]*sums{}
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		for _, e := range edits {
			s.apply(e, p.graph, plan, func(*replay.What) float64 { return 1 })
		}
		for i := range p.graph.Whats {
			w, t := &p.graph.Whats[i], &p.graph.Times[i]
			hit := plan.Changes[i] != replay.Keep()
			if hit {
				ns += t.Own
				guessed += float64(t.By[replay.Guess])
			}
			if w.Kind != replay.Run {
				continue
			}
			th := thread{w.PID, w.TID}
			if by[th] == nil {
				by[th] = &sums{}
			}
			by[th].all += float64(t.Own)
			if hit {
				by[th].hit += float64(t.Own)
				by[th].guessed += float64(t.By[replay.Guess])
			}
		}
	}
	doubt = map[thread]float64{}
	for th, b := range by {
		if b.hit > 0 {
			doubt[th] = min(1, s.spread(th, b.hit/b.all)+b.guessed/b.hit)
		}
	}
	return ns, guessed, doubt
}

// spread is two standard deviations of a share of a thread's time that samples give, relative to it: binomial.
func (s *Study) spread(th thread, share float64) float64 {
	sm := s.sampled[th]
	if sm == nil || sm.n == 0 {
		return 1
	}
	return 2 * math.Sqrt((1-share)/(share*sm.n))
}

// Of predicts the remedy of a cause, and says whether there is one.
func (s *Study) Of(id cause.ID) (Prediction, bool) {
	if !HasRemedy(id) || !s.Any() {
		return Prediction{}, false
	}
	if id == cause.Worker {
		return s.enough(), true
	}
	return s.Predict(Edit{Verb: Without, Pattern: id.String(), Cause: id}), true
}

// enough predicts as many workers as make a difference.
func (s *Study) enough() Prediction {
	worker := Edit{Verb: Without, Pattern: cause.Worker.String(), Cause: cause.Worker}
	best := s.Predict(worker)
	const most, nearly = 8, 0.97
	for worker.Workers = 1; worker.Workers <= most; worker.Workers++ {
		if p := s.Predict(worker); p.Speedup >= nearly*best.Speedup {
			return p
		}
	}
	return best
}
