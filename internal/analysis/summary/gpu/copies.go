package gpu

import (
	"cmp"
	"math"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
)

// copies makes the table of copies and counts memsets.
type copies struct {
	a    *analysis
	rows map[copyKey]*copyRow
	sets sets

	// Of the device whose activities come:
	setTime union
	busy    uint64     // ns for which kernels have run
	end     uint64     // ns: until when
	open    []*copyRow // rows whose last stretch may not be over
	next    uint64     // ns: the earliest end of these stretches
}

// copyKey is Ret of a copy's event: direction, kinds of memory, asynchronous or not; what has no name is 0.
type copyKey int32

// copyRow is about the union of its copies: stretches that are apart from each other.
type copyRow struct {
	Copy
	all union
	// under is for how long kernels ran in the stretches, ns. Of the open one it lacks what ran until its end.
	under uint64
	open  bool
}

func newCopies(a *analysis) *copies {
	return &copies{a: a, rows: map[copyKey]*copyRow{}, next: math.MaxUint64}
}

// keyOf leaves out what has no name, so that there are not more rows than names.
func keyOf(ret int32) copyKey {
	return copyKey(
		int32(cuda.CopyKind(ret).Known()) | int32(cuda.MemoryKind(ret>>8).Known())<<8 |
			int32(cuda.MemoryKind(ret>>16).Known())<<16 | ret&(1<<24),
	)
}

// kernel notes that a kernel ran.
func (c *copies) kernel(act *timeline.Activity) {
	if act.End > c.end {
		c.busy += act.End - max(c.end, act.Start)
		c.end = act.End
	}
}

// ran returns for how long kernels ran before a time, where all kernels have come that began before it, and no other.
func (c *copies) ran(at uint64) uint64 { return c.busy - (max(c.end, at) - at) }

// before closes the stretches that ended before the next activity begins.
func (c *copies) before(at uint64) {
	if at < c.next {
		return
	}
	c.next = math.MaxUint64
	left := c.open[:0]
	for _, r := range c.open {
		if r.all.end <= at {
			r.under += c.ran(r.all.end)
			r.open = false
			continue
		}
		left = append(left, r)
		c.next = min(c.next, r.all.end)
	}
	c.open = left
}

// finish closes all that is open: the device has done nothing more.
func (c *copies) finish() {
	c.before(math.MaxUint64)
	c.busy, c.end, c.setTime = 0, 0, union{}
	for _, r := range c.rows {
		r.all = union{}
	}
}

func (c *copies) add(act *timeline.Activity) {
	e := &c.a.t.Rec.Events[act.Event]
	key := keyOf(e.Ret)
	r := c.rows[key]
	if r == nil {
		r = &copyRow{Copy: Copy{
			Direction:   cuda.CopyKind(key).String(),
			Source:      cuda.MemoryKind(key >> 8).String(),
			Destination: cuda.MemoryKind(key >> 16).String(),
			Async:       key>>24&1 != 0,
		}}
		c.rows[key] = r
	}
	r.Count++
	r.Bytes += e.Args[2]
	r.Summed += e.Dur
	r.Longest = max(r.Longest, e.Dur)
	from, to := r.all.add(act.Start, act.End)
	r.Time += to - from
	if from < to && !r.open { // else it makes the open stretch longer
		r.under -= c.ran(from)
		r.open = true
		c.open = append(c.open, r)
	}
	if from < to {
		c.next = min(c.next, to)
	}
}

func (c *copies) set(act *timeline.Activity) {
	e := &c.a.t.Rec.Events[act.Event]
	c.sets.Count++
	c.sets.Bytes += e.Args[2]
	from, to := c.setTime.add(act.Start, act.End)
	c.sets.Time += to - from
}

func (c *copies) result(cover Coverage) ([]Copy, sets) {
	rows := []Copy{}
	for _, r := range c.rows {
		r.Coverage, r.Exposed = cover, r.Time-r.under
		r.Bandwidth, r.Each = share(r.Bytes, r.Time)*1e9, share(r.Bytes, r.Summed)*1e9
		r.Hidden = share(r.Time-r.Exposed, r.Time)
		rows = append(rows, r.Copy)
	}
	return top(rows, len(rows), func(x, y *Copy) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.Direction, y.Direction),
			cmp.Compare(x.Source, y.Source), cmp.Compare(x.Destination, y.Destination), compareBool(x.Async, y.Async))
	}), c.sets
}

func compareBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return 1
	}
	return -1
}
