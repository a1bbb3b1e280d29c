package replay

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
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
		if !w.b.asks[i].kernel {
			continue
		}
		if last != noNode && w.b.t.Ops[last].End() < o.Start {
			all = append(all, timeline.Span{From: w.b.t.Ops[last].End(), To: o.Start})
		}
		last = i
	}
	return usualOnes(all)
}

// reads returns when a thread was on its way from one wait for the GPU, or copy that is a look at its result, to the
// next, without launching anything between them: who does not look need not go that way.
func (w *writer) reads(calls []int32) []timeline.Span {
	var all []timeline.Span
	last := noNode
	for _, i := range calls {
		what, _ := w.b.name.Call(i)
		if what.Cause != cause.HostSync {
			last = noNode
			continue
		}
		if o := &w.b.t.Ops[i]; last != noNode && w.b.t.Ops[last].End() < o.Start {
			all = append(all, timeline.Span{From: w.b.t.Ops[last].End(), To: o.Start})
		}
		last = i
	}
	return all
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

// within reports whether what is written at a time is in one of a list of spans, of which it drops those before.
func within(list *[]timeline.Span, at uint64) bool {
	for len(*list) > 0 && (*list)[0].To <= at {
		*list = (*list)[1:]
	}
	return len(*list) > 0 && (*list)[0].From <= at
}
