package timeline

import (
	"cmp"
	"slices"
)

// idTables find calls by correlation id. An id is unique in one window of one process
// only: each window is a subscription of its own, and CUPTI may count anew in it.
type idTables struct {
	windows [][]Span   // of each process
	bounds  [][]uint64 // of each process: times that part what belongs to one window from what belongs to the next
	base    []int32    // of each process: place of its first window in list
	list    []idTable
	calls   []agentCall // grouped by table; those of a table are calls[first:last]
}

// idTable has the ids of one window.
type idTable struct {
	first, last int32
	least       uint32  // id of dense[0]
	dense       []int32 // op by id, None; nil where ids are too far apart or not unique: then calls are sorted by id
	groups      groups  // of the calls
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

// newTables makes the tables of the calls that the agent saw.
func (b *gpuBuilder) newTables() idTables {
	x := idTables{windows: make([][]Span, len(b.t.Processes)), bounds: make([][]uint64, len(b.t.Processes)), base: make([]int32, len(b.t.Processes))}
	for _, w := range b.meta().Windows {
		if p, _, _ := b.a.process(w.PID, w.From); w.Activity {
			x.windows[p] = append(x.windows[p], Span{w.From, w.To})
		}
	}
	total := int32(0)
	for p := range x.windows {
		slices.SortFunc(x.windows[p], func(v, w Span) int { return cmp.Compare(v.From, w.From) })
		x.bounds[p] = between(x.windows[p])
		x.base[p] = total
		total += int32(max(1, len(x.windows[p])))
	}
	x.list = make([]idTable, total)
	b.fill(&x)
	for i := range x.list {
		x.list[i].index(x.calls, b.t.Ops)
	}
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

// table returns the place of the table of process p at a time.
func (x *idTables) table(p int32, ts uint64) int32 {
	if int(p) >= len(x.base) {
		return None
	}
	i, _ := slices.BinarySearch(x.bounds[p], ts)
	return x.base[p] + int32(i)
}

// fill gathers the calls that the agent saw, grouped by table.
func (b *gpuBuilder) fill(x *idTables) {
	var found []agentCall
	for i := range b.t.Threads {
		th := &b.t.Threads[i]
		for op := th.First; op < th.Last; op++ {
			o := &b.t.Ops[op]
			if o.Via == Probe {
				continue
			}
			table := x.table(th.Process, o.Start)
			if table == None {
				continue
			}
			found = append(found, agentCall{table, uint32(b.t.RawEvent(o).Ret), op})
			x.list[table].last++
			x.list[table].groups |= groupOf(&b.classes[o.Func])
		}
	}
	next := make([]int32, len(x.list))
	sum := int32(0)
	for i := range x.list {
		next[i] = sum
		sum += x.list[i].last
		x.list[i].first, x.list[i].last = next[i], sum
	}
	x.calls = make([]agentCall, len(found))
	for _, c := range found {
		x.calls[next[c.table]] = c
		next[c.table]++
	}
}

// index makes a table searchable. Ids are given out in order, and most calls have
// one, so that nearly always a plain array will do.
func (d *idTable) index(calls []agentCall, ops []Op) {
	mine := calls[d.first:d.last]
	if len(mine) == 0 {
		return
	}
	least, most := mine[0].id, mine[0].id
	for _, c := range mine {
		least, most = min(least, c.id), max(most, c.id)
	}
	if int(most-least) < 16*len(mine)+1024 && d.indexDense(mine, least, most) {
		return
	}
	slices.SortFunc(mine, func(x, y agentCall) int {
		return cmp.Or(cmp.Compare(x.id, y.id), cmp.Compare(ops[x.op].Start, ops[y.op].Start), cmp.Compare(x.op, y.op))
	})
}

// indexDense fills the array, and gives up where an id comes twice.
func (d *idTable) indexDense(mine []agentCall, least, most uint32) bool {
	dense := make([]int32, int(most-least)+1)
	for i := range dense {
		dense[i] = None
	}
	for _, c := range mine {
		if dense[c.id-least] != None {
			return false
		}
		dense[c.id-least] = c.op
	}
	d.least, d.dense = least, dense
	return true
}

// find returns the op of process p with an id whose activity began at ts, None where there is none.
func (x *idTables) find(p int32, id uint32, ts uint64, ops []Op) int32 {
	table := x.table(p, ts)
	if table == None || id == 0 {
		return None
	}
	d := &x.list[table]
	if d.dense != nil {
		if i := id - d.least; uint64(i) < uint64(len(d.dense)) {
			return d.dense[i]
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
