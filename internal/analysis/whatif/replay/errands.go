package replay

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// errand is what one thread does for another that woke it, until it waits for that one again.
type errand struct {
	lane int32  // of who does it
	from uint64 // ns
	done uint64 // ns
}

// findErrands finds what threads do for each other. Who sleeps meanwhile may look at times whether it is done.
func (b *builder) findErrands() {
	b.errands = map[int32][]errand{}
	for i := range b.ths {
		from := map[int32]uint64{}
		for _, iv := range b.clipped(&b.ths[i]) {
			l, at, ok := b.waker(&iv)
			if !ok || l == int32(i) || b.isLock(&iv) {
				continue
			}
			if asked := from[l]; asked > 0 {
				b.errands[l] = append(b.errands[l], errand{int32(i), asked, iv.From})
			}
			from[l] = at
		}
	}
	for _, list := range b.errands {
		slices.SortFunc(list, func(x, y errand) int { return cmp.Compare(x.done, y.done) })
	}
}

// awaitedAsleep returns the last errand that was done while a thread slept that had asked for it before.
func (b *builder) awaitedAsleep(lane int32, iv *threads.Interval) (e errand, ok bool) {
	list := b.errands[lane]
	i, _ := slices.BinarySearchFunc(list, iv.To, func(e errand, at uint64) int { return cmp.Compare(e.done, at) })
	for i--; i >= 0 && list[i].done > iv.From; i-- {
		if list[i].from <= iv.From {
			return list[i], true
		}
	}
	return errand{}, false
}
