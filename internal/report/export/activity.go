package export

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
)

// work is one activity in the words that formats share.
type work struct {
	*timeline.Activity
	start, dur   uint64 // ns, CLOCK_MONOTONIC, not clipped to a window
	pid          uint32
	device       *timeline.Device
	stream       *timeline.Stream
	name         string
	grid, block  [3]uint32 // of a kernel
	dynamic      uint32    // shared memory of a kernel, bytes
	bytes        uint64    // of a copy or set
	copyKind     cuda.CopyKind
	source, dest cuda.MemoryKind // a set has dest
	async        bool
	value        uint64 // of a set
	graph, node  uint64 // CUPTI ids; 0: not of a graph
}

// work describes the activity at index i.
func (v *view) work(i int32) work {
	a := &v.T.Activities[i]
	e := &v.rec.Events[a.Event]
	s := &v.T.Streams[a.Stream]
	w := work{
		Activity: a, start: e.TS, dur: e.Dur, pid: e.PID, device: &v.T.Devices[s.Device], stream: s,
		graph: e.Args[0] >> 32, node: e.Args[1],
	}
	switch a.Kind {
	case timeline.Kernel:
		w.name = v.kernelName(a)
		w.grid, w.block, w.dynamic = shape(e.Args[2], e.Args[3])
	case timeline.Copy:
		w.copyKind, w.source, w.dest = cuda.CopyKind(e.Ret), cuda.MemoryKind(e.Ret>>8), cuda.MemoryKind(e.Ret>>16)
		w.bytes, w.async = e.Args[2], e.Ret>>24&1 != 0
		w.name = fmt.Sprintf("Memcpy %s (%s -> %s)", w.copyKind.CUPTI(), w.source.CUPTI(), w.dest.CUPTI())
	case timeline.Set:
		w.dest, w.bytes, w.value = cuda.MemoryKind(e.Ret), e.Args[2], e.Args[3]
		w.name = fmt.Sprintf("Memset (%s)", w.dest.CUPTI())
	}
	return w
}

// shape unpacks grid, block and dynamic shared memory as bpf/event.h packs them.
func shape(grid, block uint64) (g, b [3]uint32, dynamic uint32) {
	g = [3]uint32{uint32(grid), uint32(grid >> 32 & 0xffff), uint32(grid >> 48)}
	low := uint32(block)
	return g, [3]uint32{low & 0x7ff, low >> 11 & 0x7ff, low >> 22}, uint32(block >> 32)
}

// ids gives calls and activities correlation numbers that are unique in the whole
// recording: CUPTI's own ones where they are, else new ones, for a window of GPU
// activity can count anew and another process counts for itself.
type ids struct {
	ops      []uint32 // by op; 0: none
	renewed  bool
	unlinked uint32 // first number of activities without a call, where renewed
}

// carrier returns the op that stands in an export for the call at index i: what the agent saw of a call that a probe
// saw as well is not written twice.
func carrier(t *timeline.Timeline, i int32) int32 {
	if t.Ops[i].Via == timeline.Twin && t.Ops[i].Parent != timeline.None {
		return t.Ops[i].Parent
	}
	return i
}

func newIDs(t *timeline.Timeline) *ids {
	x := &ids{ops: make([]uint32, len(t.Ops))}
	if x.keep(t) {
		return x
	}
	x.renewed, x.unlinked = true, uint32(len(t.Ops))+1
	clear(x.ops)
	for i := range t.Activities {
		if op := t.Activities[i].Op; op != timeline.None {
			op = carrier(t, op)
			x.ops[op] = uint32(op) + 1
		}
	}
	return x
}

// keep uses the recorded numbers, and reports whether each identifies one call.
func (x *ids) keep(t *timeline.Timeline) bool {
	owner := make(map[uint32]int32, len(t.Activities))
	for i := range t.Activities {
		a := &t.Activities[i]
		id := uint32(t.Rec.Events[a.Event].Args[0])
		op := timeline.None
		if a.Op != timeline.None {
			op = carrier(t, a.Op)
		}
		if before, seen := owner[id]; seen && before != op || a.Link == timeline.ByOrder ||
			id == 0 && op != timeline.None {
			return false
		}
		if op == timeline.None {
			if id != 0 {
				owner[id] = op
			}
			continue
		}
		if x.ops[op] != 0 && x.ops[op] != id {
			return false
		}
		owner[id], x.ops[op] = op, id
	}
	return true
}

// of returns the number of an activity.
func (x *ids) of(t *timeline.Timeline, i int32) uint32 {
	a := &t.Activities[i]
	switch {
	case a.Op != timeline.None:
		return x.ops[carrier(t, a.Op)]
	case x.renewed:
		return x.unlinked + uint32(i)
	}
	return uint32(t.Rec.Events[a.Event].Args[0])
}
