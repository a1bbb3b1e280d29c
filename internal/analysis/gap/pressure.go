package gap

import (
	"cmp"
	"slices"
	"sort"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// quota finds the waits for a CPU that the cgroup's quota explains. A thread that is throttled is taken off its CPU
// like one that is displaced, and who comes next on a busy host looks like the cause; how long the cgroup stood still
// is known for each second only. So in each second the thread's longest waits are the quota's, as far as they fit.
func (w *walker) quota() {
	w.throttled = map[int32]bool{}
	list := w.t.Rec.Meta.Pressure
	w.unlimited = len(list) > 1 && list[len(list)-1].Throttled <= list[0].Throttled
	for k := 1; k < len(list); k++ {
		if list[k].Throttled <= list[k-1].Throttled {
			continue
		}
		for _, th := range w.threads {
			w.blame(th, list[k-1].TS, list[k].TS, list[k].Throttled-list[k-1].Throttled)
		}
	}
}

// blame marks the longest waits of a thread that began in [from, to), as long as together they are no longer than
// what the cgroup stood still.
func (w *walker) blame(th *thread, from, to, stood uint64) {
	first := sort.Search(len(th.intervals), func(i int) bool { return th.intervals[i].From >= from })
	var waits []*threads.Interval
	for i := first; i < len(th.intervals) && th.intervals[i].From < to; i++ {
		if iv := &th.intervals[i]; iv.State == threads.Runnable && iv.Wait >= 0 {
			waits = append(waits, iv)
		}
	}
	slices.SortStableFunc(waits, func(x, y *threads.Interval) int { return cmp.Compare(y.Dur(), x.Dur()) })
	for _, iv := range waits {
		if iv.Dur() > stood {
			continue
		}
		stood -= iv.Dur()
		w.throttled[iv.Wait] = true
	}
}
