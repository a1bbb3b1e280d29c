package gpu

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/timeline"
)

// copies makes the table of copies, and counts sets.
type copies struct {
	a       *analysis
	rows    map[copyKey]*copyRow
	kernels timeline.Spans // when kernels ran on the device whose copies come
	sets    Sets
	setTime union
}

// copyKey is Ret of a copy's event: direction, kinds of memory, asynchronous or not.
type copyKey int32

type copyRow struct {
	Copy
	all union
	at  int // into kernels
}

func newCopies(a *analysis) *copies { return &copies{a: a, rows: map[copyKey]*copyRow{}} }

// device begins with the copies of another device.
func (c *copies) device(dev *timeline.Device) {
	c.kernels, c.setTime = c.kernels[:0], union{}
	for _, r := range c.rows {
		r.all, r.at = union{}, 0
	}
	for i := dev.First; i < dev.Last; i++ {
		act := &c.a.t.Activities[i]
		if act.Kind != timeline.Kernel || act.Start == act.End {
			continue
		}
		if n := len(c.kernels); n > 0 && act.Start <= c.kernels[n-1].To {
			c.kernels[n-1].To = max(c.kernels[n-1].To, act.End)
			continue
		}
		c.kernels = append(c.kernels, timeline.Span{From: act.Start, To: act.End})
	}
}

func (c *copies) add(act *timeline.Activity) {
	e := &c.a.t.Rec.Events[act.Event]
	key := copyKey(e.Ret & 0x1ffffff)
	r := c.rows[key]
	if r == nil {
		r = &copyRow{Copy: Copy{
			Direction: direction(uint8(e.Ret)), Source: memory(uint8(e.Ret >> 8)), Destination: memory(uint8(e.Ret >> 16)), Async: e.Ret>>24&1 != 0,
		}}
		c.rows[key] = r
	}
	r.Count++
	r.Bytes += e.Args[2]
	r.Summed += e.Dur
	r.Longest = max(r.Longest, e.Dur)
	from, to := r.all.add(act.Start, act.End)
	r.Time += to - from
	r.Exposed += to - from - c.under(r, from, to)
}

// under returns for how much of [from, to) a kernel ran. The intervals of a row come in order.
func (c *copies) under(r *copyRow, from, to uint64) uint64 {
	for r.at < len(c.kernels) && c.kernels[r.at].To <= from {
		r.at++
	}
	n := uint64(0)
	for i := r.at; i < len(c.kernels) && c.kernels[i].From < to; i++ {
		n += min(to, c.kernels[i].To) - max(from, c.kernels[i].From)
	}
	return n
}

func (c *copies) set(act *timeline.Activity) {
	e := &c.a.t.Rec.Events[act.Event]
	c.sets.Count++
	c.sets.Bytes += e.Args[2]
	from, to := c.setTime.add(act.Start, act.End)
	c.sets.Time += to - from
}

func (c *copies) result(cover Coverage) ([]Copy, Sets) {
	rows := []Copy{}
	for _, r := range c.rows {
		r.Coverage = cover
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

// direction names a CUpti_ActivityMemcpyKind: CUPTI reference, "Activity API".
func direction(kind uint8) string {
	names := [...]string{"unknown", "H2D", "D2H", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "D2D", "H2H", "peer"}
	if int(kind) < len(names) {
		return names[kind]
	}
	return names[0]
}

// memory names a CUpti_ActivityMemoryKind: CUPTI reference, "Activity API".
func memory(kind uint8) string {
	names := [...]string{"unknown", "pageable", "pinned", "device", "array", "managed", "device static", "managed static"}
	if int(kind) < len(names) {
		return names[kind]
	}
	return names[0]
}
