package diagnose

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/observer"
)

// observed is what windows of GPU records added to the time in them: it is part of no number of a diagnosis.
type observed struct {
	Time  uint64  `json:"ns"`    // that is left out
	Share float64 `json:"share"` // of the time that was recorded, with its interval
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// observers determines the overhead of windows.
func (a *analysis) observers(it *Iteration) *observer.Effect {
	var steps []observer.Step
	if it != nil && it.Always && it.tiled() {
		at := it.From
		for _, d := range it.Durations {
			steps = append(steps, observer.Step{From: at, To: at + d})
			at += d
		}
	}
	effect := observer.Measure(a.t, steps)
	if gpu := a.t.Rec.Meta.GPU; it != nil && gpu != nil && gpu.Mode == "windows" {
		effect.Timed = steps
		if it.Always && len(it.Starts) == len(it.Durations) {
			effect.Timed = it.steps()
		}
	}
	return effect
}

// steps are iterations of which it is known when each begins.
func (it *Iteration) steps() []observer.Step {
	out := make([]observer.Step, len(it.Starts))
	for i, from := range it.Starts {
		out[i] = observer.Step{From: from, To: from + it.Durations[i]}
	}
	return out
}

// tiled reports whether durations follow each other without gaps.
func (it *Iteration) tiled() bool {
	sum := uint64(0)
	for _, d := range it.Durations {
		sum += d
	}
	const apart = 0.02
	return sum > 0 && math.Abs(float64(sum)-float64(it.To-min(it.From, it.To))) <= apart*float64(sum)
}

// Effect is the overhead that windows add to calls and steps.
func (w *Work) Effect() *observer.Effect { return w.a.effect }

// mostLeftOut bounds which share of what is launching is taken for the observer's.
const mostLeftOut = 0.95

// leaveOut takes out of the devices' time what windows added: of what is called launching, the calls that take longer
// in them; and what steps take longer beyond that, for launches of kernels are not timed outside of windows.
func (a *analysis) leaveOut(d *Diagnosis, devices []measured) {
	g := a.groups[cause.LaunchOverhead]
	if g == nil || g.cost == 0 {
		return
	}
	var calls observer.Share // ns
	for _, e := range g.calls.sorted() {
		if s, ok := a.effect.Calls[uint16(e.key)]; ok {
			calls.Mean += s.Mean * float64(e.time)
			calls.Low += s.Low * float64(e.time)
			calls.High += s.High * float64(e.time)
		}
	}
	time := 0.0
	for i := range devices {
		time += float64(devices[i].Time)
	}
	of := func(calls, steps float64) float64 { return min(mostLeftOut*float64(g.cost), max(calls, steps*time)) }
	mean := of(calls.Mean, a.effect.Steps.Mean)
	if mean < 1 {
		return
	}
	out := observed{
		Share: mean / time,
		Low:   of(calls.Low, a.effect.Steps.Low) / time,
		High:  of(calls.High, a.effect.Steps.High) / time,
	}
	by := mean / float64(g.cost)
	for i := range devices {
		n := uint64(by * float64(devices[i].Idle[cause.LaunchOverhead]))
		devices[i].Idle[cause.LaunchOverhead] -= n
		devices[i].Time -= n
		out.Time += n
	}
	g.shrink(1 - by)
	d.Observed = &out
}

// shrink scales the time of a group.
func (g *group) shrink(left float64) {
	for _, n := range []*uint64{&g.cost, &g.linked, &g.guessed, &g.lost} {
		*n = uint64(left * float64(*n))
	}
	for i := range g.sure {
		g.sure[i] = uint64(left * float64(g.sure[i]))
	}
	for i := range g.inner {
		g.inner[i] = uint64(left * float64(g.inner[i]))
	}
}
