package replay

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// namer says what the time of threads went to, as the walk along the critical path does. It is that of package whatif,
// which imports this one.
type namer interface {
	// Running calls yield with stretches that touch each other and cover [from, to], in their order.
	Running(pid, tid uint32, from, to uint64, yield func(to uint64, what What, d Doubt))
	// Blocked names a wait.
	Blocked(iv *threads.Interval) (What, Doubt)
	// Waker returns the thread of the target that ended a wait, and whether there is one.
	Waker(iv *threads.Interval) (pid, tid uint32, ok bool)
	// WakingUp reports whether a time in which a thread could run belongs to the wait before it.
	WakingUp(iv *threads.Interval) bool
	// Ready names a time in which a thread could run and had no CPU. From until on (ns) it is Beyond.
	Ready(iv *threads.Interval) (until uint64, what What, d Doubt)
	// Call names the time in a call, by index of its outermost op, and reports whether it launches.
	Call(op int32) (What, Doubt)
}

// Build makes the graph of a stretch of time in which all that the GPUs did was seen, or
// in which they did nothing.
func Build(t *timeline.Timeline, ths []threads.Thread, span timeline.Span, name namer) *Graph {
	b := &builder{
		t: t, ths: ths, span: span, name: name,
		g: &Graph{
			From:    span.From,
			target:  t.Rec.Meta.Target,
			awaited: map[tid]uint64{},
		}, whats: map[What]int32{}, launched: map[int32]place{},
	}
	b.index()
	b.streams()
	b.threads()
	b.merge()
	b.resolve()
	b.measureUsual()
	b.aim()
	b.bound()
	b.g.gpu = slices.ContainsFunc(b.g.Whats, func(w What) bool { return w.Kind >= Kernel })
	waits := 0
	for i := range b.g.Whats {
		if b.g.paces(&b.g.Whats[i]) {
			waits += b.g.Times[i].Count
		}
	}
	b.g.waits = waits >= often
	return b.g
}

// builder is a graph in the making: first the nodes of each thread and stream, then all in one order.
type builder struct {
	t       *timeline.Timeline
	ths     []threads.Thread
	span    timeline.Span
	name    namer
	g       *Graph
	whats   map[What]int32
	last    [kinds]int32        // what returned of each kind, + 1; 0: nothing yet
	fought  map[[2]int32]uint64 // by the lanes of who waited and of who let go: ns of waits for locks
	errands map[int32][]errand  // by the lane of who asked, in the order in which they were done
	passes  map[uint32][]pass   // by process: when the lock of its interpreter passed to another thread

	lanes    []lane
	laneOf   map[tid]int32
	syncs    map[int32]int32 // outermost op of a sync: index into Timeline.Syncs
	launched map[int32]place // outermost op that asked for activities: the node of its thread before it
	acts     map[int32]place // activity: its node
	asks     map[int32]asked // outermost ops that launched activities
	devices  []deviceEnds
	// of the device whose nodes are made: number + 1 of the What of each kernel by itself, of a row and of a graph, 0
	// where it has none yet
	kernelWhats [3][]int32
	stream      int32 // lane of the first stream
}

type tid struct{ pid, tid uint32 }

// asked is what a call launched.
type asked struct {
	kernel bool
	begun  uint64 // ns, when the first of it began
	own    uint64 // ns of all of it
	bytes  uint64 // of copies
	graph  bool   // it launched a graph
	row    Row    // which rows it can be in
	inRow  bool   // it is in one
	last   bool   // of its row
	next   int32  // the next outermost op of its row
}

// place is a node in a lane.
type place struct{ lane, node int32 }

// lane is the nodes of one thread or stream, by the time at which they end.
type lane struct {
	nodes  []node
	refs   []ref    // by node: what it waits for, until nodes have their numbers
	cuts   []uint64 // of a thread: when it woke others, ns
	global []int32  // by node, after merge
	thread bool
	worker bool // of a thread: it made calls
	id     tid  // of a thread
	asked  int  // of a thread: activities of the span that it launched
}

// ref is what a node waits for.
type ref struct {
	act   int32  // activity, noNode
	idle  bool   // act had ended before: nobody waited for it
	op    int32  // outermost op that launched it, noNode
	lane  int32  // of the thread that wakes it, noNode
	slept uint64 // ns: how long it waited for that
	at    uint64 // when that did, ns
}

func noRef() ref { return ref{act: noNode, op: noNode, lane: noNode} }

// what returns the number of a What, and adds time to it.
func (b *builder) what(w What, ns uint64, d Doubt) int32 {
	i := b.last[w.Kind] - 1
	if i == noNode || b.g.Whats[i] != w {
		known, ok := b.whats[w]
		if i = known; !ok {
			i = int32(len(b.g.Whats))
			b.whats[w] = i
			b.g.Whats = append(b.g.Whats, w)
			b.g.Times = append(b.g.Times, Time{})
		}
		b.last[w.Kind] = i + 1
	}
	b.more(i, ns, d)
	return i
}

// more adds time to a What.
func (b *builder) more(i int32, ns uint64, d Doubt) {
	b.g.Times[i].Own += ns
	b.g.Times[i].By[d] += ns
	b.g.Times[i].Count++
}

// index finds who woke whom, and which calls waited for a GPU.
func (b *builder) index() {
	b.fought = map[[2]int32]uint64{}
	b.laneOf, b.syncs, b.acts, b.asks = map[tid]int32{}, map[int32]int32{}, map[int32]place{}, map[int32]asked{}
	for i := range b.ths {
		b.laneOf[tid{b.ths[i].PID, b.ths[i].TID}] = int32(i)
		b.lanes = append(b.lanes, lane{thread: true, id: tid{b.ths[i].PID, b.ths[i].TID}})
	}
	for i := range b.t.Threads {
		th := &b.t.Threads[i]
		k := tid{b.t.Processes[th.Process].PID, th.TID}
		if _, ok := b.laneOf[k]; !ok { // its scheduling was not recorded
			b.laneOf[k] = int32(len(b.lanes))
			b.lanes = append(b.lanes, lane{thread: true, id: k})
		}
	}
	for i := range b.ths {
		for _, iv := range b.clipped(&b.ths[i]) {
			if l, _, ok := b.waker(&iv); ok && b.isLock(&iv) {
				b.fought[[2]int32{int32(i), l}] += iv.Dur()
			}
		}
	}
	for i := range b.ths {
		for _, iv := range b.clipped(&b.ths[i]) {
			if l, at, ok := b.waited(int32(i), &iv); ok {
				b.lanes[l].cuts = append(b.lanes[l].cuts, at)
			}
		}
	}
	for i := range b.lanes {
		slices.Sort(b.lanes[i].cuts)
	}
	b.findErrands()
	for i := range b.t.Syncs {
		if s := &b.t.Syncs[i]; s.Op != timeline.None && s.Type != timeline.StreamWait {
			if op := b.t.Outermost(s.Op); b.touches(&b.t.Ops[op]) {
				b.syncs[op] = int32(i)
			}
		}
	}
}

// touches reports whether a call touches the span.
func (b *builder) touches(o *timeline.Op) bool { return o.End() > b.span.From && o.Start < b.span.To }

// clipped returns the intervals of a thread that touch the span.
func (b *builder) clipped(th *threads.Thread) []threads.Interval {
	first, _ := slices.BinarySearchFunc(
		th.Intervals,
		b.span.From,
		func(iv threads.Interval, at uint64) int { return cmp.Or(cmp.Compare(iv.To, at), -1) },
	)
	last := first
	for last < len(th.Intervals) && th.Intervals[last].From < b.span.To {
		last++
	}
	return th.Intervals[first:last]
}

// incidental is the share of the time up to which waits of one thread for locks that another one holds are chance: they
// met there, and in another order of things they would not. What the other one did before does not hold up the first,
// and the waits stay as long as they are, which is wrong by that share at most. An order that is kept can be wrong by
// more: waits of 4% of the time made 1.57 of 1.90 (program 144 of test/diagnosis).
const incidental = 0.05

func (b *builder) isLock(iv *threads.Interval) bool {
	w, _ := b.name.Blocked(iv)
	return w.Cause == cause.Lock || w.Cause == cause.GIL
}

// waited is waker where the wait is no chance.
func (b *builder) waited(lane int32, iv *threads.Interval) (by int32, at uint64, ok bool) {
	by, at, ok = b.waker(iv)
	if ok && b.isLock(iv) && float64(b.fought[[2]int32{lane, by}]) < incidental*float64(b.span.To-b.span.From) {
		return noNode, 0, false
	}
	return by, at, ok
}

// waker returns the lane of the thread of the target that ended a wait, and when.
func (b *builder) waker(iv *threads.Interval) (lane int32, at uint64, ok bool) {
	if iv.State != threads.Blocked || iv.Wait < 0 || iv.To > b.span.To {
		return noNode, 0, false
	}
	pid, id, ok := b.name.Waker(iv)
	if !ok {
		return noNode, 0, false
	}
	l, ok := b.laneOf[tid{pid, id}]
	return l, iv.To, ok
}

// merge puts the nodes of all lanes into one order: by their end; at the same time activities first, then
// threads, then those that waited for a thread.
func (b *builder) merge() {
	total := 0
	for i := range b.lanes {
		total += len(b.lanes[i].nodes)
		b.lanes[i].global = make([]int32, 0, len(b.lanes[i].nodes))
	}
	b.g.nodes = make([]node, 0, total)
	h := newHeap(b)
	for h.len() > 0 {
		l := h.top()
		b.g.nodes = append(b.g.nodes, b.lanes[l].nodes[len(b.lanes[l].global)])
		b.lanes[l].global = append(b.lanes[l].global, int32(len(b.g.nodes)-1))
		h.advance()
	}
}
