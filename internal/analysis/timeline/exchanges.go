package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Copy engines carry out all-gather, all-to-all, gather and scatter of NCCL 2.28 and newer where the program asks for
// it (its src/ce_coll.cc). The thread that makes the call, or ends the outermost group, puts copies of flags and data
// into the stream of the call.

// Exchange is a copy that a call of NCCL launched: communication.
type Exchange struct {
	Activity int32
	Call     int32  // event of the operation, or of the end of its group: index into Rec.Events
	Stream   uint64 // as calls name it
}

// launching is a call of NCCL that can launch something: an operation, or the end of a group.
type launching struct {
	from, to uint64
	event    int32
	streams  []uint64 // of its operations
}

// launcher is a thread and its place in its calls of NCCL.
type launcher struct {
	calls   []launching // in the order of time
	depth   int         // of groups
	streams []uint64    // of the operations of the group that is open
	within  uint64      // until when an operation runs, whose inner calls are its own
}

// caller is a thread of a process of Timeline.Processes.
type caller struct {
	process int32
	tid     uint32
}

// exchange finds the copies that calls of NCCL launched.
func (b *builder) exchange() {
	launchers := b.launchers()
	if len(launchers) == 0 {
		return
	}
	found := map[int32]Exchange{} // by activity
	streams := map[int32]bool{}
	for _, i := range b.t.Copies {
		if x, ok := b.launchedBy(launchers, i); ok {
			found[i] = x
			streams[b.t.Activities[i].Stream] = true
		}
	}
	for s := range streams {
		b.enclosed(s, found)
	}
	for s := range streams {
		b.await(s, found)
	}
	for i, x := range found {
		b.t.Activities[i].Exchange = true
		b.t.Exchanges = append(b.t.Exchanges, x)
	}
	slices.SortFunc(b.t.Exchanges, func(x, y Exchange) int { return cmp.Compare(x.Activity, y.Activity) })
}

// launchers gathers the calls of NCCL by thread.
func (b *builder) launchers() map[caller]*launcher {
	t := b.t
	if len(t.Collectives) == 0 || len(t.Copies) == 0 {
		return nil
	}
	events := slices.Clone(t.Collectives)
	slices.SortFunc(events, func(x, y int32) int { // of two that begin at once the longer one is the outer one
		a, b := &t.Rec.Events[x], &t.Rec.Events[y]
		return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(b.Dur, a.Dur), cmp.Compare(x, y))
	})
	out := map[caller]*launcher{}
	for _, i := range events {
		e := &t.Rec.Events[i]
		process, _, _ := b.processes.find(e.PID, e.TS)
		by := caller{process, e.TID}
		if out[by] == nil {
			out[by] = &launcher{}
		}
		out[by].take(i, e, t.Rec.Meta.Functions[e.Func].Base, b.classes[e.Func].moves)
	}
	return out
}

// take adds the next call, of a function that moves data or not.
func (l *launcher) take(i int32, e *event.Event, base string, moves bool) {
	if e.TS < l.within {
		return
	}
	switch {
	case base == "ncclGroupStart":
		if l.depth++; l.depth == 1 {
			l.streams = nil
		}
	case base == "ncclGroupEnd":
		l.depth = max(0, l.depth-1)
		if l.depth == 0 && len(l.streams) > 0 {
			l.calls = append(l.calls, launching{e.TS, clampedEnd(e), i, l.streams})
			l.streams = nil
		}
	case moves:
		stream := cuda.ReadExchange(&e.Args).Stream
		l.within = clampedEnd(e)
		if l.depth > 0 {
			l.streams = append(l.streams, stream)
			return
		}
		l.calls = append(l.calls, launching{e.TS, clampedEnd(e), i, []uint64{stream}})
	}
}

// at returns the call that a thread was in at a time, nil where there is none.
func (l *launcher) at(ts uint64) *launching {
	from := func(c launching, ts uint64) int { return cmp.Compare(c.from, ts) }
	i, found := slices.BinarySearchFunc(l.calls, ts, from)
	if !found {
		i--
	}
	if i < 0 || l.calls[i].to < ts {
		return nil
	}
	return &l.calls[i]
}

// launchedBy returns a copy as one that a call of NCCL launched, false where none did: the copy's call was made within
// it, by its thread and into its stream.
func (b *builder) launchedBy(launchers map[caller]*launcher, i int32) (x Exchange, ok bool) {
	a := &b.t.Activities[i]
	if a.Link != ByID || ofHost(cuda.CopyKind(b.t.Rec.Events[a.Event].Ret)) {
		return x, false
	}
	th := &b.t.Threads[b.t.ThreadOf(a.Op)]
	l := launchers[caller{th.Process, th.TID}]
	if l == nil {
		return x, false
	}
	in := l.at(b.t.Ops[a.Op].Start)
	if in == nil {
		return x, false
	}
	stream, ok := b.handleOf(a.Op, th.Process)
	return Exchange{i, in.event, stream.handle}, ok && slices.Contains(in.streams, stream.handle)
}

// enclosed adds the copies of a stream that lie between two of one call: as batches of copies, whose calls the agent
// does not see.
func (b *builder) enclosed(stream int32, found map[int32]Exchange) {
	list := b.of(stream)
	last := None // call of the copy before
	var between []int32
	for n := range list.n {
		i := list.at(n)
		a := &b.t.Activities[i]
		if a.Kind == Copy && a.Link != ByID && !a.Graph {
			between = append(between, i)
			continue
		}
		x, exchanges := found[i]
		if exchanges && x.Call == last {
			for _, i := range between {
				found[i] = Exchange{i, x.Call, x.Stream}
			}
		}
		between = between[:0]
		if last = None; exchanges {
			last = x.Call
		}
	}
}

// await lets each copy of a call last until the next one of the stream, as far as both are of one window: a stream that
// waits for the flags of other ranks is as busy as with a kernel that does.
func (b *builder) await(stream int32, found map[int32]Exchange) {
	list, windows := b.of(stream), b.t.Seen[b.t.Streams[stream].Process].Activity
	for n := 1; n < list.n; n++ {
		x, before := found[list.at(n-1)]
		y, exchanges := found[list.at(n)]
		if !before || !exchanges || x.Call != y.Call {
			continue
		}
		a, start := &b.t.Activities[x.Activity], b.t.Activities[y.Activity].Start
		if at := windows.At(a.Start); at < len(windows) && windows[at].From <= a.Start {
			a.End = max(a.End, min(start, windows[at].To))
		}
	}
}

// ofHost reports whether a copy is from or to the host's memory.
func ofHost(k cuda.CopyKind) bool {
	switch k {
	case cuda.HostToDevice, cuda.DeviceToHost, cuda.HostToArray, cuda.ArrayToHost:
		return true
	}
	return false
}
