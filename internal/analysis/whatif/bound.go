package whatif

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// floor is how long the work takes at least, ns, and what takes so long.
type floor struct {
	ns     uint64
	engine replay.Engine
	scaled bool // the plan makes it take less than it took
}

// text says what bounds a prediction, to go after "limited by".
func (f *floor) text(before uint64) string {
	what := map[replay.Engine]string{
		replay.Compute: "the kernels", replay.ToDevice: "the copies to the GPU", replay.ToHost: "the copies from the GPU",
	}[f.engine]
	if f.scaled {
		return what + ", which take as long after the change"
	}
	return fmt.Sprintf("%s, which take %.0f%% of the time as they are", what, 100*float64(f.ns)/float64(max(before, 1)))
}

// floor returns for how long the busiest engine of a GPU works under a plan: however the rest is arranged, the work
// takes no less. It takes no longer than it did.
func (s *Study) floor(edits []Edit, h how) floor {
	type engine struct {
		device int32
		engine replay.Engine
	}
	now, was := map[engine]uint64{}, map[engine]uint64{}
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		for _, b := range p.graph.Busy(plan) {
			was[engine{b.Device, b.Engine}] += b.Time
		}
		s.change(edits, h, p.graph, plan)
		for _, b := range p.graph.Busy(plan) {
			now[engine{b.Device, b.Engine}] += b.Time
		}
	}
	var best floor
	for e, ns := range now {
		if ns > best.ns || ns == best.ns && e.engine < best.engine {
			best = floor{ns: ns, engine: e.engine, scaled: ns < was[e]}
		}
	}
	best.ns = min(best.ns, s.alone)
	return best
}

// decides is how near a prediction is to its bound, relative to it, for that to be what decides.
const decides = 0.02

// bounded keeps a prediction and its interval within what the engines of the GPUs allow.
func (s *Study) bounded(p *Prediction, edits []Edit, h how) {
	least := s.floor(edits, h)
	best := h
	best.kernels, best.link = 1, fastest
	p.After = max(p.After, least.ns)
	p.Speedup = s.speedup(p.After)
	p.High = max(p.Speedup, min(p.High, s.speedup(s.floor(edits, best).ns)))
	p.Low = min(p.Low, p.Speedup)
	if p.Speedup > 1 && float64(p.After) <= (1+decides)*float64(least.ns) {
		p.Limit = least.text(s.alone)
	}
}
