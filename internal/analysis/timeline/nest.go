package timeline

import (
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// ownLimit is the longest time, in ns, from an entry-only runtime call (or from
// the last preparation it made) to the driver call that carries it out. A first
// launch loads its module there, which takes up to hundreds of milliseconds.
const ownLimit = 1_000_000_000

// class is what the timeline needs to know of a function.
type class struct {
	runtime bool
	prepare bool // a driver call that the runtime makes on the way to another one
	starts  groups
	role    role
	useful  bool // it can wait for the GPU, or make a stream wait
	group   string
	talks   bool   // it is NCCL's
	moves   bool   // it is, and has data go between GPUs
	stem    string // the name without cu, cuda or hip
}

// nester finds the parent of each op of one thread, and marks those that others look at later.
type nester struct {
	t       *Timeline
	classes []class
	open    []int32 // timed ops that have not returned yet, the outermost first
	pending int32   // an entry-only runtime call whose driver call has not come yet
	quiet   uint64  // ns: since when the thread did nothing else
	agent   bool    // there can be calls that the agent saw
	crossed int
	marks   []int32
}

func classify(functions []recording.Function) []class {
	out := make([]class, len(functions))
	for i := range out {
		out[i] = classOf(&functions[i])
	}
	return out
}

func classOf(f *recording.Function) class {
	c := class{runtime: f.Library == "runtime", group: f.Group, talks: f.Group == "collective"}
	if c.talks {
		row, _ := cuda.Match(f.Base)
		c.moves = row.Exchanges()
	}
	if c.runtime {
		c.stem = strings.TrimPrefix(strings.TrimPrefix(f.Base, "cuda"), "hip")
	} else {
		c.stem = strings.TrimPrefix(f.Base, "cu")
		c.prepare = f.Group == "module" || f.Group == "context" || f.Group == "device" || f.Group == "init"
	}
	c.starts, c.role = groupOf(&c), roleOf(&c)
	c.useful = c.role != noRole || c.group == "sync" || c.group == "copy"
	return c
}

// thread nests the ops [first, last) of one thread, which are in the order of their entries; of two that
// began in the same nanosecond the longer one is the outer one and comes first.
func (n *nester) thread(first, last int32) {
	n.pending = None
	for i := first; i < last; i++ {
		op := &n.t.Ops[i]
		n.close(op)
		if len(n.open) > 0 {
			op.Parent = n.open[len(n.open)-1]
			n.twin(op)
		} else {
			n.outermost(i, op)
		}
		if op.Timed {
			n.open = append(n.open, i)
		}
		if c := &n.classes[op.Func]; c.useful || c.starts != 0 && (op.Via == Probe || op.Parent != None) {
			n.marks = append(n.marks, i)
		}
	}
}

// close takes from the stack what had returned when op began, and what op outlasts:
// calls of one thread are nested or disjoint, so the latter is counted as a doubt.
func (n *nester) close(op *Op) {
	for len(n.open) > 0 {
		top := &n.t.Ops[n.open[len(n.open)-1]]
		if top.End() > op.Start && op.End() <= top.End() {
			return
		}
		if top.End() > op.Start {
			n.crossed++
		}
		n.open = n.open[:len(n.open)-1]
	}
}

// outermost handles a call that no timed call holds. The return of an entry-only
// runtime call is not seen, so the driver call that it made is known by what it
// does and by following at once.
func (n *nester) outermost(i int32, op *Op) {
	c := &n.classes[op.Func]
	switch {
	case n.pending != None && n.owns(n.pending, op):
		op.Parent = n.pending
		n.twin(op)
		n.pending = None
		if !op.Timed && op.Via == Probe { // the agent's view of the driver call can follow
			n.pending = i
		}
	case n.pending != None && c.prepare && op.Start-n.quiet <= ownLimit:
		// It stays an operation of its own: loading a module is worth seeing.
	case (c.runtime || n.agent) && !op.Timed:
		n.pending = i
	default:
		n.pending = None
	}
	n.quiet = op.End()
}

// twin marks what the agent saw of a call that a probe saw too: of the same function,
// and inside it.
func (n *nester) twin(op *Op) {
	outer := &n.t.Ops[op.Parent]
	if op.Via == Agent && outer.Via == Probe && n.same(outer, op) {
		op.Via = Twin
	}
}

// same reports whether two ops are of one function under whichever names.
func (n *nester) same(x, y *Op) bool {
	a, b := &n.classes[x.Func], &n.classes[y.Func]
	return x.Func == y.Func || a.runtime == b.runtime && a.stem == b.stem
}

// owns reports whether the entry-only call made op, the next call of its thread: a runtime
// call the driver call that carries it out, a probed driver call what the agent saw of it.
func (n *nester) owns(pending int32, op *Op) bool {
	outer := &n.t.Ops[pending]
	a, b := &n.classes[outer.Func], &n.classes[op.Func]
	if !a.runtime && (op.Via != Agent || !n.same(outer, op)) {
		return false
	}
	if b.runtime || op.Start-n.quiet > ownLimit || (a.group != b.group && a.stem != b.stem) {
		return false
	}
	return a.group != "launch" || outer.shape == 0 || op.shape == 0 || outer.shape == op.shape
}

// shapeOf condenses grid, block and shared memory of a launch, as bpf/event.h
// packs them, or returns 0 where they could not be read. A failed runtime launch is followed
// by somebody else's driver launch, and the shape tells them apart; it is kept
// in the op because going back to the event costs a cache miss each (65 ns a launch).
func shapeOf(e *event.Event) uint32 {
	if e.Args[2] == 0 {
		return 0
	}
	mixed := (e.Args[2]*0x9e3779b97f4a7c15 ^ e.Args[3]) * 0xbf58476d1ce4e5b9
	return uint32(mixed>>32) | 1
}
