package archive

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// sorted returns the run in order. A writer writes it so; others may not.
func (r run) sorted() run {
	inOrder := true
	for i := 1; i < len(r.events) && inOrder; i++ {
		inOrder = !r.before(i, &r, i-1)
	}
	if inOrder {
		return r
	}
	at := make([]int, len(r.events))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int {
		return cmp.Or(cmp.Compare(r.events[a].TS, r.events[b].TS), cmp.Compare(r.tie(a), r.tie(b)))
	})
	out := newRun(len(r.events), r.ties != nil)
	for _, i := range at {
		out.add(&r, i)
	}
	return out
}

func newRun(size int, ties bool) run {
	out := run{events: make([]event.Event, 0, size)}
	if ties {
		out.ties = make([]uint32, 0, size)
	}
	return out
}

func (r *run) add(from *run, i int) {
	r.events = append(r.events, from.events[i])
	if r.ties != nil {
		r.ties = append(r.ties, from.tie(i))
	}
}

// merged makes one run of several. There are at most as many as tables, so that looking at all heads is
// cheaper than a heap.
func merged(runs []run) run {
	if len(runs) == 1 {
		return runs[0]
	}
	size, ties := 0, false
	for _, r := range runs {
		size += len(r.events)
		ties = ties || r.ties != nil
	}
	out := newRun(size, ties)
	heads := make([]int, len(runs))
	for len(out.events) < size {
		best := -1
		for i := range runs {
			if heads[i] < len(runs[i].events) && (best < 0 || runs[i].before(heads[i], &runs[best], heads[best])) {
				best = i
			}
		}
		out.add(&runs[best], heads[best])
		heads[best]++
	}
	return out
}

// follow puts a run behind another. Where it reaches back, only what lies behind its beginning is merged.
func follow(all, next run) run {
	if len(all.events) == 0 {
		return next
	}
	if len(next.events) == 0 {
		return all
	}
	if all.ties == nil && next.ties != nil {
		all.ties = make([]uint32, len(all.events), cap(all.events))
	}
	if all.ties != nil && next.ties == nil {
		next.ties = make([]uint32, len(next.events))
	}
	first := next.events[0].TS
	cut, _ := slices.BinarySearchFunc(all.events, first,
		func(e event.Event, ts uint64) int { return cmp.Compare(e.TS, ts) })
	tail := run{events: slices.Clone(all.events[cut:])}
	all.events = all.events[:cut]
	if all.ties != nil {
		tail.ties = slices.Clone(all.ties[cut:])
		all.ties = all.ties[:cut]
	}
	behind := merged([]run{tail, next})
	all.events = append(all.events, behind.events...)
	if all.ties != nil {
		all.ties = append(all.ties, behind.ties...)
	}
	return all
}
