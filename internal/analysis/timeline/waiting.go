package timeline

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// waiting goes through the calls that wait, and those that make streams wait, in the order of time.
type waiting struct {
	b      *builder
	events map[eventKey]recorded
	copies []copied // by op
	told   []int32  // outermost ops of the syncs that CUPTI saw, sorted
	next   []int    // by stream: how many of its activities were asked for before the last call looked at
}

// copied is a copy with the outermost call that asked for it.
type copied struct{ op, activity int32 }

func newWaiting(b *builder) *waiting {
	w := &waiting{b: b, events: map[eventKey]recorded{}, next: make([]int, len(b.t.Streams))}
	for _, i := range b.t.Copies {
		if a := &b.t.Activities[i]; a.Op != None {
			w.copies = append(w.copies, copied{b.t.Outermost(a.Op), i})
		}
	}
	slices.SortFunc(w.copies,
		func(x, y copied) int { return cmp.Or(cmp.Compare(x.op, y.op), cmp.Compare(x.activity, y.activity)) })
	for i := range b.t.Syncs {
		if op := b.t.Syncs[i].Op; op != None {
			w.told = append(w.told, b.t.Outermost(op))
		}
	}
	slices.Sort(w.told)
	return w
}

func (w *waiting) take(m moment) {
	o := &w.b.t.Ops[m.op]
	c := &w.b.classes[o.Func]
	switch c.role {
	case recordsEvent:
		w.record(m)
	case waitsForEvent:
		w.waitForEvent(m)
	case runsHost:
		w.edge(m, Edge{From: None, Record: None, Kind: HostEdge})
	case waitsForMemory:
		w.edge(m, Edge{From: None, Record: None, Kind: memoryEdge})
	default:
		if o.Timed {
			w.sync(m, o, c)
		}
	}
}

func (w *waiting) record(m moment) {
	call := w.b.decoder.Decode(w.b.t.RawEvent(&w.b.t.Ops[m.op]))
	if stream, ok := w.b.handleOf(m.op, m.process); ok {
		w.events[eventKey{m.process, call.Handle}] = recorded{m.op, stream}
	}
}

// waitForEvent makes an edge, unless the event is of the same stream, whose work is in order anyway.
func (w *waiting) waitForEvent(m moment) {
	call := w.b.decoder.Decode(w.b.t.RawEvent(&w.b.t.Ops[m.op]))
	r, ok := w.events[eventKey{m.process, call.Handle}]
	key, named := w.b.handleOf(m.op, m.process)
	if !ok || !named || key == r.stream {
		return
	}
	from, _ := w.last(r.stream, w.b.t.Ops[r.op].Start)
	w.edge(m, Edge{From: from, Record: r.op, Kind: EventEdge})
}

// edge adds an edge to the first activity that was asked for after the call.
func (w *waiting) edge(m moment, e Edge) {
	key, ok := w.b.handleOf(m.op, m.process)
	if !ok {
		return
	}
	e.Wait, e.To = m.op, None
	at := w.b.t.Ops[m.op].Start
	for _, s := range w.b.handles[key] {
		list := w.b.of(s)
		if i := w.before(s, at); i < list.n &&
			(e.To == None || w.b.t.Activities[list.at(i)].Start < w.b.t.Activities[e.To].Start) {
			e.To = list.at(i)
		}
	}
	if e.To != None {
		w.b.t.Edges = append(w.b.t.Edges, e)
	}
}

// sync adds what a call waited for, unless CUPTI recorded it.
func (w *waiting) sync(m moment, o *Op, c *class) {
	if _, told := slices.BinarySearch(w.told, m.op); told || !w.b.t.Seen[m.process].Activity.Holds(o.End()) {
		return
	}
	s := Sync{
		Start:    o.Start,
		End:      o.End(),
		Process:  m.process,
		Op:       m.op,
		Activity: None,
		Stream:   None,
		Derived:  true,
	}
	known := false
	switch {
	case c.group == "copy":
		known = w.copySync(&s, m, o, c)
	case c.whole():
		s.Type, known = contextSync, true
		w.all(&s)
	case c.stem == "StreamSynchronize":
		s.Type = StreamSync
		known = w.streamSync(&s, m, o.Start)
	case c.stem == "EventSynchronize":
		s.Type, known = EventSync, true
		call := w.b.decoder.Decode(w.b.t.RawEvent(o))
		if r, ok := w.events[eventKey{m.process, call.Handle}]; ok {
			w.await(&s, r.stream, w.b.t.Ops[r.op].Start)
		}
	}
	if known {
		w.b.t.Syncs = append(w.b.t.Syncs, s)
	}
}

func (w *waiting) streamSync(s *Sync, m moment, at uint64) bool {
	if key, ok := w.b.handleOf(m.op, m.process); ok {
		w.await(s, key, at)
	}
	return true
}

// await notes what a sync waits for in a stream: what was asked of it before a time.
func (w *waiting) await(s *Sync, key handleKey, at uint64) {
	if list := w.b.handles[key]; len(list) > 0 {
		s.Stream = list[len(list)-1]
	}
	if act, end := w.last(key, at); act != None {
		w.done(s, act, end)
	}
}

// done notes what had to end, if it did so while the call waited.
func (w *waiting) done(s *Sync, act int32, end uint64) {
	s.Stream = w.b.t.Activities[act].Stream
	w.b.proveEnd(act, end, s)
	if end > s.Start && end <= plus(s.End, w.b.slack()) {
		s.Activity, s.Done = act, end
	}
}

// all notes the last activity of all streams of the process.
func (w *waiting) all(s *Sync) {
	first, last := w.b.streamsOf(s.Process)
	best, latest := None, uint64(0)
	for i := first; i < min(last, first+maxStreams); i++ {
		act, end := w.lastOf(i, s.Start)
		if act != None {
			w.b.proveEnd(act, end, s)
		}
		if act != None && (best == None || end > latest) {
			best, latest = act, end
		}
	}
	if best != None && latest > s.Start && latest <= plus(s.End, w.b.slack()) {
		s.Activity, s.Done = best, latest
	}
}

// copySync reports whether a copy held its caller until it was done: its name says so, or the call outlasted it.
// What its activity is comes from the link, else from the stream.
func (w *waiting) copySync(s *Sync, m moment, o *Op, c *class) bool {
	s.Type = CopySync
	i, found := slices.BinarySearchFunc(w.copies, m.op, func(x copied, op int32) int { return int(x.op - op) })
	if !found {
		if strings.Contains(c.stem, "Async") {
			return false
		}
		key, ok := w.b.handleOf(m.op, m.process)
		if ok {
			w.await(s, key, o.End())
		}
		return ok && s.Activity != None
	}
	for ; i < len(w.copies) && w.copies[i].op == m.op; i++ {
		a := &w.b.t.Activities[w.copies[i].activity]
		end := clampedEnd(&w.b.t.Rec.Events[a.Event])
		if end > s.Done && end > o.Start && end <= plus(o.End(), w.b.slack()) {
			s.Activity, s.Done, s.Stream = w.copies[i].activity, end, a.Stream
		}
	}
	return s.Activity != None
}

// last returns the last activity that was asked of a stream before a time, and when it ended.
func (w *waiting) last(key handleKey, at uint64) (act int32, end uint64) {
	act = None
	for _, s := range w.b.handles[key] {
		if a, e := w.lastOf(s, at); a != None && (act == None || e > end) {
			act, end = a, e
		}
	}
	return act, end
}

// lastOf is last for a stream of the timeline. The nodes of one graph end in any order.
func (w *waiting) lastOf(s int32, at uint64) (act int32, end uint64) {
	t, list := w.b.t, w.b.of(s)
	act = None
	i := w.before(s, at)
	for steps := 0; i > 0 && steps < maxSteps; steps++ {
		i--
		a := &t.Activities[list.at(i)]
		if act != None && a.Op != t.Activities[act].Op {
			break
		}
		if e := clampedEnd(&t.Rec.Events[a.Event]); act == None || e > end {
			act, end = list.at(i), e
		}
		if a.Op == None {
			break
		}
	}
	return act, end
}

// before returns how many activities of a stream were asked for before a time. Calls come in the order
// of time, or nearly so, so the last answer is a good hint.
func (w *waiting) before(s int32, at uint64) int {
	list := w.b.of(s)
	w.next[s] = gallop(list.n, w.next[s], func(i int) bool { return w.b.asked(list.at(i)) < at })
	return w.next[s]
}

// asked returns when an activity was asked for, as far as that is known.
func (b *builder) asked(i int32) uint64 {
	a := &b.t.Activities[i]
	if a.Op != None {
		return b.t.Ops[a.Op].Start
	}
	return a.Start
}

// slack is by how much an activity may seem to end after the call that waited for it, ns: the clocks are
// read at different places, and the GPU's may be off by what causality has shown.
func (b *builder) slack() uint64 {
	return max(leastSlack, b.causes.clock().Error)
}

// leastSlack is some times the resolution of the GPU's clock, ns (CUPTI guide, "Timestamps"; 1 µs on an H200).
const leastSlack = 2_000

func plus(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

// gallop returns the first i in [0, n) for which before is false, n where there is none; it looks
// near the hint first.
func gallop(n, hint int, before func(int) bool) int {
	hint = min(max(hint, 0), n)
	var low, high int
	step := 1
	if hint < n && before(hint) {
		for low = hint + 1; low < n && before(min(low+step, n-1)); step *= 2 {
			low = min(low+step, n-1) + 1
		}
		high = min(n, low+step)
	} else {
		for high = hint; high > 0 && !before(max(high-step, 0)); step *= 2 {
			high = max(high-step, 0)
		}
		low = max(0, high-step)
	}
	for low < high {
		if mid := int(uint(low+high) / 2); before(mid) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
