// Package gap finds the times in which a GPU ran nothing, and walks back from the end of
// each along the critical path: which call ended the gap, what its thread did since the
// queue had drained, and, where that thread waited, what the one did that it waited for,
// across threads and processes. It is a pure function of a timeline.
package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// None stands where an index is missing.
const None int32 = -1

// Gap is a maximal interval in which a device ran nothing, inside a stretch of time in which
// all that it did for the target was seen.
type Gap struct {
	From, To uint64 // ns, CLOCK_MONOTONIC
	Device   int32  // index into Timeline.Devices
	Prev     int32  // activity that ended last before it, index into Timeline.Activities; None: the stretch began with the gap
	Next     int32  // activity that ended it; None: the stretch ended with the gap
	First    int32  // its steps are Walk.Steps[First:Last], where it is kept: see Walk.All
	Last     int32
}

// Step is a stretch of a gap and why the GPU ran nothing in it. The steps of a gap touch each
// other and cover it exactly.
type Step struct {
	From, To uint64 // ns, CLOCK_MONOTONIC
	// Cause is why. Of Worker, Lock and GIL, Inner is what the one did that was waited for.
	Cause, Inner cause.ID
	Sure         Confidence
	PID, TID     uint32 // the thread whose doing it was: at the end of the chain of wakers; 0: nobody's
	// Waiter is the thread that would have launched, where that is another one.
	WaiterPID, WaiterTID uint32
	Stack                uint64 // what shows it: index + 1 into Meta.Stacks; 0: none
	Op                   int32  // the call that it was spent in, or whose price it is, index into Timeline.Ops; None
	Wait                 int32  // the event of the wait that it was spent in, index into Recording.Events; None
}

// Confidence describes how the cause of a step is known.
type Confidence uint8

// The ways, the best first.
const (
	Seen     Confidence = iota // by an event of its own: a call, a wait, a sample in the step
	Inferred                   // from what the samples say of the steps like it
	Guessed                    // from nothing but what is left
)

// Walk is all gaps of a recording with their steps; All returns them.
type Walk struct {
	Gaps  []Gap // those that are not plain, by device, then From
	Steps []Step
	Plain []Sum // the others, as far as they lie in in
	t     *timeline.Timeline
	by    *walker // what makes it; nil where it was made by hand
	in    timeline.Span
	found bool // Find was called
	// Covered is, for each device, the time in which all that it did was seen: gaps lie inside, and
	// what of it is in no gap the device was busy.
	Covered []timeline.Spans
	Main    *Alone // of the main thread; nil where a device was seen
}

// Did returns what a thread did in [from, to), in steps that touch each other and cover it, by the rules that explain
// gaps. It takes O(n) for n events of the threads that it waited for; one goroutine may call it at a time.
func (w *Walk) Did(pid, tid uint32, from, to uint64) []Step {
	if w.by == nil {
		return nil // made by hand
	}
	x := *w.by
	from, to = max(from, x.t.From), min(to, x.t.To)
	th := x.known(key{pid, tid})
	if th == nil || from >= to {
		return nil
	}
	x.out, x.attribution, x.chain, x.floor, x.first = &Walk{t: w.t}, newAttributor(), nil, Seen, 0
	x.explain(th, from, to)
	x.attribution.resolve(&x)
	return x.out.Steps
}
