package replay

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// bursts returns when a thread was on its way from one launch of a kernel to the next of the same burst: nothing waits
// for the GPU between them, and it takes no longer than is usual between launches of this thread. What it does there is
// launching, whatever it is called: in a graph none of it is left.
func (w *writer) bursts(calls []int32) []timeline.Span {
	var all []timeline.Span
	last := noNode
	for _, i := range calls {
		o := &w.b.t.Ops[i]
		if _, waits := w.b.syncs[i]; waits {
			last = noNode
			continue
		}
		if !w.b.asks[i] {
			continue
		}
		if last != noNode && w.b.t.Ops[last].End() < o.Start {
			all = append(all, timeline.Span{From: w.b.t.Ops[last].End(), To: o.Start})
		}
		last = i
	}
	return usualOnes(all)
}

// usualOnes leaves out spans that are far longer than most.
func usualOnes(all []timeline.Span) []timeline.Span {
	lengths := make([]uint64, len(all))
	for i, s := range all {
		lengths[i] = s.To - s.From
	}
	longest := usualTimes * median(lengths, 0)
	return slices.DeleteFunc(all, func(s timeline.Span) bool { return s.To-s.From > longest })
}

// inBurst reports whether the thread is between two launches of a burst where it is written.
func (w *writer) inBurst() bool {
	for len(w.burst) > 0 && w.burst[0].To <= w.pos {
		w.burst = w.burst[1:]
	}
	return len(w.burst) > 0 && w.burst[0].From <= w.pos
}
