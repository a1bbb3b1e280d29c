package replay

import (
	"slices"
	"sort"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// resolve gives each node what it waited for, and the delay after it that makes a replay without
// changes end when the recording did.
func (b *builder) resolve() {
	typical := b.typical()
	var edges [][2]int32 // to, from: nodes
	for i := range b.t.Edges {
		e := &b.t.Edges[i]
		to, ok := b.acts[e.To]
		from, found := b.acts[e.From]
		if ok && found {
			edges = append(edges, [2]int32{b.node(to), b.node(from)})
		}
	}
	for i := range b.lanes {
		l := &b.lanes[i]
		for n := range l.nodes {
			if l.thread {
				b.threadNode(l, n)
			} else {
				edges = b.activityNode(l, n, typical, edges)
			}
		}
	}
	b.addEdges(edges, typical)
	for i := range b.g.nodes {
		if n := &b.g.nodes[i]; n.prev != noNode {
			b.g.Times[n.what].Gap += n.lagPrev
		}
	}
}

func (b *builder) node(p place) int32 { return b.lanes[p.lane].global[p.node] }

// threadNode links a node of a thread.
func (b *builder) threadNode(l *lane, i int) {
	id := l.global[i]
	n, r := &b.g.nodes[id], &l.refs[i]
	if i > 0 {
		n.prev = l.global[i-1]
	}
	switch {
	case r.act != noNode:
		if p, ok := b.acts[r.act]; ok {
			n.dep = b.node(p)
		}
	case r.lane != noNode:
		if at := b.lanes[r.lane].lastBefore(r.at); at != noNode {
			n.dep = at
		}
	}
	took := n.at
	if n.prev != noNode {
		took = b.g.nodes[n.prev].at
	}
	took = n.at - min(n.at, max(took, b.g.From))
	switch {
	case n.dep == noNode || n.dep >= id: // not in the span, or contradictory: it takes as long as it took
		n.dep = noNode
		if n.prev != noNode {
			n.own = took
		}
	case r.idle:
		n.lagPrev, n.lagDep = took, min(n.at-min(n.at, b.g.nodes[n.dep].at), callCost)
	case b.g.Whats[n.what].Polls: // the next look comes when it likes to, a wait ends with what it is for
		n.lagDep = min(n.at-min(n.at, b.g.nodes[n.dep].at), callCost)
	default:
		n.lagDep = n.at - min(n.at, b.g.nodes[n.dep].at)
		if b.g.Whats[n.what].Kind == Sync {
			n.lagPrev = min(took, callCost)
		}
	}
	if n.prev == noNode && n.dep == noNode {
		n.lagPrev = n.at - n.own - min(n.at-n.own, b.g.From)
	}
}

// callCost is what a synchronizing call costs that has nothing to wait for, ns: some µs on an H200 with the
// driver 580 (FACTS of a launch: 2.7 to 6 µs).
const callCost = 5_000

// awaited returns what a synchronization waited for. Where nobody says (recording events is too cheap a call to be
// watched), it is what ended last before it returned; where nothing ended meanwhile, it would have waited for what
// ended last before it began, had it come earlier.
func (b *builder) awaited(s *timeline.Sync, from, to uint64) ref {
	r := noRef()
	if r.act = s.Activity; r.act != noNode {
		return r
	}
	if to-from > callCost {
		if r.act = b.ended(s, to); r.act != noNode && b.t.Activities[r.act].End > from {
			return r
		}
	}
	r.act, r.idle = noNode, true
	if s.Type != timeline.EventSync { // an event can be much older
		r.act = b.ended(s, from)
	}
	return r
}

// ended returns the last activity that ended before a time, of the stream that a synchronization is about, or of all
// of its process.
func (b *builder) ended(s *timeline.Sync, at uint64) int32 {
	best := noNode
	for i := range b.t.Streams {
		if st := &b.t.Streams[i]; st.Process != s.Process || s.Stream != timeline.None && s.Stream != int32(i) {
			continue
		}
		if a := b.endedOf(int32(i), at); a != noNode &&
			(best == noNode || b.t.Activities[a].End > b.t.Activities[best].End) {
			best = a
		}
	}
	return best
}

// isQuery reports whether a call asks whether a GPU is done, and does not wait for it.
func (b *builder) isQuery(o *timeline.Op) bool {
	switch b.t.Rec.Meta.Functions[o.Func].Base {
	case "cuEventQuery", "cuStreamQuery", "cudaEventQuery", "cudaStreamQuery":
		return true
	}
	return false
}

// endedWithin returns the last activity of a process that ended in a stretch of time (ns), noNode where none did.
func (b *builder) endedWithin(pid uint32, from, to uint64) int32 {
	for i := range b.t.Processes {
		if b.t.Processes[i].PID != pid {
			continue
		}
		s := timeline.Sync{Process: int32(i), Stream: timeline.None}
		if a := b.ended(&s, to); a != noNode && b.t.Activities[a].End > from {
			return a
		}
	}
	return noNode
}

// endedOf returns the last activity of a stream that ended at a time or before.
func (b *builder) endedOf(stream int32, at uint64) int32 {
	l := &b.lanes[b.stream+stream]
	if n := l.upTo(at); n >= 0 {
		return l.refs[n].act
	}
	return noNode
}

// upTo returns the place of the last node that ends at a time or before, -1 where there is none.
func (l *lane) upTo(at uint64) int {
	return sort.Search(len(l.nodes), func(i int) bool { return l.nodes[i].at > at }) - 1
}

// lastBefore returns the last node of a lane that ends at a time or before, noNode where there is none.
func (l *lane) lastBefore(at uint64) int32 {
	if n := l.upTo(at); n >= 0 {
		return l.global[n]
	}
	return noNode
}

// delays are how long activities usually begin after what they wait for, ns.
type delays struct{ launch, queued uint64 }

// Delays where a recording has none of a kind: launch to start 6.9 to 12.5 µs, between kernels of a
// stream about 1 µs (H200).
const (
	usualLaunch = 8_000
	usualQueued = 1_200
)

// long is from how many usual delays on one has a reason of its own.
const long = 4

// typical measures the delays: of activities whose stream was empty when they were launched, and of those that
// were queued long before.
func (b *builder) typical() delays {
	var launch, queued []uint64
	for i := range b.lanes {
		l := &b.lanes[i]
		if l.thread {
			continue
		}
		for n := range l.nodes {
			asked, prev := b.asked(l, n), b.before(l, n)
			begun := l.nodes[n].at - l.nodes[n].own
			switch {
			case asked == 0 || asked > begun:
			case prev == noNode || l.nodes[prev].at < asked:
				launch = append(launch, begun-asked)
			case asked+4*usualLaunch < l.nodes[prev].at:
				queued = append(queued, begun-l.nodes[prev].at)
			}
		}
	}
	// A program of which each launch waits for something in its stream has no usual delay of its own.
	return delays{
		launch: min(median(launch, usualLaunch), long*usualLaunch),
		queued: min(median(queued, usualQueued), long*usualLaunch),
	}
}

func median(list []uint64, otherwise uint64) uint64 {
	if len(list) == 0 {
		return otherwise
	}
	return quantile.Upper(list)
}

// asked returns when the activity of a node was launched, in ns; 0 where that is not known.
func (b *builder) asked(l *lane, n int) uint64 {
	if p, ok := b.launched[l.refs[n].op]; ok && l.refs[n].op != noNode {
		return b.lanes[p.lane].nodes[p.node].at
	}
	return 0
}

// maxBack is how far back the one is looked for that an activity of a stream came after: nodes of a
// graph run beside each other.
const maxBack = 32

// before returns the node of the same stream that had ended when node n began.
func (b *builder) before(l *lane, n int) int32 {
	begun := l.nodes[n].at - l.nodes[n].own
	for i := n - 1; i >= 0 && i >= n-maxBack; i-- {
		if l.nodes[i].at <= begun {
			return int32(i)
		}
	}
	return noNode
}

// activityNode links the node of an activity: to its launch and to what its stream did before.
func (b *builder) activityNode(l *lane, i int, typical delays, edges [][2]int32) [][2]int32 {
	id := l.global[i]
	n := &b.g.nodes[id]
	begun := n.at - n.own
	if p := b.before(l, i); p != noNode {
		n.prev = l.global[p]
	}
	if p, ok := b.launched[l.refs[i].op]; ok && l.refs[i].op != noNode {
		if launch := b.node(b.within(p, l.refs[i].op, begun)); launch < id && b.g.nodes[launch].at <= begun {
			n.dep = launch
		}
	}
	switch {
	case n.prev == noNode && n.dep == noNode:
		n.lagPrev = begun - b.g.From
	case n.prev == noNode:
		n.lagDep = begun - b.g.nodes[n.dep].at
	case n.dep == noNode:
		n.lagPrev = begun - b.g.nodes[n.prev].at
	default:
		b.share(n, begun, typical)
	}
	return b.elsewhere(l, i, id, begun, typical, edges)
}

// within returns the last node of a launch's call in which its thread got a CPU again before a time; p, the node before
// the call, where it had one all the time. A launch that is interrupted reaches the GPU later: of an H200's program
// with a third of a CPU every third loss of it was in one.
func (b *builder) within(p place, op int32, before uint64) place {
	if !b.t.Ops[op].Timed {
		return b.withinUntimed(p, before)
	}
	nodes, end := b.lanes[p.lane].nodes, min(b.t.Ops[op].End(), before)
	for n := p.node + 1; int(n) < len(nodes) && nodes[n].at <= end; n++ {
		if b.g.Whats[nodes[n].what].Kind == Ready {
			p.node = n
		}
	}
	return p
}

// mostWithin is for how long a thread runs at most within a call whose end is not known, ns.
const mostWithin = 100_000

// withinUntimed is within for a call whose end is not known. Where its thread hardly ran from there on until a time, it
// was in the call meanwhile, whatever it waited for.
func (b *builder) withinUntimed(p place, before uint64) place {
	nodes := b.lanes[p.lane].nodes
	last, at, ran := p.node, nodes[p.node].at, uint64(0)
	for n := p.node + 1; int(n) < len(nodes) && nodes[n].at <= before; n++ {
		switch b.g.Whats[nodes[n].what].Kind {
		case Ready, Wait, External:
			last = n
		default:
			ran += nodes[n].at - at
		}
		at = nodes[n].at
	}
	if last != p.node && ran+before-at <= mostWithin {
		p.node = last
	}
	return p
}

// share gives the delay before an activity to the one of its two reasons that came last.
func (b *builder) share(n *node, begun uint64, typical delays) {
	asked, ended := b.g.nodes[n.dep].at, b.g.nodes[n.prev].at
	n.lagDep, n.lagPrev = min(begun-asked, typical.launch), min(begun-ended, typical.queued)
	if asked+n.lagDep >= ended+n.lagPrev {
		n.lagDep = begun - asked
		// it waited in its stream, for something that was not recorded: a host function, say
		if n.lagDep > long*typical.launch {
			n.lagPrev = n.lagDep - typical.launch
		}
	} else {
		n.lagPrev = begun - ended
	}
}

// elsewhere looks for the reason of a long delay in other streams of the device: it ran out of room.
func (b *builder) elsewhere(l *lane, i int, id int32, begun uint64, typical delays, edges [][2]int32) [][2]int32 {
	n := &b.g.nodes[id]
	spare := n.lagPrev
	if n.dep != noNode && (n.prev == noNode || b.g.nodes[n.dep].at+n.lagDep > b.g.nodes[n.prev].at+n.lagPrev) {
		spare = n.lagDep
	}
	if n.dep == noNode || spare < long*typical.launch {
		return edges
	}
	d := b.t.Streams[b.t.Activities[l.refs[i].act].Stream].Device
	ends := b.devices[d]
	at, _ := slices.BinarySearchFunc(ends, begun+1, func(a int32, t uint64) int {
		if b.t.Activities[a].End < t {
			return -1
		}
		return 1
	})
	if at == 0 {
		return edges
	}
	last := ends[at-1]
	if begun-b.t.Activities[last].End > typical.launch {
		return edges
	}
	from := b.node(b.acts[last])
	if from == n.prev || from >= id {
		return edges
	}
	n.lagDep = min(n.lagDep, typical.launch)
	if n.prev != noNode {
		n.lagPrev = min(n.lagPrev, typical.queued)
	}
	return append(edges, [2]int32{id, from})
}

// addEdges adds dependencies beyond the two of each node.
func (b *builder) addEdges(edges [][2]int32, typical delays) {
	slices.SortFunc(edges, func(x, y [2]int32) int { return int(x[0] - y[0]) })
	for _, e := range edges {
		n := &b.g.nodes[e[0]]
		if e[1] >= e[0] {
			continue
		}
		begun := n.at - n.own
		from := b.g.nodes[e[1]].at
		if from > begun {
			continue
		}
		n.more = true
		b.g.more = append(b.g.more, edge{to: e[0], from: e[1], lag: min(begun-from, typical.launch)})
	}
}

// usualTimes is how many medians a delay may take: most of the delays of one kind lie closer together than that
// (launches begin after 6.9 to 12.5 µs, the first and the last percent of them, H200).
const usualTimes = 4

// measureUsual finds what is usual.
func (b *builder) measureUsual() {
	var prev, dep [kinds][]uint64
	for i := range b.g.nodes {
		n := &b.g.nodes[i]
		k := b.g.Whats[n.what].Kind
		if n.dep != noNode {
			dep[k] = append(dep[k], n.lagDep)
		}
		if n.prev != noNode && n.lagPrev > 0 {
			prev[k] = append(prev[k], n.lagPrev)
		}
	}
	for k := range b.g.usual {
		b.g.usual[k] = delay{prev: usualTimes * median(prev[k], 0), dep: usualTimes * median(dep[k], 0)}
	}
}
