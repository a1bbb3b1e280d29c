package whatif

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
)

// floor is how long the work takes at least, ns, and what takes so long.
type floor struct {
	ns     uint64
	engine replay.Engine
	scaled bool     // the plan makes it take less than it took
	cpus   int      // the CPUs of the host take so long, and no engine; 0: an engine does
	free   *float64 // of cpus, on average; nil: not known
	locked bool     // the threads of a Python interpreter take so long, one after the other
	// the helpers take so long that are started for each piece of work, as many at a time as there are to be
	started bool
	helper  bool // a thread that works for others computes for so long
}

// text says what bounds a prediction, to go after "limited by".
func (f *floor) text(before uint64) string {
	if f.locked {
		return fmt.Sprintf(
			"Python's global lock (GIL), which the threads of one process hold for %.0f%% of the time, one at a time: "+
				"worker processes have one each",
			100*float64(f.ns)/float64(max(before, 1)),
		)
	}
	if f.started {
		return fmt.Sprintf(
			"the processes that are started, which take %.0f%% of the time",
			100*float64(f.ns)/float64(max(before, 1)),
		)
	}
	if f.helper {
		return "what each worker still computes"
	}
	if f.cpus > 0 {
		if f.free != nil {
			return fmt.Sprintf("the host's %d CPUs, %.1f of which are free", f.cpus, *f.free)
		}
		return fmt.Sprintf("the %d CPUs of the host, which the program's computing would fill", f.cpus)
	}
	what := map[replay.Engine]string{
		replay.Compute: "the kernels", replay.ToDevice: "the copies to the GPU",
		replay.ToHost: "the copies from the GPU",
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
	if ns := s.startedOnes(edits); ns > best.ns {
		best = floor{ns: ns, started: true}
	}
	if ns := s.busiestHelper(edits, h); ns > best.ns {
		best = floor{ns: ns, helper: true}
	}
	if ns := s.crowd(edits, h); ns > best.ns {
		best = floor{ns: ns, cpus: s.cpus, free: s.free}
	}
	if ns := s.locked(edits, h); ns > best.ns && slices.ContainsFunc(edits, sharesWork) {
		best = floor{ns: ns, locked: true}
	}
	best.ns = min(best.ns, s.alone)
	return best
}

// startedOnes is how long helpers take that are started for each piece of work, ns, where a plan says how many times as
// many there are at a time.
func (s *Study) startedOnes(edits []Edit) uint64 {
	i := slices.IndexFunc(edits, sharesWork)
	if i < 0 || edits[i].Workers == 0 {
		return 0
	}
	sum := 0.0
	for _, p := range s.parts {
		sum += s.startedFor(p.graph)
	}
	return uint64(sum / float64(edits[i].Workers))
}

// busiestHelper is how long the thread computes, ns, that computes most for others under a plan which says how many
// times as many share its work: it may be asked ahead, by whatever threads lie between, and computes no less. Where
// others wait for less than half of what a thread computes, much of that may be for nobody.
func (s *Study) busiestHelper(edits []Edit, h how) uint64 {
	i := slices.IndexFunc(edits, sharesWork)
	if i < 0 || edits[i].Workers == 0 {
		return 0
	}
	type sums struct{ ran, left, awaited float64 }
	by := map[thread]*sums{}
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		s.change(edits, h, p.graph, plan)
		for i := range p.graph.Whats {
			w := &p.graph.Whats[i]
			th := thread{w.PID, w.TID}
			if w.Kind != replay.Run || w.Recorder || s.launches[th] {
				continue
			}
			if by[th] == nil {
				by[th] = &sums{}
			}
			own := float64(p.graph.Times[i].Own)
			by[th].ran, by[th].left = by[th].ran+own, by[th].left+own*plan.Changes[i].Scale
		}
		for th := range by {
			by[th].awaited += float64(p.graph.Awaited(th.pid, th.tid))
		}
	}
	busiest := 0.0
	for _, b := range by {
		if b.awaited >= b.ran/2 {
			busiest = max(busiest, b.left)
		}
	}
	return uint64(busiest)
}

// crowd is how long the host's CPUs take for what the threads that launch compute under a plan, and those that they
// wait for; 0 where that is not known, and where no plan lets more threads compute. What other threads of the
// target compute is no part of the work, and takes as much of the CPUs as it did.
func (s *Study) crowd(edits []Edit, h how) uint64 {
	beside := func(e Edit) bool { return sharesWork(e) || e.Verb == Overlap && s.free != nil }
	if s.cpus == 0 || !slices.ContainsFunc(edits, beside) {
		return 0
	}
	work, was, other := 0.0, 0.0, 0.0
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		before, others := s.computing(p.graph, plan)
		was, other = was+before, other+others
		s.change(unshared(edits), h, p.graph, plan)
		mine, _ := s.computing(p.graph, plan)
		work += mine
	}
	observed := float64(max(1, s.observed))
	available := float64(s.cpus) - other/observed
	if s.free != nil && !h.crowded {
		available = min(available, *s.free+was/observed)
	}
	return uint64(work / max(1, available))
}

// freeCPUs is how many CPUs of the host were free on average; nil where that is not known.
func freeCPUs(rec *recording.Recording) *float64 {
	list := rec.Meta.Pressure
	if len(list) < 2 {
		return nil
	}
	first, last := list[0], list[len(list)-1]
	if first.FreeCPU == 0 || last.FreeCPU < first.FreeCPU || last.TS <= first.TS {
		return nil
	}
	free := min(float64(last.FreeCPU-first.FreeCPU)/float64(last.TS-first.TS), float64(rec.Meta.Host.CPUs))
	return &free
}

// workerCPUs is how many CPUs the threads take that others wait for and that launch nothing, on average.
func (s *Study) workerCPUs() float64 {
	sum := 0.0
	for _, p := range s.parts {
		for i := range p.graph.Whats {
			w := &p.graph.Whats[i]
			th := thread{w.PID, w.TID}
			if w.Kind == replay.Run && !w.Recorder && !s.launches[th] && isAwaited(p.graph, th) {
				sum += float64(p.graph.Times[i].Own)
			}
		}
	}
	return sum / float64(max(1, s.observed))
}

// isAwaited reports whether a thread is waited for in more than a chance share of a part.
func isAwaited(g *replay.Graph, th thread) bool {
	const chance = 0.02
	return float64(g.Awaited(th.pid, th.tid)) >= chance*float64(g.Observed())
}

// computing is how long threads compute under a plan, ns: those whose work it is, and the others.
func (s *Study) computing(g *replay.Graph, plan *replay.Plan) (mine, others float64) {
	for i := range g.Whats {
		w := &g.Whats[i]
		if w.Kind != replay.Run && w.Kind != replay.Call || w.Recorder {
			continue
		}
		ns := float64(g.Times[i].Own) * plan.Changes[i].Scale
		if th := (thread{w.PID, w.TID}); s.launches[th] || isAwaited(g, th) {
			mine += ns
		} else {
			others += ns
		}
	}
	return mine, others
}

// surely is what the work takes at least, ns: what engines did is measured to the nanosecond, how long CPUs computed
// and a lock was held is not.
func (f *floor) surely() uint64 {
	if f.started { // with the waits of both for each other, which may go
		return uint64((1 - modelBeside) * float64(f.ns))
	}
	if f.cpus > 0 || f.locked || f.helper {
		return uint64((1 - decides) * float64(f.ns))
	}
	return f.ns
}

// decides is how near a prediction is to its bound, relative to it, for that to be what decides.
const decides = 0.02

// bounded keeps a prediction and its interval within what the engines of the GPUs allow.
func (s *Study) bounded(p *Prediction, edits []Edit, h how) {
	least := s.floor(edits, h)
	best := h
	best.kernels, best.link, best.crowded = 1, fastest, true
	if least.ns > p.After {
		p.After = least.ns
		p.Low = min(p.Low, s.speedup(uint64((1+modelError(edits))*float64(least.ns))))
	}
	shared := s.contended(edits, h)
	if shared > p.After {
		p.After = shared
		p.Low = min(p.Low, s.speedup(uint64((1+modelError(edits))*float64(shared))))
	}
	p.Speedup = s.speedup(p.After)
	surely := s.floor(edits, best)
	p.High = max(p.Speedup, min(p.High, s.speedup(surely.surely())))
	p.Low = min(p.Low, p.Speedup)
	if p.Speedup > 1 && float64(p.After) <= (1+decides)*float64(least.ns) {
		p.Limit = least.text(s.alone)
	} else if shared > 0 && p.After == shared {
		p.Limit = (&floor{ns: s.locked(edits, h), locked: true}).text(s.alone)
	}
}
