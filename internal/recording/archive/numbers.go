package archive

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// numbers are the rows of the tables that events refer to by number, and where they are.
type numbers struct {
	functions map[recording.Function]uint16
	frames    map[recording.Frame]uint32
	nodes     map[recording.Node]int32
	kernels   map[recording.Kernel]int32
	ranges    map[string]int32
	texts     map[string]int32 // attributes
}

// numbersOf returns the numbers of what is known so far: the first of rows that are equal.
func numbersOf(m *recording.Meta) *numbers {
	n := &numbers{
		functions: places[recording.Function, uint16](m.Functions), frames: places[recording.Frame, uint32](m.Frames),
		nodes:   places[recording.Node, int32](m.Stacks),
		kernels: map[recording.Kernel]int32{},
		ranges:  map[string]int32{},
		texts:   map[string]int32{},
	}
	if m.GPU != nil {
		n.kernels, n.ranges = places[recording.Kernel, int32](m.GPU.Kernels), places[string, int32](m.GPU.Ranges)
		n.texts = places[string, int32](m.GPU.Attributes)
	}
	return n
}

func places[T comparable, N uint16 | uint32 | int32](rows []T) map[T]N {
	at := make(map[T]N, len(rows))
	for i, v := range rows {
		if _, there := at[v]; !there {
			at[v] = N(i)
		}
	}
	return at
}

// place returns the number of a row, which is added where it is new.
func place[T comparable, N uint16 | uint32 | int32](rows *[]T, at map[T]N, v T) N {
	n, there := at[v]
	if !there {
		n = N(len(*rows))
		at[v] = n
		*rows = append(*rows, v)
	}
	return n
}

// renumber gives the events of a stretch the numbers of the whole.
func (m *merger) renumber(rec *recording.Recording) {
	r := &renumbering{m: m, from: &rec.Meta, stacks: map[int32]int32{}}
	if m.meta.GPU == nil && rec.Meta.GPU != nil {
		m.meta.GPU = &recording.GPU{}
	}
	for _, f := range rec.Meta.Functions {
		r.functions = append(r.functions, place(&m.meta.Functions, m.known.functions, f))
	}
	for i := range rec.Events {
		r.event(&rec.Events[i])
	}
}

// renumbering is the numbers of one stretch on their way to those of the whole.
type renumbering struct {
	m         *merger
	from      *recording.Meta
	functions []uint16
	stacks    map[int32]int32
}

// event renumbers one event. A number that points behind its table stays as it is.
func (r *renumbering) event(e *event.Event) {
	switch e.Kind {
	case event.Call:
		if int(e.Func) < len(r.functions) {
			e.Func = r.functions[e.Func]
		}
	case event.Sample, event.Allocation, event.OutOfMemory:
		if at := e.Args[0]; at > 0 && at <= uint64(len(r.from.Stacks)) {
			e.Args[0] = uint64(r.stack(int32(at-1))) + 1
		}
	case event.Kernel:
		if g := r.from.GPU; g != nil && e.Ret > 0 && int(e.Ret) <= len(g.Kernels) {
			e.Ret = place(&r.m.meta.GPU.Kernels, r.m.known.kernels, g.Kernels[e.Ret-1]) + 1
		}
	case event.Range:
		if r.from.GPU != nil {
			r.rangeEvent(e, r.from.GPU)
		}
	}
}

func (r *renumbering) rangeEvent(e *event.Event, g *recording.GPU) {
	if e.Ret > 0 && int(e.Ret) <= len(g.Ranges) {
		e.Ret = place(&r.m.meta.GPU.Ranges, r.m.known.ranges, g.Ranges[e.Ret-1]) + 1
	}
	if at := e.Args[3]; e.Func == event.ScopeRange && at > 0 && at <= uint64(len(g.Attributes)) {
		e.Args[3] = uint64(place(&r.m.meta.GPU.Attributes, r.m.known.texts, g.Attributes[at-1])) + 1
	}
}

// stack returns the node of the whole for a node of the stretch. Its callers come first, from the outermost
// that is not known yet; a tree that runs in a circle ends after as many steps as it has nodes.
func (r *renumbering) stack(at int32) int32 {
	var path []int32
	parent := int32(-1)
	for n := at; n >= 0 && int(n) < len(r.from.Stacks) && len(path) <= len(r.from.Stacks); n = r.from.Stacks[n].Parent {
		if to, known := r.stacks[n]; known {
			parent = to
			break
		}
		path = append(path, n)
	}
	for i := len(path) - 1; i >= 0; i-- {
		node := recording.Node{Parent: parent, Frame: r.frame(r.from.Stacks[path[i]].Frame)}
		parent = place(&r.m.meta.Stacks, r.m.known.nodes, node)
		r.stacks[path[i]] = parent
	}
	return parent
}

func (r *renumbering) frame(at uint32) uint32 {
	if int(at) >= len(r.from.Frames) {
		return at
	}
	return place(&r.m.meta.Frames, r.m.known.frames, r.from.Frames[at])
}
