package replay

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/timeline"
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
	for d := range b.t.Devices {
		dev := &b.t.Devices[d]
		for i := dev.First; i < dev.Last; i++ {
			if a := &b.t.Activities[i]; a.Start >= b.span.From && a.End <= b.span.To {
				b.devices[d] = append(b.devices[d], i)
			}
		}
		slices.SortStableFunc(b.devices[d], func(x, y int32) int { return cmp.Compare(b.t.Activities[x].End, b.t.Activities[y].End) })
		for _, i := range b.devices[d] {
			b.activity(i, first)
		}
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
		b.asks[r.op] = b.asks[r.op] || a.Kind == timeline.Kernel
	}
	b.acts[i] = place{first + a.Stream, int32(len(l.nodes))}
	l.nodes = append(l.nodes, node{at: a.End, own: a.End - a.Start, what: b.what(b.activityWhat(a), a.End-a.Start, Certain), prev: None, dep: None})
	l.refs = append(l.refs, r)
}

func (b *builder) activityWhat(a *timeline.Activity) What {
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
