package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// polling returns for each thread how long it ran inside CUDA's synchronisation
// calls: CUDA waits for the GPU by asking it again and again unless it is told not
// to, so that a thread that waits looks busy.
func (a *analysis) polling() map[key]uint64 {
	t := a.timeline
	sync := make([]bool, len(t.Rec.Meta.Functions))
	for i := range sync {
		sync[i] = t.Rec.Meta.Functions[i].Group == "sync"
	}
	calls := map[key][][2]uint64{}
	for i := range t.Threads {
		th := &t.Threads[i]
		k := key{t.Processes[th.Process].PID, th.TID}
		if a.byID[k] == nil {
			continue
		}
		ops := t.Ops[th.First:th.Last]
		for i := range ops {
			if o := &ops[i]; o.Timed && sync[o.Func] {
				calls[k] = append(calls[k], [2]uint64{o.Start, o.End()})
			}
		}
	}
	out := map[key]uint64{}
	for k, list := range calls {
		out[k] = running(a.byID[k], list)
	}
	return out
}

// running returns for how long t ran in the union of the stretches. Where short waits
// are only known in sum, it is an upper bound.
func running(t *threads.Thread, list [][2]uint64) uint64 {
	slices.SortFunc(list, func(x, y [2]uint64) int { return cmp.Compare(x[0], y[0]) })
	total, done, from := uint64(0), uint64(0), 0
	for _, s := range list {
		begin, end := max(s[0], done), s[1]
		if end <= begin {
			continue
		}
		done = end
		for from < len(t.Intervals) && t.Intervals[from].To <= begin {
			from++
		}
		for i := from; i < len(t.Intervals) && t.Intervals[i].From < end; i++ {
			if iv := &t.Intervals[i]; iv.State == threads.Running {
				total += min(iv.To, end) - max(iv.From, begin)
			}
		}
	}
	return min(total, t.Totals[threads.Running])
}
