package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/threads"
)

// polling returns for each thread how long it ran inside CUDA's synchronisation
// calls: CUDA waits for the GPU by asking it again and again unless it is told not
// to, so that a thread that waits looks busy.
func (a *analysis) polling() map[key]uint64 {
	calls := map[key][][2]uint64{}
	functions := a.rec.Meta.Functions
	for i := range a.rec.Events {
		e := &a.rec.Events[i]
		if e.Kind == event.Call && e.Flags&event.Timed != 0 && int(e.Func) < len(functions) && functions[e.Func].Group == "sync" {
			k := key{e.PID, e.TID}
			calls[k] = append(calls[k], [2]uint64{e.TS, e.TS + min(e.Dur, ^uint64(0)-e.TS)})
		}
	}
	out := map[key]uint64{}
	for k, list := range calls {
		if t := a.byID[k]; t != nil {
			out[k] = running(t, list)
		}
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
