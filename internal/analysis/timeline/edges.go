package timeline

import (
	"cmp"
	"slices"
)

// longWait is from when on the first kernel of a stream in a window must have waited for work that
// was launched before the window, ns: with an empty queue a kernel begins 7 to 13 µs after its launch (H200).
const longWait = 100_000

// markUncertainEdges finds where windows began or ended while the GPU ran work that is not in their records: a gap
// there may be busy time.
func (b *builder) markUncertainEdges() {
	unsure := make([][]Span, len(b.t.Seen))
	for p := range b.t.Seen {
		for _, w := range b.t.Seen[p].Activity {
			if end := b.head(int32(p), w); end > w.From {
				unsure[p] = append(unsure[p], Span{w.From, end})
			}
		}
	}
	b.tails(unsure)
	for p := range unsure {
		b.t.Seen[p].Unsure = Join(unsure[p]).Both(b.t.Seen[p].Activity)
	}
}

// head returns until when a window could have had work that was launched before it.
func (b *builder) head(p int32, w Span) uint64 {
	first, held, earliest := w.To, w.From, None
	for s := range b.t.Streams {
		if b.t.Streams[s].Process != p {
			continue
		}
		list := b.of(int32(s))
		i := list.search(func(activity int32) bool { return b.t.Activities[activity].Start < w.From })
		if i == list.n || b.t.Activities[list.at(i)].Start >= w.To {
			continue
		}
		act := &b.t.Activities[list.at(i)]
		if act.Start < first {
			first, earliest = act.Start, list.at(i)
		}
		if act.Op != None && act.Start > b.t.Ops[act.Op].Start+longWait {
			held = max(held, act.Start)
		}
	}
	if _, imported := b.t.Rec.Meta.ImportedFrom(); imported && earliest != None && b.prompt(&b.t.Activities[earliest]) {
		return w.From
	}
	return b.settled(p, w, first, held)
}

// prompt reports whether an activity began right after its launch: nothing was before it in its stream, and a tool that
// records from its start to its end has nothing that it launched before. A stream that starts later than the first one
// waits for that one's work, as communication does, and not for unrecorded work.
func (b *builder) prompt(act *Activity) bool {
	return act.Op != None && act.Start <= b.t.Ops[act.Op].End()+longWait
}

// settled cuts the doubt at the first return of a call that waited for everything. A window without any
// activity is doubted as long as a thread waited for the GPU.
func (b *builder) settled(p int32, w Span, first, held uint64) uint64 {
	end := max(first, held)
	waited := false
	list := b.waiting(p)
	for _, c := range list.from(b.t, w.From) {
		o := &b.t.Ops[c]
		if o.Start >= end {
			break
		}
		if o.End() > w.From {
			waited = true
			if b.classes[o.Func].whole() && o.End() < end {
				end = o.End()
			}
		}
	}
	if first == w.To && !waited {
		return w.From
	}
	return end
}

// whole reports whether a synchronizing call waits for all the work of a context.
func (c *class) whole() bool {
	return c.group == "sync" &&
		(c.stem == "CtxSynchronize" || c.stem == "CtxSynchronize_v2" || c.stem == "DeviceSynchronize" ||
			c.stem == "ThreadSynchronize")
}

// waits are calls by Start.
type waits struct {
	ops     []int32
	longest uint64 // ns
}

// from returns the calls that can have been under way at a time, and all later ones.
func (w *waits) from(t *Timeline, at uint64) []int32 {
	i, _ := slices.BinarySearchFunc(w.ops, at-min(at, w.longest),
		func(op int32, at uint64) int { return cmp.Compare(t.Ops[op].Start, at) })
	return w.ops[i:]
}

// waiting returns the timed synchronizing calls of a process, by Start.
func (b *builder) waiting(p int32) *waits {
	if b.waits == nil {
		b.waits = map[int32]*waits{}
		for i, marks := range b.marks {
			b.addWaits(b.t.Threads[i].Process, marks)
		}
		for _, list := range b.waits {
			if !slices.IsSortedFunc(list.ops, b.byStart) {
				slices.SortStableFunc(list.ops, b.byStart)
			}
		}
	}
	if w := b.waits[p]; w != nil {
		return w
	}
	return &waits{}
}

func (b *builder) addWaits(process int32, marks []int32) {
	w := b.waits[process]
	if w == nil {
		w = &waits{}
		b.waits[process] = w
	}
	for _, op := range marks {
		if o := &b.t.Ops[op]; o.Timed && o.Via != Twin && b.waitable(o) {
			w.ops = append(w.ops, op)
			w.longest = max(w.longest, o.Dur)
		}
	}
}

// waitable reports whether a call can wait for the GPU.
func (b *builder) waitable(o *Op) bool {
	g := b.classes[o.Func].group
	return g == "sync" || g == "copy"
}

func (b *builder) byStart(x, y int32) int {
	return cmp.Or(cmp.Compare(b.t.Ops[x].Start, b.t.Ops[y].Start), cmp.Compare(x, y))
}

// tails finds for each window the launches at its end that have no activity: they ran,
// or waited to, when the window was over.
func (b *builder) tails(unsure [][]Span) {
	for p, windows := range b.tables.windows {
		for i, w := range windows {
			if from := b.tail(int32(p), b.tables.base[p]+int32(i)); from < w.To {
				unsure[p] = append(unsure[p], Span{from, w.To})
			}
		}
	}
}

// tail returns when the first of the launches was that the agent saw at the end of a window after
// the last call with an activity.
func (b *builder) tail(p, table int32) uint64 {
	from := ^uint64(0)
	if b.tables.list[table].n == 0 {
		return from
	}
	first, end := b.tables.span(p, table)
	b.backwards(p, first, end, func(o *Op) bool {
		if o.Start > b.latest[table] && b.classes[o.Func].starts == launches {
			from = min(from, o.Start)
		}
		return o.Start > b.latest[table]
	})
	return from
}

// backwards visits the calls that the agent saw in each thread of a process at [from, to], the last first, until
// visit says no.
func (b *builder) backwards(p int32, from, to uint64, visit func(o *Op) bool) {
	first, _ := slices.BinarySearchFunc(b.t.Threads, p,
		func(th Thread, p int32) int { return cmp.Compare(th.Process, p) })
	for i := first; i < len(b.t.Threads) && b.t.Threads[i].Process == p; i++ {
		th := &b.t.Threads[i]
		ops := b.t.Ops[th.First:th.Last]
		n, _ := slices.BinarySearchFunc(ops, to, func(o Op, to uint64) int {
			if o.Start <= to {
				return -1
			}
			return 1
		})
		for n--; n >= 0 && ops[n].Start >= from; n-- {
			if ops[n].Via != Probe && !visit(&ops[n]) {
				break
			}
		}
	}
}
