package timeline

import (
	"cmp"
	"slices"
)

// Edge means that an activity had to wait for something outside of its stream: for what another
// stream did before an event was recorded in it, or for the host.
type Edge struct {
	To     int32 // the first activity that was asked for behind the wait in its stream
	From   int32 // the last activity before the event; None: the host, or nothing that was recorded
	Wait   int32 // op that asked the stream to wait: cuStreamWaitEvent, cuLaunchHostFunc, cuStreamWaitValue32
	Record int32 // op that recorded the event; None where the host is waited for
	Kind   edgeKind
}

// edgeKind is what an Edge waits for.
type edgeKind uint8

// The kinds.
const (
	EventEdge  edgeKind = iota // the work before an event: cuEventRecord, cuStreamWaitEvent
	HostEdge                   // a function that the host runs: cuLaunchHostFunc, cuStreamAddCallback
	memoryEdge                 // a value in memory, or a semaphore, that somebody else sets: cuStreamWaitValue32
)

// EdgesTo returns what the activity at index i waited for outside of its stream.
func (t *Timeline) EdgesTo(i int32) []Edge {
	first, _ := slices.BinarySearchFunc(t.Edges, i, func(e Edge, i int32) int { return int(e.To - i) })
	last := first
	for last < len(t.Edges) && t.Edges[last].To == i {
		last++
	}
	return t.Edges[first:last]
}

// role is what a call of a function has to do with waiting in streams.
type role uint8

const (
	noRole role = iota
	recordsEvent
	waitsForEvent
	runsHost
	waitsForMemory
)

// roleOf goes by the name, without cu or cuda: CUDA driver API, "Stream management", "Event management".
func roleOf(c *class) role {
	switch c.stem {
	case "EventRecord", "EventRecordWithFlags":
		return recordsEvent
	case "StreamWaitEvent":
		return waitsForEvent
	case "LaunchHostFunc", "StreamAddCallback":
		return runsHost
	case "StreamWaitValue32", "StreamWaitValue64", "WaitExternalSemaphoresAsync":
		return waitsForMemory
	}
	return noRole
}

// eventKey is a CUevent of a process.
type eventKey struct {
	process int32
	handle  uint64
}

// recorded is where an event stands: behind all that was asked of a stream before op.
type recorded struct {
	op     int32
	stream handleKey
}

// moment is a call that matters to synchronizations or edges.
type moment struct {
	op      int32
	process int32
}

// depend makes the edges and the syncs that calls tell of, in the order of the calls: what an
// event stands for changes each time it is recorded.
func (b *builder) depend() {
	w := newWaiting(b)
	for _, m := range b.moments() {
		w.take(m)
	}
	slices.SortStableFunc(b.t.Edges, func(x, y Edge) int { return cmp.Compare(x.To, y.To) })
}

// moments returns the outermost calls that wait for the GPU, or that make streams wait, by Start.
func (b *builder) moments() []moment {
	var out []moment
	for i, marks := range b.marks {
		p := b.t.Threads[i].Process
		if int(p) >= len(b.t.Seen) || len(b.t.Seen[p].Activity) == 0 {
			continue
		}
		for _, op := range marks {
			if o := &b.t.Ops[op]; b.classes[o.Func].useful && o.Outer() {
				out = append(out, moment{op, p})
			}
		}
	}
	before := func(x, y moment) int { return b.byStart(x.op, y.op) }
	if !slices.IsSortedFunc(out, before) {
		slices.SortFunc(out, before)
	}
	return out
}
