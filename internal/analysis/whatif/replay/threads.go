package replay

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// threads makes the nodes of all threads.
func (b *builder) threads() {
	made := make([]bool, len(b.lanes))
	for i := range b.t.Threads {
		th := &b.t.Threads[i]
		l := b.laneOf[tid{b.t.Processes[th.Process].PID, th.TID}]
		made[l] = true
		w := b.writer(l, b.t.Processes[th.Process].PID, th.TID)
		w.ops(th)
	}
	for i := range b.ths {
		if !made[i] {
			w := b.writer(int32(i), b.ths[i].PID, b.ths[i].TID)
			w.stretch(b.span.To)
		}
	}
}

// writer writes the nodes of one thread from left to right.
type writer struct {
	b         *builder
	lane      int32
	l         *lane
	pid, tid  uint32
	intervals []threads.Interval // what is left of them
	known     bool               // its scheduling was recorded
	cuts      []uint64           // what is left of them
	burst     []timeline.Span    // what is left of them: see bursts
	reading   []timeline.Span    // what is left of them: see reads
	rowSpans  []rowSpan          // what is left of them: see rows
	pos       uint64             // ns: everything before it is written
	limit     uint64             // ns: where the stretch ends that is being written
	polls     bool               // that stretch lies between two looks whether a GPU is done
}

func (b *builder) writer(l int32, pid, id uint32) *writer {
	w := &writer{b: b, lane: l, l: &b.lanes[l], pid: pid, tid: id, pos: b.span.From, cuts: b.lanes[l].cuts}
	if int(l) < len(b.ths) {
		w.intervals, w.known = b.clipped(&b.ths[l]), true
	}
	return w
}

// usualNodes is how many nodes a call makes, with what its thread did before it: in an eager loop a call and computing.
const usualNodes = 3

// callsOf returns the outermost calls of a thread that touch the span.
func (b *builder) callsOf(th *timeline.Thread) []int32 {
	var out []int32
	for i := th.First; i < th.Last && b.t.Ops[i].Start < b.span.To; i++ {
		if o := &b.t.Ops[i]; o.Outer() && b.touches(o) {
			out = append(out, i)
		}
	}
	return out
}

// ops writes a thread that makes calls.
func (w *writer) ops(th *timeline.Thread) {
	mine := w.b.callsOf(th)
	w.burst, w.reading, w.rowSpans = w.bursts(mine), w.reads(mine), w.rows(mine)
	w.l.nodes, w.l.refs = slices.Grow(w.l.nodes, usualNodes*len(mine)), slices.Grow(w.l.refs, usualNodes*len(mine))
	polled := false
	for _, i := range mine {
		o := &w.b.t.Ops[i]
		polls := w.b.isQuery(o)
		w.polls = polled && polls
		w.stretch(o.Start)
		w.polls, polled = false, polls
		w.l.worker = true
		w.call(i, o)
	}
	w.stretch(w.b.span.To)
}

// call writes one call. What it asks of a GPU is asked when the node before it ends.
func (w *writer) call(i int32, o *timeline.Op) {
	if len(w.l.nodes) == 0 {
		w.add(node{at: w.pos}, What{Kind: Call, Name: "begin"}, certain, noRef())
	}
	w.b.launched[i] = place{w.lane, int32(len(w.l.nodes) - 1)}
	end := min(max(o.End(), w.pos), w.b.span.To)
	what, d := w.b.name.Call(i)
	if s, ok := w.b.syncs[i]; ok {
		what.Kind = Sync
		r := w.b.awaited(&w.b.t.Syncs[s], w.pos, end)
		back := end
		if r.act != noNode && !r.idle {
			back = w.back(w.b.t.Activities[r.act].End, end)
		}
		w.add(node{at: back}, what, d, r)
		w.skip(back)
	}
	what.Kind = Call
	if load := w.loaded(i, &what); load > w.pos && load < end {
		w.inCall(load, what, d)
		w.b.launched[i] = place{w.lane, int32(len(w.l.nodes) - 1)}
	}
	w.inCall(end, what, d)
	w.skip(end)
}

// loaded returns when a call that makes code or a graph ready before it launches has done so, in ns; 0 for other calls.
// The GPU begins that much later because of it.
func (w *writer) loaded(i int32, what *What) uint64 {
	a, ok := w.b.asks[i]
	if !ok || what.Cause != cause.Compilation || a.begun < usualLaunch {
		return 0
	}
	return a.begun - usualLaunch
}

// back returns when a thread that waited for a GPU until a time, and returned at end, could have returned: where it had
// no CPU meanwhile, that is not the waiting's.
func (w *writer) back(until, end uint64) uint64 {
	until = max(until, w.pos)
	if until >= end {
		return end
	}
	if iv := w.late(until, end); iv != nil {
		return max(until, iv.From)
	}
	return end
}

// inCall writes the time in a call up to its end: what of it the thread had no CPU is not the call's.
func (w *writer) inCall(end uint64, what What, d Doubt) {
	for w.pos < end {
		iv := w.late(w.pos, end)
		if iv == nil {
			w.fixed(end, what, d)
			return
		}
		if iv.From > w.pos {
			w.fixed(iv.From, what, d)
		}
		w.ready(iv, min(iv.To, end))
	}
}

// late returns the first interval that touches [from, to) in which the thread had no CPU, and was not just waking up;
// nil where there is none.
func (w *writer) late(from, to uint64) *threads.Interval {
	for len(w.intervals) > 0 && w.intervals[0].To <= w.pos {
		w.intervals = w.intervals[1:]
	}
	for i := range w.intervals {
		iv := &w.intervals[i]
		if iv.From >= to {
			break
		}
		if iv.To > from && iv.State == threads.Runnable && !w.b.name.WakingUp(iv) {
			return iv
		}
	}
	return nil
}

// stretch writes what the thread did between calls, up to a time.
func (w *writer) stretch(to uint64) {
	to = min(to, w.b.span.To)
	w.limit = to
	for w.pos < to {
		if len(w.intervals) == 0 {
			w.run(to, !w.known)
			return
		}
		iv := &w.intervals[0]
		if iv.To <= w.pos {
			w.intervals = w.intervals[1:]
			continue
		}
		if iv.From > w.pos {
			w.run(min(iv.From, to), true)
			continue
		}
		w.interval(iv, min(iv.To, to))
	}
}

// interval writes the part of an interval up to a time.
func (w *writer) interval(iv *threads.Interval, to uint64) {
	switch iv.State {
	case threads.Running:
		w.run(to, true)
	case threads.Runnable:
		w.ready(iv, to)
	case threads.Blocked:
		w.blocked(iv, to)
	default:
		w.fixed(to, What{Kind: External, Name: Absent}, certain)
	}
}

// ready writes a time without a CPU, up to a time.
func (w *writer) ready(iv *threads.Interval, to uint64) {
	until, what, d := w.b.name.Ready(iv)
	what.Kind = Ready
	if n := len(w.l.nodes); n > 0 && !what.Ousted && w.l.nodes[n-1].at == w.pos {
		switch last := w.l.nodes[n-1].what; w.b.g.Whats[last].Kind {
		case Wait, External, Sync:
			what.Woken = last + 1
		case Ready:
			what.Woken = w.b.g.Whats[last].Woken
		}
	}
	if until > w.pos && until < to {
		w.fixed(until, what, d)
	}
	what.Beyond = until < to
	w.fixed(to, what, d)
}

// blocked writes a wait. Waking up belongs to it: who need not wait need not wake up.
func (w *writer) blocked(iv *threads.Interval, to uint64) {
	what, d := w.b.name.Blocked(iv)
	l, at, ok := w.b.waited(w.lane, iv)
	whole, last := to == iv.To, 0
	if !ok && whole && what.Cause == cause.GIL {
		if g, known := w.granted(); known {
			last, l, at, ok = int(g.last), g.lane, g.at, true
			to = w.intervals[last].To
		}
	}
	if whole && len(w.intervals) > last+1 {
		if next := &w.intervals[last+1]; next.State == threads.Runnable && next.Wait == w.intervals[last].Wait &&
			next.To <= w.limit && w.b.name.WakingUp(next) {
			to = next.To
		}
	}
	if !ok || !whole {
		what.Kind = External
		r := noRef()
		if what.Polls = w.polls && what.Cause == cause.Sleep; what.Polls {
			r.act = w.b.endedWithin(w.pid, w.pos, to)
		} else if e, asked := w.b.awaitedAsleep(w.lane, iv); asked && whole && what.Cause == cause.Sleep {
			what.Polls, what.Asked = true, true
			r.lane, r.at = e.lane, e.done
		}
		w.add(node{at: to, own: to - w.pos}, what, d, r)
		w.pos = to
		return
	}
	what.Kind = Wait
	r := noRef()
	r.lane, r.at, r.slept = l, at, to-w.pos
	w.b.g.awaited[w.b.lanes[l].id] += r.slept
	w.add(node{at: to}, what, d, r)
	w.skip(to)
}

func (w *writer) fixed(to uint64, what What, d Doubt) {
	w.add(node{at: to, own: to - w.pos}, what, d, noRef())
	w.pos = to
}

// run writes computing, in a node for each thing that was computed, cut where the thread woke another one.
func (w *writer) run(to uint64, named bool) {
	if !named {
		w.fixed(to, What{Kind: External, Name: "not recorded"}, Guess)
		return
	}
	w.b.name.Running(w.pid, w.tid, w.pos, to, func(end uint64, what What, d Doubt) {
		what.Kind = Run
		for len(w.cuts) > 0 && w.cuts[0] < end {
			if w.cuts[0] > w.pos {
				w.fixed(w.cuts[0], what, d)
			}
			w.cuts = w.cuts[1:]
		}
		if end > w.pos {
			w.fixed(end, what, d)
		}
	})
}

// skip moves on to a time that is written.
func (w *writer) skip(to uint64) {
	w.pos = max(w.pos, to)
	for len(w.cuts) > 0 && w.cuts[0] <= w.pos {
		w.cuts = w.cuts[1:]
	}
}

func (w *writer) add(n node, what What, d Doubt, r ref) {
	if what.Kind != Kernel && what.Kind != Copy {
		what.PID, what.TID = w.pid, w.tid
		what.Burst, what.Reads = within(&w.burst, w.pos), what.Kind == Run && within(&w.reading, w.pos)
		what.Row = w.row()
	}
	n.what = w.b.what(what, n.own+r.slept, d)
	n.prev, n.dep = noNode, noNode
	w.l.nodes = append(w.l.nodes, n)
	w.l.refs = append(w.l.refs, r)
}
