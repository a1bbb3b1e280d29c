package profile

import (
	"sync"

	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of the table of stacks. A minute of sixteen busy PyTorch threads at 99 Hz
// makes about 30,000 nodes; a full generation takes 2 MB, 4.5 while it grows (BenchmarkTable).
const (
	maxNodes       = 1 << 16 // in one generation
	minNodes       = 1 << 10 // before age ends one
	maxGenerations = 4
	maxDepth       = 512 // frames of one stack
)

// frameKind is the kind of code that a frame is of.
type frameKind uint8

const (
	nativeFrame frameKind = iota
	pythonFrame
	kernelFrame
	errorFrame
)

// frame is one place in code as it is kept: comparable, and named as late as possible.
type frame struct {
	kind   frameKind
	module *module // native: the file; nil: not in a file
	addr   uint64  // native: address in the file's own numbering; kernel: address
	pid    uint32  // native without a file: whose address it is
	name   string  // Python: function; error: why
	file   string  // Python: source file
	line   uint32  // Python
}

// table is a tree of stacks with frames that occur once. Numbers of stacks are never used again: the table is a few
// generations, of which the newest grows. When it is full, or holds stacks that are older than all events, a new one
// begins, and old ones go when the recorder holds no event as old as their newest, or when there are too many. A stack
// that is taken all the time stands in each generation.
type table struct {
	mu    sync.Mutex
	gens  []*generation       // oldest first
	fresh func(*frame)        // called with native frames that are new to a generation; may be nil
	left  func([]*generation) // called with what is left when generations have gone; may be nil
}

type generation struct {
	base   uint64 // number of the first node
	began  uint64 // ns, the first sample that has a stack here; 0: there is none
	newest uint64 // ns, the latest sample that has a stack here
	nodes  []recording.Node
	index  map[recording.Node]int32
	frames []frame
	byKey  map[frame]uint32 // those that are not in byPlace
	places map[place]uint32 // native frames of files
	fresh  func(*frame)
}

func (t *table) newGeneration(base uint64) *generation {
	return &generation{
		base:   base,
		index:  map[recording.Node]int32{},
		byKey:  map[frame]uint32{},
		places: map[place]uint32{},
		fresh:  t.fresh,
	}
}

// add returns the number of a stack (leaf first), 0 for an empty one. ts is the time of
// the sample, held the time since which the recorder holds events (ns).
func (t *table) add(stack []frame, ts, held uint64) uint64 {
	if len(stack) == 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.room(held)
	if g.began == 0 {
		g.began = ts
	}
	g.newest = max(g.newest, ts)
	return g.base + uint64(g.add(stack))
}

// again notes that a sample at ts has the stack with this number, and whether the
// number is good for it: only in the newest generation, which goes last.
func (t *table) again(number, ts uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gens) == 0 {
		return false
	}
	g := t.gens[len(t.gens)-1]
	if number < g.base {
		return false
	}
	g.newest = max(g.newest, ts)
	return true
}

// room returns the generation to add to.
func (t *table) room(held uint64) *generation {
	n := len(t.gens)
	if n == 0 {
		t.gens = append(t.gens, t.newGeneration(1)) // 0 is no stack
		return t.gens[0]
	}
	g := t.gens[n-1]
	if old := g.began < held && len(g.nodes) >= minNodes; !old && len(g.nodes)+maxDepth <= maxNodes {
		return g
	}
	for len(t.gens) > 0 && (t.gens[0].newest < held || len(t.gens) >= maxGenerations) {
		t.gens[0] = nil
		t.gens = t.gens[1:]
	}
	if t.left != nil && len(t.gens) < n {
		t.left(t.gens)
	}
	g.seal()
	next := t.newGeneration(g.base + uint64(len(g.nodes)))
	t.gens = append(t.gens, next)
	return next
}

// seal lets go of what finds nodes and frames again, more than half of its memory (BenchmarkTable: 10 instead of 18 MB
// in all): only the newest generation is added to.
func (g *generation) seal() { g.index, g.byKey, g.places = nil, nil, nil }

func (g *generation) add(stack []frame) int32 {
	if len(stack) > maxDepth {
		stack = stack[:maxDepth] // the leaf matters most
	}
	at := int32(-1)
	for i := len(stack) - 1; i >= 0; i-- {
		node := recording.Node{Parent: at, Frame: g.frame(&stack[i])}
		n, ok := g.index[node]
		if !ok {
			n = int32(len(g.nodes))
			g.nodes = append(g.nodes, node)
			g.index[node] = n
		}
		at = n
	}
	return at
}

// frame returns the number of a frame. Native ones of files, which most are, are
// looked up by what is quick to hash.
func (g *generation) frame(f *frame) uint32 {
	inFile := f.kind == nativeFrame && f.module != nil
	at := place{f.module, f.addr}
	i, ok := g.places[at]
	if !inFile {
		i, ok = g.byKey[*f]
	}
	if ok {
		return i
	}
	i = uint32(len(g.frames))
	g.frames = append(g.frames, *f)
	if inFile {
		g.places[at] = i
	} else {
		g.byKey[*f] = i
	}
	if f.kind == nativeFrame && g.fresh != nil {
		g.fresh(f)
	}
	return i
}

// pick copies the stacks with the given numbers out into one tree of their own.
func (t *table) pick(numbers []uint64) *picked {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &picked{
		at:      make(map[uint64]uint64, len(numbers)),
		frameAt: map[frame]uint32{},
		nodeAt:  map[recording.Node]int32{},
	}
	for _, number := range numbers {
		if g := t.generation(number); g != nil {
			p.at[number] = uint64(p.stack(g, int32(number-g.base))) + 1
		}
	}
	return p
}

func (t *table) generation(number uint64) *generation {
	for _, g := range t.gens {
		if number >= g.base && number-g.base < uint64(len(g.nodes)) {
			return g
		}
	}
	return nil
}

// picked is a tree of some stacks.
type picked struct {
	nodes   []recording.Node
	frames  []frame
	at      map[uint64]uint64 // number of a stack -> index + 1 into nodes
	frameAt map[frame]uint32
	nodeAt  map[recording.Node]int32
}

// stack copies one stack, from the root on, so that callers stand before callees.
func (p *picked) stack(g *generation, leaf int32) int32 {
	var path []int32
	for n := leaf; n >= 0; n = g.nodes[n].Parent {
		path = append(path, n)
	}
	at := int32(-1)
	for i := len(path) - 1; i >= 0; i-- {
		f := g.frames[g.nodes[path[i]].Frame]
		k, ok := p.frameAt[f]
		if !ok {
			k = uint32(len(p.frames))
			p.frames = append(p.frames, f)
			p.frameAt[f] = k
		}
		node := recording.Node{Parent: at, Frame: k}
		n, ok := p.nodeAt[node]
		if !ok {
			n = int32(len(p.nodes))
			p.nodes = append(p.nodes, node)
			p.nodeAt[node] = n
		}
		at = n
	}
	return at
}
