package timeline

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
)

// idTables find calls by correlation id. An id is unique in one window of one process
// only: each window is a subscription of its own, and CUPTI may count anew in it.
type idTables struct {
	windows [][]Span   // of each process
	bounds  [][]uint64 // of each process: times that part what belongs to one window from what belongs to the next
	base    []int32    // of each process: place of its first window in list
	list    []idTable
	calls   []agentCall // of the tables without dense, grouped by table: those of a table are calls[first:last]
}

// idTable has the ids of one window.
type idTable struct {
	tally
	// op + 1 by id, 0 for none; dense[0] is of the least id; nil where ids are too far apart, or not unique
	dense       []int32
	twice       atomic.Bool // an id came twice
	first, last int32
}

// tally counts the calls of a table.
type tally struct {
	n           int32
	least, most uint32 // ids
	groups      groups // of the calls
}

func (c *tally) add(id uint32, g groups) {
	if c.n == 0 {
		c.least, c.most = id, id
	}
	c.n++
	c.least, c.most = min(c.least, id), max(c.most, id)
	c.groups |= g
}

func (c *tally) addAll(o *tally) {
	if o.n == 0 {
		return
	}
	c.add(o.least, o.groups)
	c.add(o.most, 0)
	c.n += o.n - 2
}

// agentCall is a call that the agent saw.
type agentCall struct {
	table int32
	id    uint32
	op    int32
}

// groups are the kinds of calls that start something on a GPU.
type groups uint8

const (
	launches groups = 1 << iota
	copies
	sets
)

// groupOf returns what a call of a function starts, 0 for nothing.
func groupOf(c *class) groups {
	switch {
	case c.group == "launch", c.group == "graph" && c.stem == "GraphLaunch":
		return launches
	case c.group == "copy":
		return copies
	case c.group == "set":
		return sets
	}
	return 0
}

// newTables makes the tables, without calls.
func (b *builder) newTables() idTables {
	n := len(b.t.Processes)
	x := idTables{windows: make([][]Span, n), bounds: make([][]uint64, n), base: make([]int32, n)}
	for _, w := range b.meta().Windows {
		if p := b.processes.process(w.PID, w.From); w.Activity {
			x.windows[p] = append(x.windows[p], Span{w.From, w.To})
		}
	}
	total := int32(0)
	for p := range x.windows {
		slices.SortFunc(x.windows[p],
			func(v, w Span) int { return cmp.Or(cmp.Compare(v.From, w.From), cmp.Compare(v.To, w.To)) })
		x.bounds[p] = between(x.windows[p])
		x.base[p] = total
		total += int32(max(1, len(x.windows[p])))
	}
	x.list = make([]idTable, total)
	return x
}

// between returns the times halfway from each window to the next: the edges of windows
// are not as exact as the times of records.
func between(windows []Span) []uint64 {
	var out []uint64
	for i := 1; i < len(windows); i++ {
		to, from := windows[i-1].To, windows[i].From
		if to >= from {
			out = append(out, from)
			continue
		}
		out = append(out, to+(from-to)/2)
	}
	return out
}

// table returns the place of the table of process p at a time, None where it has none.
func (x *idTables) table(p int32, ts uint64) int32 { return x.at(&tableAt{}, p, ts) }

// tableAt is the table that one process has at [from, to].
type tableAt struct {
	known    bool
	table    int32
	from, to uint64 // ns
}

// at is table for many times of one process, which mostly have the same one.
func (x *idTables) at(near *tableAt, p int32, ts uint64) int32 {
	if near.known && ts >= near.from && ts <= near.to {
		return near.table
	}
	if p == None || int(p) >= len(x.base) {
		return None
	}
	i, _ := slices.BinarySearch(x.bounds[p], ts)
	near.known, near.table = true, x.base[p]+int32(i)
	near.from, near.to = x.span(p, near.table)
	return near.table
}

// span returns the times, both inclusive, of the calls of a table.
func (x *idTables) span(p, table int32) (from, to uint64) {
	bounds, i := x.bounds[p], int(table-x.base[p])
	to = math.MaxUint64
	if i > 0 {
		from = bounds[i-1] + 1
	}
	if i < len(bounds) {
		to = bounds[i]
	}
	return from, to
}

// maxSparsity is how many ids a table may have for each of its calls: CUPTI gives one to each call of the
// runtime and of the driver, few of which start something.
const maxSparsity = 16

// size makes the arrays of the tables for the calls that were counted. Ids are assigned in order, so a plain array
// is nearly always enough.
func (x *idTables) size(scans []*scan) {
	for i := range x.list {
		d := &x.list[i]
		for _, s := range scans {
			d.addAll(&s.tallies[i])
		}
		if d.n > 0 && uint64(d.most-d.least) < maxSparsity*uint64(d.n)+1024 {
			d.dense = make([]int32, uint64(d.most-d.least)+1)
		}
	}
}

// put notes the op of a call. Several goroutines may put at once.
func (d *idTable) put(id uint32, op int32) {
	if d.dense != nil && !atomic.CompareAndSwapInt32(&d.dense[id-d.least], 0, op+1) {
		d.twice.Store(true)
	}
}

// again notes the calls of a thread whose ops have moved.
func (x *idTables) again(t *Timeline, th *Thread) {
	var near tableAt
	for op := th.First; op < th.Last; op++ {
		o := &t.Ops[op]
		if o.Via == Probe {
			continue
		}
		if table := x.at(&near, th.Process, o.Start); table != None && x.list[table].dense != nil {
			d := &x.list[table]
			d.dense[uint32(t.RawEvent(o).Ret)-d.least] = op + 1
		}
	}
}

// finish makes lists for the tables that do not fit an array.
func (x *idTables) finish(t *Timeline) {
	sparse := false
	for i := range x.list {
		d := &x.list[i]
		if d.twice.Load() {
			d.dense = nil
		}
		sparse = sparse || d.n > 0 && d.dense == nil
	}
	if !sparse {
		return
	}
	for i := range t.Threads {
		x.gather(t, &t.Threads[i])
	}
	slices.SortFunc(x.calls, func(v, w agentCall) int {
		return cmp.Or(
			cmp.Compare(v.table, w.table),
			cmp.Compare(v.id, w.id),
			cmp.Compare(t.Ops[v.op].Start, t.Ops[w.op].Start),
			cmp.Compare(v.op, w.op),
		)
	})
	for i, c := range x.calls {
		d := &x.list[c.table]
		if d.last == 0 {
			d.first = int32(i)
		}
		d.last = int32(i) + 1
	}
}

func (x *idTables) gather(t *Timeline, th *Thread) {
	var near tableAt
	for op := th.First; op < th.Last; op++ {
		o := &t.Ops[op]
		if o.Via == Probe {
			continue
		}
		if table := x.at(&near, th.Process, o.Start); table != None && x.list[table].dense == nil {
			x.calls = append(x.calls, agentCall{table, uint32(t.RawEvent(o).Ret), op})
		}
	}
}

// find returns the op of a table with an id whose activity began at ts, None where there is none.
func (x *idTables) find(table int32, id uint32, ts uint64, ops []Op) int32 {
	if table == None || id == 0 {
		return None
	}
	d := &x.list[table]
	if d.dense != nil {
		if i := id - d.least; uint64(i) < uint64(len(d.dense)) {
			return d.dense[i] - 1
		}
		return None
	}
	mine := x.calls[d.first:d.last]
	i, ok := slices.BinarySearchFunc(mine, id, func(c agentCall, id uint32) int { return cmp.Compare(c.id, id) })
	if !ok {
		return None
	}
	for i+1 < len(mine) && mine[i+1].id == id && ops[mine[i+1].op].Start <= ts {
		i++
	}
	return mine[i].op
}
