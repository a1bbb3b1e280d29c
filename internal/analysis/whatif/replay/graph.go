// Package replay runs a recording again, as a graph of what waited for what, with some of its
// times changed: how long would the same work have taken? It is a pure function of a timeline.
//
// A node is the end of a stretch of a thread or of an activity of a GPU. It comes at the latest of
// what it waited for, plus its own time. Every wait was for something that ended before it did, so
// that the order of the recording is an order of the graph, and a replay is one pass over it.
package replay

import "github.com/inferscope/inferscope/internal/analysis/cause"

// noNode stands where an index is missing.
const noNode int32 = -1

// kind is what a node stands for.
type kind uint8

// The kinds.
const (
	Run      kind = iota // a thread computed
	Ready                // a thread could run, and had no CPU
	Wait                 // a thread waited for another thread of the target
	External             // a thread waited for something outside: a sleep, a disk, the network
	Call                 // a call of CUDA that waits for nothing: allocation, launches, queries
	Sync                 // a call that waited for a GPU, or would have
	Kernel               // a GPU computed
	Copy                 // a GPU copied, or set memory
	kinds
)

// Absent is the name of the time before a thread began and after it ended.
const Absent = "absent"

// Doubt is how the name of a time is known: gap.Confidence.
type Doubt uint8

// The ways, the best first.
const (
	certain Doubt = iota
	inferred
	Guess
	doubts
)

// What is what the time of nodes went to; changes are made to all nodes of a What.
type What struct {
	Kind  kind
	Cause cause.ID // of threads: as the walk along the critical path names it
	Name  string   // function with its file, call, kernel, direction of a copy
	// of Run: the other functions of its stack, one a line: those that called it, the nearest first, and of Python the
	// native ones; of Wait, External, Call and Sync: all functions of the stack that waits or calls
	Callers  string
	PID, TID uint32 // the thread; 0 of what a GPU does
	Device   int32  // index into Timeline.Devices of what a GPU does
	Burst    bool   // of threads: on the way from one launch to the next (see bursts)
	Reads    bool   // of threads: on the way from one look at a result of the GPU to the next (see reads)
	Ousted   bool   // of Ready: another had taken its CPU away, while it computed
	// of External: a sleep between two looks whether a GPU is done, or an errand (Asked); without the sleep the thread
	// waits for it
	Polls  bool
	Asked  bool
	Row    Row  // of a GPU: it is one of a row; of threads: on the way from one launch of a row to the end of the next
	Graph  bool // of a GPU: a CUDA graph launched it
	Locked bool // of Run: it held the lock of a Python interpreter (GIL), which one thread of a process has at a time
	// of Run: it is not the program's own but the recorder's; of Ready: the recorder took its CPU away
	Recorder bool
	Beyond   bool  // of Ready that the recorder took away: it waited again, and others had the CPU
	Woken    int32 // of Ready: number + 1 of the What of the wait that had just ended; 0: none had
}

// Time is how much time went to a What.
type Time struct {
	Own   uint64         // ns; of a Wait: for how long it waited; of a Sync: 0
	By    [doubts]uint64 // Own, by how it is known
	Count int            // nodes
	Gap   uint64         // ns of the delays after the node before
}

// Graph is a stretch of a recording as nodes in the order of their ends.
type Graph struct {
	From              uint64 // ns, CLOCK_MONOTONIC
	Whats             []What
	Times             []Time // of Whats
	nodes             []node
	more              []edge // what nodes with more than two dependencies wait for: by node
	criticalResources []criticalResource
	engines           []engineOf
	busy              []Busy
	awaited           map[tid]uint64 // ns that threads waited for a thread of the target, by that thread
	gpu               bool           // it has activities
	target            uint32         // pid of the process that was asked for
	waits             bool           // its main thread waits often
	Rows              [Rows]rowTotal
	usual             [kinds]delay // what delays of nodes of a kind are at most where nothing unknown delays them
}

// delay is a node's lagPrev and lagDep, ns.
type delay struct{ prev, dep uint64 }

// node ends at max(end(prev)+lagPrev, end(dep)+lagDep, From+start) + own.
type node struct {
	at      uint64 // ns, when it ended in the recording
	own     uint64 // ns of its own
	lagPrev uint64 // ns from the end of prev to the beginning of own
	lagDep  uint64 // the same of dep
	prev    int32  // the node before it in its thread or stream; None: it is the first
	dep     int32  // what else it waited for: a launch, an activity, a waker; None
	what    int32  // index into Graph.Whats
	more    bool   // Graph.more has more
}

// edge is one more dependency of a node.
type edge struct {
	to, from int32
	lag      uint64
}

// criticalResource is the end of the work of a thread that uses the GPU.
type criticalResource struct {
	nodes  []int32
	at     uint64  // ns since From, when it was reached in the recording
	weight float64 // how much it launched
}

// engineOf is a part of a device that did one thing at a time: its kernels, or its copies of one name.
type engineOf struct {
	device int32
	name   uint8 // kernels, or what names() says
}

// Awaited returns for how long others waited for a thread of the target to go on, ns.
func (g *Graph) Awaited(pid, id uint32) uint64 { return g.awaited[tid{pid, id}] }

// Nodes returns how many nodes the graph has.
func (g *Graph) Nodes() int { return len(g.nodes) }

// Change is what a plan does with a What.
type Change struct {
	Scale  float64 // of its own time: 1 leaves it, 0.5 is twice as fast, 0 removes it
	Detach bool    // it waits no more for what it waited for (a sync, a waker); what came before it in its thread counts still
	Lag    float64 // of the delay after what else it waited for: launch latency, returns of calls
	Gap    float64 // of the delay after the one before it in its thread or stream
	// Apart is the number of a sequence of its own, from 1 on: the node leaves its thread or stream, where nothing
	// waits for it any more, and comes after the one before it in that sequence. 0: it stays.
	Apart int
}

// Keep is the change that changes nothing.
func Keep() Change { return Change{Scale: 1, Lag: 1, Gap: 1} }

// Plan says what is changed, by index into Graph.Whats.
type Plan struct {
	Changes []Change
	// Usual cuts delays to what is usual for their kind (see usualTimes): what a replay then lacks is time that nothing
	// in the recording explains.
	Usual bool
}

// Unchanged is the plan that changes nothing.
func (g *Graph) Unchanged() *Plan {
	p := &Plan{Changes: make([]Change, len(g.Whats))}
	for i := range p.Changes {
		p.Changes[i] = Keep()
	}
	return p
}
