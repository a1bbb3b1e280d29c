package timeline

import "slices"

// longWait is from when on the first kernel of a stream in a window must have waited for work that
// was launched before the window, ns: with an empty queue a kernel begins 7 to 13 µs after its launch (H200).
const longWait = 100_000

// doubtEdges finds where windows began or ended with work on the GPU that is not in
// their records: a gap there can be busy.
func (b *gpuBuilder) doubtEdges() {
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
func (b *gpuBuilder) head(p int32, w Span) uint64 {
	first, held := w.To, w.From
	for s := range b.t.Streams {
		if b.t.Streams[s].Process != p {
			continue
		}
		list := b.of(int32(s))
		i, _ := slices.BinarySearchFunc(list, w.From, func(i int32, from uint64) int {
			if b.t.Activities[i].Start < from {
				return -1
			}
			return 1
		})
		if i == len(list) || b.t.Activities[list[i]].Start >= w.To {
			continue
		}
		act := &b.t.Activities[list[i]]
		first = min(first, act.Start)
		if act.Op != None && act.Start > b.t.Ops[act.Op].Start+longWait {
			held = max(held, act.Start)
		}
	}
	return b.settled(p, w, first, held)
}

// settled cuts the doubt at the first return of a call that waited for everything. A window without any
// activity is doubted as long as a thread waited for the GPU.
func (b *gpuBuilder) settled(p int32, w Span, first, held uint64) uint64 {
	end := max(first, held)
	waited := false
	for _, c := range b.waiting(p) {
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

// whole says whether a synchronizing call waits for all the work of a context.
func (c *class) whole() bool {
	return c.group == "sync" && (c.stem == "CtxSynchronize" || c.stem == "CtxSynchronize_v2" || c.stem == "DeviceSynchronize" || c.stem == "ThreadSynchronize")
}

// waiting returns the timed synchronizing calls of a process, by Start.
func (b *gpuBuilder) waiting(p int32) []int32 {
	if b.waits == nil {
		b.waits = map[int32][]int32{}
		for i := range b.t.Threads {
			th := &b.t.Threads[i]
			for op := th.First; op < th.Last; op++ {
				if o := &b.t.Ops[op]; o.Timed && o.Via != Twin && b.waitable(o) {
					b.waits[th.Process] = append(b.waits[th.Process], op)
				}
			}
		}
		for _, list := range b.waits {
			slices.SortStableFunc(list, b.byStart)
		}
	}
	return b.waits[p]
}

// waitable says whether a call can wait for the GPU.
func (b *gpuBuilder) waitable(o *Op) bool {
	g := b.classes[o.Func].group
	return g == "sync" || g == "copy"
}

func (b *gpuBuilder) byStart(x, y int32) int {
	switch s, o := b.t.Ops[x].Start, b.t.Ops[y].Start; {
	case s < o:
		return -1
	case s > o:
		return 1
	}
	return int(x - y)
}

// tails finds for each window the launches at its end that have no activity: they ran,
// or waited to, when the window was over.
func (b *gpuBuilder) tails(unsure [][]Span) {
	linked := b.linked()
	for p, windows := range b.tables.windows {
		for i, w := range windows {
			d := &b.tables.list[b.tables.base[p]+int32(i)]
			last, from := uint64(0), w.To
			for _, c := range b.tables.calls[d.first:d.last] {
				if linked[c.op] {
					last = max(last, b.t.Ops[c.op].Start)
				}
			}
			for _, c := range b.tables.calls[d.first:d.last] {
				o := &b.t.Ops[c.op]
				if o.Start > last && !linked[c.op] && groupOf(&b.classes[o.Func]) == launches {
					from = min(from, o.Start)
				}
			}
			if from < w.To {
				unsure[p] = append(unsure[p], Span{from, w.To})
			}
		}
	}
}

// linked says of each op whether an activity is linked to it.
func (b *gpuBuilder) linked() []bool {
	linked := make([]bool, len(b.t.Ops))
	for i := range b.t.Activities {
		if op := b.t.Activities[i].Op; op != None {
			linked[op] = true
		}
	}
	return linked
}
