package threads

import "sort"

// running answers for how long a thread ran in a stretch of time, without looking at
// every interval in it: a storm has many intervals and many sums.
type running struct {
	intervals []Interval
	before    []uint64 // ns that the thread ran before the interval of the same index; one more at the end
	depth     []int32  // how many more stretches hold the interval than the one before it
}

func newRunning(intervals []Interval) *running {
	r := &running{
		intervals: intervals,
		before:    make([]uint64, len(intervals)+1),
		depth:     make([]int32, len(intervals)+1),
	}
	for i := range intervals {
		r.before[i+1] = r.before[i]
		if intervals[i].State == Running {
			r.before[i+1] += intervals[i].Dur()
		}
	}
	return r
}

// within returns for how many ns the thread ran between two times, and notes the stretch for mark.
func (r *running) within(from, to uint64) uint64 {
	list := r.intervals
	first := sort.Search(len(list), func(i int) bool { return list[i].To > from })
	last := sort.Search(len(list), func(i int) bool { return list[i].From >= to }) // the first behind it
	if first >= last {
		return 0
	}
	r.depth[first]++
	r.depth[last]--
	ran := r.before[last] - r.before[first]
	if a := &list[first]; a.State == Running && a.From < from {
		ran -= from - a.From
	}
	if z := &list[last-1]; z.State == Running && z.To > to {
		ran -= z.To - to
	}
	return ran
}

// mark notes at the running intervals of all stretches that short waits lie in them.
func (r *running) mark() {
	depth := int32(0)
	for i := range r.intervals {
		depth += r.depth[i]
		if iv := &r.intervals[i]; depth > 0 && iv.State == Running {
			iv.Mixed = true
		}
	}
}
