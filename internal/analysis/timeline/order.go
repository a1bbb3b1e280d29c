package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline/correlate"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// orderer links by order what ids did not: activities of windows in which the agent did not see
// the calls that start them.
type orderer struct {
	b      *builder
	tables []orderTable
}

// orderTable is what one window of one process has to be linked.
type orderTable struct {
	process  int32
	ops      []int32 // that start something and that the agent did not see
	acts     []int32 // without a call
	graphs   []graphRun
	barriers []int32 // ops
	syncs    []int32 // events
}

// graphRun is the activities of one launch of a graph.
type graphRun struct {
	id         uint32 // correlation id
	stream     int32  // of the first activity
	start, end uint64 // ns
	acts       []int32
}

// linkByOrder links what is left.
func (b *builder) linkByOrder() {
	if len(b.loose) == 0 {
		return
	}
	o := &orderer{b: b, tables: make([]orderTable, len(b.tables.list))}
	o.gather()
	o.gatherOps()
	o.gatherBarriers()
	for i := range o.tables {
		if x := &o.tables[i]; len(x.acts) > 0 || len(x.graphs) > 0 {
			o.link(x)
		}
	}
	slices.SortFunc(b.t.guesses, func(x, y guess) int { return cmp.Compare(x.activity, y.activity) })
}

// missing returns which kinds of calls the agent did not see in a table's window.
func (b *builder) missing(table int32) groups {
	return (launches | copies | sets) &^ b.tables.list[table].groups
}

// gather finds the activities that need a call, stream by stream.
func (o *orderer) gather() {
	t := o.b.t
	for _, i := range byStream(t, o.b.loose) {
		act := &t.Activities[i]
		p := t.Streams[act.Stream].Process
		x := &o.tables[o.b.tables.table(p, act.Start)]
		x.process = p
		if act.Graph {
			x.addGraph(i, act, uint32(t.Rec.Events[act.Event].Args[0]))
			continue
		}
		x.acts = append(x.acts, i)
	}
}

// byStream sorts activities by stream, and keeps their order in each.
func byStream(t *Timeline, acts []int32) []int32 {
	next := make([]int32, len(t.Streams)+1)
	for _, i := range acts {
		next[t.Activities[i].Stream+1]++
	}
	for s := range t.Streams {
		next[s+1] += next[s]
	}
	out := make([]int32, len(acts))
	for _, i := range acts {
		at := &next[t.Activities[i].Stream]
		out[*at] = i
		*at++
	}
	return out
}

// kindGroup returns which calls start an activity.
func kindGroup(a *Activity) groups {
	switch {
	case a.Graph || a.Kind == Kernel:
		return launches
	case a.Kind == Copy:
		return copies
	}
	return sets
}

// addGraph adds a node to its launch: they have one correlation id.
func (x *orderTable) addGraph(i int32, act *Activity, id uint32) {
	if n := len(x.graphs); n > 0 && x.graphs[n-1].id == id && x.graphs[n-1].stream == act.Stream {
		g := &x.graphs[n-1]
		g.acts = append(g.acts, i)
		g.end = max(g.end, act.End)
		return
	}
	x.graphs = append(x.graphs, graphRun{id: id, stream: act.Stream, start: act.Start, end: act.End, acts: []int32{i}})
}

// gatherOps finds the calls that can have started them: the innermost ones.
func (o *orderer) gatherOps() {
	t := o.b.t
	parent := map[int32]bool{}
	for _, marks := range o.b.marks {
		for _, i := range marks {
			if c := &t.Ops[i]; c.Parent != None && o.b.classes[c.Func].starts != 0 {
				parent[c.Parent] = true
			}
		}
	}
	for i, marks := range o.b.marks {
		var near tableAt
		for _, op := range marks {
			o.gatherOp(op, o.b.tables.at(&near, t.Threads[i].Process, t.Ops[op].Start), parent[op])
		}
	}
	for i := range o.tables {
		if ops := o.tables[i].ops; !slices.IsSortedFunc(ops, o.b.byStart) {
			slices.SortStableFunc(ops, o.b.byStart)
		}
	}
}

// gatherOp adds a call to a table, also as a barrier. parent: another call that starts something is inside it.
func (o *orderer) gatherOp(op, table int32, parent bool) {
	c := &o.b.t.Ops[op]
	class := &o.b.classes[c.Func]
	if table == None {
		return
	}
	x := &o.tables[table]
	if o.b.missing(table)&class.starts != 0 && !parent && c.Via == Probe {
		x.ops = append(x.ops, op)
	}
	if c.Timed && class.group == "sync" {
		x.barriers = append(x.barriers, op)
	}
}

// gatherBarriers finds the synchronizations that CUPTI saw.
func (o *orderer) gatherBarriers() {
	for _, i := range o.b.syncs {
		e := &o.b.t.Rec.Events[i]
		p := o.b.processes.process(e.PID, e.TS)
		if table := o.b.tables.table(p, e.TS); table != None {
			o.tables[table].syncs = append(o.tables[table].syncs, i)
		}
	}
}

// link links the activities of one window. A launch of a graph is one work: its nodes have no
// shape that the call knows.
func (o *orderer) link(x *orderTable) {
	q := o.newQuestion(x)
	q.addWorks()
	q.addCalls()
	q.addBarriers()
	q.problem.Lanes, q.problem.Streams = len(q.lanes), len(q.streams)
	q.problem.CallLoss, q.problem.WorkLoss = q.losses()
	links, _ := correlate.Match(&q.problem)
	for w, l := range links {
		if l.Call == correlate.None {
			continue
		}
		op := q.ops[l.Call]
		if r := q.refs[w]; r >= 0 {
			o.set(r, op, ByOrder, l.Confidence)
		} else {
			for _, i := range x.graphs[^r].acts {
				o.set(i, op, ByGraph, l.Confidence)
			}
		}
	}
}

func (o *orderer) set(act, op int32, how Link, confidence float32) {
	a := &o.b.t.Activities[act]
	a.Op, a.Link = op, how
	o.b.t.guesses = append(o.b.t.guesses, guess{act, confidence})
}

// question is a window in the words of package correlate.
type question struct {
	*orderer
	x       *orderTable
	problem correlate.Problem
	ops     []int32 // of the calls
	refs    []int32 // of the works: an activity, or ^i for x.graphs[i]
	lanes   map[laneKey]int32
	streams map[int32]int32 // of the timeline, to those of the problem
	back    []int32         // and back
}

// laneKey is a stream as calls name it. The per-thread default stream is one for each thread.
type laneKey struct {
	handle uint64
	thread int32
}

func (o *orderer) newQuestion(x *orderTable) *question {
	return &question{orderer: o, x: x, lanes: map[laneKey]int32{}, streams: map[int32]int32{}}
}

// losses returns the shares of calls and of records that are known to be lost. The probes' losses
// are known for all calls of the recording together.
func (q *question) losses() (calls, works float64) {
	t := q.b.t
	lost := uint64(0)
	for _, l := range t.Rec.Meta.Losses {
		if l.Reason == loss.RingFull {
			lost += l.Count
		}
	}
	dropped := t.Seen[q.x.process].Dropped
	return fraction(lost, uint64(len(t.Ops))), fraction(dropped, uint64(len(t.Activities)))
}

// fraction returns the share of what is missing of all there was.
func fraction(missing, there uint64) float64 {
	if missing == 0 {
		return 0
	}
	return float64(missing) / (float64(missing) + float64(there))
}

func (q *question) stream(s int32) int32 {
	i, ok := q.streams[s]
	if !ok {
		i = int32(len(q.back))
		q.streams[s] = i
		q.back = append(q.back, s)
	}
	return i
}

func (q *question) lane(handle uint64, op int32) int32 {
	k := laneKey{handle: handle, thread: None}
	if handle == cuda.PerThreadStream {
		k.thread = q.b.t.ThreadOf(op)
	}
	i, ok := q.lanes[k]
	if !ok {
		i = int32(len(q.lanes))
		q.lanes[k] = i
	}
	return i
}

func (q *question) addWorks() {
	t, p := q.b.t, &q.problem
	for _, i := range q.x.acts {
		act := &t.Activities[i]
		e := &t.Rec.Events[act.Event]
		p.Works = append(p.Works, correlate.Work{
			Start:  e.TS,
			End:    clampedEnd(e),
			Shape:  workShape(act.Kind, e),
			Stream: q.stream(act.Stream),
		})
		q.refs = append(q.refs, i)
	}
	for i := range q.x.graphs {
		g := &q.x.graphs[i]
		p.Works = append(p.Works,
			correlate.Work{Start: g.start, End: g.end, Shape: graphShape, Stream: q.stream(g.stream)})
		q.refs = append(q.refs, ^int32(i))
	}
	// They were gathered stream by stream.
	place := permute(p.Works, func(x, y *correlate.Work) int { return cmp.Compare(x.Start, y.Start) })
	sorted := make([]int32, len(q.refs))
	for i, to := range place {
		sorted[to] = q.refs[i]
	}
	q.refs = sorted
}

func (q *question) addCalls() {
	t := q.b.t
	for _, op := range q.x.ops {
		e := t.RawEvent(&t.Ops[op])
		c := q.b.decoder.Decode(e)
		if !c.HasStream || c.Failed() {
			continue
		}
		q.problem.Calls = append(q.problem.Calls,
			correlate.Call{Time: e.TS, Shape: callShape(&c, e), Lane: q.lane(c.Stream, op)})
		q.ops = append(q.ops, op)
	}
}

// addBarriers adds what CUPTI and the probes saw of synchronizations.
func (q *question) addBarriers() {
	t := q.b.t
	for _, i := range q.x.syncs {
		e := &t.Rec.Events[i]
		b := correlate.Barrier{From: e.TS, To: clampedEnd(e), Lane: correlate.None, Stream: correlate.None}
		switch SyncType(max(0, min(e.Ret, 5))) {
		case StreamSync, contextSync:
			for local, s := range q.back {
				st := &t.Streams[s]
				if st.Context == uint8(e.Func>>8) && (st.ID == e.TID || e.Ret == int32(contextSync)) {
					b.Stream = int32(local)
					q.problem.Barriers = append(q.problem.Barriers, b)
				}
			}
		}
	}
	for _, op := range q.x.barriers {
		q.callBarrier(op)
	}
}

// callBarrier adds a synchronizing call: of a stream, or of everything where there is one context.
func (q *question) callBarrier(op int32) {
	o := &q.b.t.Ops[op]
	b := correlate.Barrier{From: o.Start, To: o.End(), Lane: correlate.None, Stream: correlate.None}
	class := &q.b.classes[o.Func]
	if class.stem == "StreamSynchronize" {
		c := q.b.decoder.Decode(q.b.t.RawEvent(o))
		if c.HasStream {
			b.Lane = q.lane(c.Stream, op)
			q.problem.Barriers = append(q.problem.Barriers, b)
		}
		return
	}
	if class.whole() && q.oneContext() {
		q.problem.Barriers = append(q.problem.Barriers, b)
	}
}

func (q *question) oneContext() bool {
	for _, s := range q.back {
		if q.b.t.Streams[s].Context != q.b.t.Streams[q.back[0]].Context || q.b.t.Streams[s].Context == 255 {
			return false
		}
	}
	return true
}

// workShape condenses what the record of an activity and its call have in common: grid and block of a
// kernel, bytes of a copy or set.
func workShape(k activityKind, e *event.Event) uint32 {
	if k == Kernel {
		return mix(uint64(Kernel), e.Args[2], e.Args[3]&0xffffffff)
	}
	return mix(uint64(k), e.Args[2], 0)
}

// graphShape stands for every graph; the shapes of other things are odd.
const graphShape = 2

func callShape(c *cuda.Call, e *event.Event) uint32 {
	switch {
	case c.Group == cuda.Graph:
		return graphShape
	case c.Group == cuda.Launch:
		return mix(uint64(Kernel), e.Args[2], e.Args[3]&0xffffffff)
	case !c.HasBytes:
		return 0
	case c.Group == cuda.Copy:
		return mix(uint64(Copy), c.Bytes, 0)
	}
	return mix(uint64(Set), c.Bytes, 0)
}

func mix(kind, x, y uint64) uint32 {
	v := (x*0x9e3779b97f4a7c15 ^ y ^ kind<<40) * 0xbf58476d1ce4e5b9
	return uint32(v>>32) | 1
}
