package replay

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// deviceEnds is the activities of a device in the span, by their ends.
type deviceEnds []int32

// streams makes the nodes of the activities of the span: a lane for each stream.
func (b *builder) streams() {
	first := int32(len(b.lanes))
	b.stream = first
	for range b.t.Streams {
		b.lanes = append(b.lanes, lane{})
	}
	b.devices = make([]deviceEnds, len(b.t.Devices))
	total := 0
	for d := range b.t.Devices {
		dev := &b.t.Devices[d]
		for i := dev.First; i < dev.Last && b.t.Activities[i].Start <= b.span.To; i++ {
			if a := &b.t.Activities[i]; a.Start >= b.span.From && a.End <= b.span.To {
				b.devices[d] = append(b.devices[d], i)
			}
		}
		b.room(b.devices[d])
		total += len(b.devices[d])
	}
	b.acts = make(map[int32]place, total)
	b.ask()
	for d := range b.devices {
		if gpu := b.t.Rec.Meta.GPU; gpu != nil {
			for i := range b.kernelWhats {
				b.kernelWhats[i] = make([]int32, len(gpu.Kernels))
			}
		}
		slices.SortStableFunc(
			b.devices[d],
			func(x, y int32) int { return cmp.Compare(b.t.Activities[x].End, b.t.Activities[y].End) },
		)
		for _, i := range b.devices[d] {
			b.activity(i, first)
		}
	}
}

// room makes the lists of the streams of activities as long as they will be.
func (b *builder) room(acts []int32) {
	count := make([]int, len(b.t.Streams))
	for _, i := range acts {
		count[b.t.Activities[i].Stream]++
	}
	for s, n := range count {
		l := &b.lanes[b.stream+int32(s)]
		l.nodes, l.refs = slices.Grow(l.nodes, n), slices.Grow(l.refs, n)
	}
}

// activity adds the node of an activity to the lane of its stream.
func (b *builder) activity(i, first int32) {
	a := &b.t.Activities[i]
	l := &b.lanes[first+a.Stream]
	r := noRef()
	r.act = i
	if a.Op != timeline.None {
		r.op = b.t.Outermost(a.Op)
	}
	b.acts[i] = place{first + a.Stream, int32(len(l.nodes))}
	l.nodes = append(l.nodes, node{at: a.End, own: a.End - a.Start, what: b.activityWhat(a, r.op), prev: noNode, dep: noNode})
	l.refs = append(l.refs, r)
}

// activityWhat returns the number of the What of an activity, to which it adds its time. Names of kernels are long, and
// looked up once for each device.
func (b *builder) activityWhat(a *timeline.Activity, op int32) int32 {
	w, k := b.nameActivity(a), b.t.KernelIndex(a)
	cache := &b.kernelWhats[0]
	switch asked := b.asks[op]; {
	case op == noNode:
	case asked.inRow:
		w.Row, cache = asked.row, &b.kernelWhats[1]
	case asked.graph:
		w.Graph, cache = true, &b.kernelWhats[2]
	}
	if k == timeline.None {
		return b.what(w, a.End-a.Start, certain)
	}
	if i := (*cache)[k] - 1; i != noNode {
		b.more(i, a.End-a.Start, certain)
		return i
	}
	i := b.what(w, a.End-a.Start, certain)
	(*cache)[k] = i + 1
	return i
}

func (b *builder) nameActivity(a *timeline.Activity) What {
	w := What{Kind: Kernel, Device: b.t.Streams[a.Stream].Device}
	if a.Kind == timeline.Kernel {
		if k := b.t.Kernel(a); k != nil {
			w.Name = k.Name
		}
		return w
	}
	w.Kind, w.Name = Copy, names()[copySet]
	if a.Kind == timeline.Copy {
		w.Name = names()[copyName(&b.t.Rec.Events[a.Event])]
	}
	return w
}

// The engines of a device, and the names of what copies do: by direction, and by what the host's memory is.
const (
	kernels uint8 = iota
	copySet
	copyUp
	copyUpPageable
	copyDown
	copyDownPageable
	copyPeer
	copyInside
	copyNames
)

func names() [copyNames]string {
	return [...]string{"", "set", "h2d", "h2d pageable", "d2h", "d2h pageable", "peer", "d2d"}
}

// engine returns what of its device runs an activity.
func (b *builder) engine(i int32) uint8 {
	a := &b.t.Activities[i]
	switch a.Kind {
	case timeline.Kernel:
		return kernels
	case timeline.Copy:
		return copyName(&b.t.Rec.Events[a.Event])
	}
	return copySet
}

// copyName names a copy by its direction and by what its host memory is: CUpti_ActivityMemcpyKind and
// CUpti_ActivityMemoryKind of the CUPTI reference.
func copyName(e *event.Event) uint8 {
	kind, from, to := uint8(e.Ret), uint8(e.Ret>>8), uint8(e.Ret>>16)
	const pageable = 1
	switch kind {
	case 1, 3: // to a device, to an array
		if from == pageable {
			return copyUpPageable
		}
		return copyUp
	case 2, 4:
		if to == pageable {
			return copyDownPageable
		}
		return copyDown
	case 10:
		return copyPeer
	}
	return copyInside
}
