package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// calls are the calls that the program itself made in one thread, by Start, as indices into Timeline.Ops. Mostly they
// follow each other there, and then no list of them is made: of a recording of launches that would be a tenth of all
// memory.
type calls struct {
	first int32
	count int
	list  []int32 // nil: they are [first, first+count)
}

// at returns the call at a place.
func (c *calls) at(i int) int32 {
	if c.list == nil {
		return c.first + int32(i)
	}
	return c.list[i]
}

// add adds the outermost calls of a thread.
func (c *calls) add(t *timeline.Timeline, th *timeline.Thread) {
	n := 0
	for op := th.First; op < th.Last; op++ {
		if t.Ops[op].Outer() {
			n++
		}
	}
	if c.count == 0 && n == int(th.Last-th.First) {
		c.first, c.count = th.First, n
		return
	}
	c.spell(n)
	for op := th.First; op < th.Last; op++ {
		if t.Ops[op].Outer() {
			c.list = append(c.list, op)
		}
	}
	c.count += n
}

// spell makes the list, with room for so many more.
func (c *calls) spell(more int) {
	if c.list != nil {
		c.list = slices.Grow(c.list, more)
		return
	}
	c.list = make([]int32, 0, c.count+more)
	for i := range c.count {
		c.list = append(c.list, c.first+int32(i))
	}
}

// sort brings the calls in order: those of a pid that was used again may not be.
func (c *calls) sort(compare func(x, y int32) int) {
	for i := 1; i < c.count; i++ {
		if compare(c.at(i-1), c.at(i)) > 0 {
			c.spell(0)
			slices.SortStableFunc(c.list, compare)
			return
		}
	}
}
