package collectives

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// load is how much members computed between collectives that all of them took part in: one step is from a member's end
// of one to its beginning of the next.
type load struct {
	Steps int
	Max   uint64   // ns that the member computed which had most to do in a step, summed over steps
	Mean  uint64   // the same of the mean of members
	Wait  uint64   // ns for which members waited for the last one and had as much less to compute, summed over members
	Busy  []uint64 // by member: ns that it computed in steps
	Most  []int    // by member: steps in which it alone had most to compute
}

// loading measures the loads of members. Collectives come in the order of the least member's.
type loading struct {
	computes []timeline.Spans // by member: when kernels that do not communicate ran
	before   []timeline.Activity
	out      load
}

// newLoading prepares the measurement: nothing of what the members computed is kept for longer.
func newLoading(t *timeline.Timeline, members []member, within timeline.Span) *loading {
	l := &loading{computes: make([]timeline.Spans, len(members))}
	l.out.Busy, l.out.Most = make([]uint64, len(members)), make([]int, len(members))
	of := map[[2]int32]int{}
	for m := range members {
		of[[2]int32{members[m].Process, members[m].Device}] = m
	}
	lists := make([][]timeline.Span, len(members))
	talks := t.Communicates()
	for i := range t.Activities {
		act := &t.Activities[i]
		k := t.KernelIndex(act)
		if act.Kind != timeline.Kernel || k != timeline.None && talks[k] || act.End <= within.From || act.Start >= within.To {
			continue
		}
		s := &t.Streams[act.Stream]
		if m, ok := of[[2]int32{s.Process, s.Device}]; ok {
			lists[m] = append(lists[m], timeline.Span{From: act.Start, To: act.End})
		}
	}
	for m := range lists {
		l.computes[m] = timeline.Join(lists[m])
	}
	return l
}

// take measures the step that ends with a collective. It is left out where a member begins it before the last one has
// ended: communication runs beside computing then, and no step is told from the next.
func (l *loading) take(set []timeline.Activity) {
	before := l.before
	l.before = slices.Clone(set)
	if before == nil {
		return
	}
	busy, last := make([]uint64, len(set)), uint64(0)
	for m := range set {
		if set[m].Start < before[m].End {
			return
		}
		step := timeline.Spans{{From: before[m].End, To: set[m].Start}}
		busy[m] = l.upTo(m, set[m].Start).Both(step).Total()
		last = max(last, set[m].Start)
	}
	most, sum := slices.Max(busy), uint64(0)
	l.out.Steps++
	l.out.Max += most
	alone := -1
	for m, n := range busy {
		sum += n
		l.out.Busy[m] += n
		l.out.Wait += min(last-set[m].Start, most-n)
		switch {
		case n < most:
		case alone == -1:
			alone = m
		default:
			alone = len(busy) // several
		}
	}
	if alone < len(busy) {
		l.out.Most[alone]++
	}
	l.out.Mean += sum / uint64(len(busy))
}

// upTo takes out what a member computed before a time. What goes on then is left for the next step too.
func (l *loading) upTo(m int, at uint64) timeline.Spans {
	n := 0
	for n < len(l.computes[m]) && l.computes[m][n].From < at {
		n++
	}
	out := l.computes[m][:n]
	l.computes[m] = l.computes[m][max(0, n-1):]
	return out
}

// Imbalanced reports whether members have different work at different times, and most of the waiting is for that: it is
// not a straggler, whose GPU is always the last.
func (r *Arrivals) Imbalanced() bool {
	if !r.Enough() || r.Load.Steps < leastSets || 2*r.Load.Wait <= r.Wait {
		return false
	}
	_, straggles := r.Straggler()
	return !straggles
}
