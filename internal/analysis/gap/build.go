package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// walker makes the steps of gaps, one gap after the other.
type walker struct {
	t            *timeline.Timeline
	out          *Walk
	classes      []class // by index into Meta.Functions
	copies       []uint8 // by index into Ops; nil: there are none
	threads      []*thread
	owners       []*thread // by index into Timeline.Threads
	byKey        map[key]int32
	waits        *threads.Waits
	stacks       *stacks
	sockets      sockets
	futexes      futexes
	attribution  attributor
	sums         sums
	chain        []link
	floor        Confidence                // of all steps of this gap
	callsSeen    map[uint32]timeline.Spans // when launches were recorded, by PID
	launchThread []*thread
	device       int32             // of this gap, index into Timeline.Devices
	syncAt       map[int32]int32   // by outermost op: index into Timeline.Syncs; nil: there is one GPU
	ends         map[int32][]ended // by process: see endsOf
	edgeAt       int               // into Timeline.Edges: where the last search ended
	near         int32             // the thread of the last call that was asked about, index into Timeline.Threads
	first        int               // its first step
	unlimited    bool              // the cgroup's quota held nobody back: its counter stood still
	unobservable bool              // what GPUs do was not seen, so that a wait for one says nothing
	capturing    bool              // some function begins the capture of a graph
	throttled    map[int32]bool    // waits for a CPU that the quota explains, by event
	unasked      timeline.Spans    // when a server had no request in progress
	period       uint64            // ns between two samples of a running thread; 0: edges are not shared (see ran)
	compiler     map[uint32]bool   // processes that compile, whatever their frames say
}

// link is one thread that waits for the next one of the chain.
type link struct {
	th    *thread
	cause cause.ID // Worker, Lock or GIL
}

// Build finds the gaps of t and their steps.
func Build(t *timeline.Timeline) *Walk { return New(t, t.Index.Threads()) }

// New is Build where the threads of the recording are known already. It takes O(n) for n events that
// are in order, and never fails: what contradicts itself makes steps of cause Unknown.
func New(t *timeline.Timeline, scheduled []threads.Thread) *Walk {
	w := Start(t, scheduled)
	w.Find(timeline.Span{From: t.From, To: t.To})
	return w
}

// Start prepares a walk: it knows what is covered, and what a thread did, and has found no gaps yet.
func Start(t *timeline.Timeline, scheduled []threads.Thread) *Walk {
	w := newWalker(t, scheduled)
	w.out.Covered, w.out.by = Covered(t), w
	w.unobservable = !slices.ContainsFunc(w.out.Covered, func(s timeline.Spans) bool { return len(s) > 0 })
	return w.out
}

// Find finds the gaps and their steps; of plain gaps Plain has what lies in a stretch of time. A walk that was made by
// hand has all already.
func (w *Walk) Find(in timeline.Span) {
	if w.by == nil || w.found && w.in == in {
		return
	}
	w.Gaps, w.Steps, w.Main, w.in, w.found = nil, nil, nil, in, true
	x := w.by
	x.attribution, x.sums = newAttributor(), newSums(len(x.threads))
	find(w.t, w.Covered, func(g *Gap) bool {
		th, op := x.gap(g)
		x.keep(g, th, op)
		return true
	})
	x.main()
	x.attribution.resolve(x)
	w.merge()
	w.Plain, x.attribution, x.sums = x.sums.list, attributor{}, sums{}
}

func newWalker(t *timeline.Timeline, scheduled []threads.Thread) *walker {
	unasked, _ := unaskedOf(t)
	w := &walker{
		t: t, out: &Walk{t: t}, classes: make([]class, len(t.Rec.Meta.Functions)), copies: copiesOf(t),
		waits: t.Index.Waits(), stacks: newStacks(t.Index), sockets: newSockets(t.Rec, t.Index.OffCPU),
		attribution: newAttributor(), compiler: compilers(t.Rec), unasked: unasked,
		callsSeen: map[uint32]timeline.Spans{},
	}
	for p := range t.Seen {
		w.callsSeen[t.Processes[p].PID] = t.Seen[p].Calls
	}
	for i := range w.classes {
		w.classes[i] = classify(&t.Rec.Meta.Functions[i])
		w.capturing = w.capturing || w.classes[i].begins
	}
	w.gather(scheduled)
	w.syncAt = syncsOf(t)
	w.quota()
	w.poll()
	return w
}

// gap makes the steps of one gap, and returns the call that ended it with its thread, as far as they are known.
func (w *walker) gap(g *Gap) (th *thread, op int32) {
	w.floor, w.chain, w.first, w.device = Seen, w.chain[:0], len(w.out.Steps), g.Device
	th, op, n := w.launcher(g)
	if th == nil {
		w.emit(g.From, g.To, cause.Unknown, detail{sure: Guessed})
		return nil, None
	}
	if op == None {
		w.explain(th, g.From, g.To)
		return th, None
	}
	if !w.plain(g, th, op, n) { // else there is no more to find out
		w.launched(g, th, op, n)
	}
	return th, op
}

// launched makes the steps of a gap that a call ended.
func (w *walker) launched(g *Gap, th *thread, op, n int32) {
	l := &w.t.Ops[op]
	start := min(max(l.Start, g.From), g.To)
	end := min(max(l.End(), start), g.To)
	w.explain(th, g.From, start)
	if l.Timed {
		w.inCall(th, op, start, end)
	} else {
		end = w.inUntimed(th, op, start, g.To)
	}
	w.starting(th, op, n, end, g.To)
}

// inUntimed explains the time in a call whose end is not known, up to the beginning of what it launched, and returns
// until when. It takes none, unless its thread left the CPU within it: then it ran hardly at all until then. A quota
// that was used up within cuMemsetD8Async held the GPU for 60 ms (`quota-threads` of test/gpu).
func (w *walker) inUntimed(th *thread, op int32, from, started uint64) (until uint64) {
	if started-from <= slowStart {
		return from
	}
	until = from
	off := uint64(0)
	w.states(th, from, started, func(u, v uint64, iv *threads.Interval) {
		if iv != nil && (iv.State == threads.Runnable || iv.State == threads.Blocked) {
			off, until = off+v-u, v
		}
	})
	if started-from-off > slowStart {
		return from
	}
	c, sure := w.callCause(op)
	w.states(th, from, until, func(u, v uint64, iv *threads.Interval) {
		switch {
		case iv != nil && iv.State == threads.Runnable:
			w.woken(th, iv, u, v)
		case iv != nil && iv.State == threads.Blocked:
			w.blocked(th, iv, u, v)
		default:
			w.emit(u, v, c, detail{th: th, sure: sure, op: op + 1})
		}
	})
	return until
}

// launcher returns the thread that ended a gap, the call that did it, and the activity; op None: the thread that
// would have; nil: nobody is known.
func (w *walker) launcher(g *Gap) (th *thread, op, activity int32) {
	if g.Next != None {
		a := &w.t.Activities[g.Next]
		if a.Op != None {
			if w.t.Confidence(g.Next) < 0.5 {
				w.floor = Guessed
			}
			op = w.t.Outermost(a.Op)
			return w.owner(op), op, g.Next
		}
		w.floor = Guessed
		return w.launchThreadOf(w.t.Streams[a.Stream].Process), None, None
	}
	if g.Prev != None {
		a := &w.t.Activities[g.Prev]
		if a.Op != None {
			return w.owner(w.t.Outermost(a.Op)), None, None
		}
		w.floor = Guessed
		return w.launchThreadOf(w.t.Streams[a.Stream].Process), None, None
	}
	w.floor = Inferred
	return w.launchThreadOf(w.t.Devices[g.Device].Process), None, None
}

// owner returns the thread that made a call.
func (w *walker) owner(op int32) *thread {
	if th := &w.t.Threads[w.near]; op < th.First || op >= th.Last {
		w.near = w.t.ThreadOf(op)
	}
	return w.owners[w.near]
}

// launchThreadOf returns the thread of a process that launches most, else its main thread; nil where
// neither is known.
func (w *walker) launchThreadOf(process int32) *thread {
	if w.launchThread == nil {
		w.launchThread = w.launchThreads()
	}
	if th := w.launchThread[process]; th != nil {
		return th
	}
	pid := w.t.Processes[process].PID
	return w.known(key{pid, pid})
}

func (w *walker) launchThreads() []*thread {
	out, most := make([]*thread, len(w.t.Processes)), make([]int, len(w.t.Processes))
	for i := range w.t.Threads {
		th, launches := &w.t.Threads[i], 0
		for op := th.First; op < th.Last; op++ {
			if o := &w.t.Ops[op]; o.Outer() && w.classes[o.Func].kind == launchCall {
				launches++
			}
		}
		if launches > most[th.Process] {
			most[th.Process] = launches
			out[th.Process] = w.thread(key{w.t.Processes[th.Process].PID, th.TID})
		}
	}
	return out
}

// starting explains the time from the return of a launch to the beginning of what it launched: the GPU's own.
func (w *walker) starting(th *thread, op, activity int32, from, to uint64) {
	if from >= to {
		return
	}
	d := detail{th: th, op: op + 1}
	held, c := w.heldUntil(activity, to)
	if until := min(to, held); until > from {
		w.emit(from, until, c, d)
		from = until
	}
	if to-from > slowStart {
		if until := w.handedOver(activity, to); until > from {
			w.emit(from, until, cause.PipelineBubble, detail{th: th, op: op + 1, sure: Inferred})
			from = until
		}
	}
	c = cause.LaunchOverhead
	if w.classes[w.t.Ops[op].Func].kind == copyCall {
		c = w.copyCause(op)
	}
	if to-from > slowStart {
		c, d.sure = cause.Dependency, Inferred
	}
	w.emit(from, to, c, d)
}

// heldUntil returns until when an activity that began at start had to wait for what is known to have come before it:
// another stream's work, another GPU's, or the host. 0: for nothing that is known.
func (w *walker) heldUntil(activity int32, start uint64) (until uint64, c cause.ID) {
	c = cause.Dependency
	for _, e := range w.edgesTo(activity) {
		switch {
		case e.From != None && e.Kind == timeline.EventEdge:
			if end := w.t.Activities[e.From].End; end > until {
				until, c = end, cause.Dependency
				if w.elsewhere(e.From, w.deviceOf(activity)) {
					c = cause.PipelineBubble
				}
			}
		case e.Kind == timeline.HostEdge:
			until, c = start, cause.Dependency
		}
	}
	return until, c
}

// edgesTo is Timeline.EdgesTo for one activity after the other.
func (w *walker) edgesTo(activity int32) []timeline.Edge {
	edges := w.t.Edges
	if len(edges) == 0 {
		return nil
	}
	w.edgeAt = threads.Gallop(len(edges), w.edgeAt, func(i int) bool { return edges[i].To < activity })
	last := w.edgeAt
	for last < len(edges) && edges[last].To == activity {
		last++
	}
	return edges[w.edgeAt:last]
}

// slowStart is from when on a kernel must have waited for something else than being started, ns: with an empty
// queue it begins 7 to 13 µs after its launch (H200).
const slowStart = 100_000

// compilers returns the processes that are compilers by their names.
func compilers(rec *recording.Recording) map[uint32]bool {
	out := map[uint32]bool{}
	for i := range rec.Meta.Processes {
		if p := &rec.Meta.Processes[i]; slices.Contains(threads.Compilers(), p.Comm) {
			out[p.PID] = true
		}
	}
	return out
}
