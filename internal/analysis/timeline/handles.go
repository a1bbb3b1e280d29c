package timeline

import (
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
)

// handleKey is a stream as the calls of a process name it. The per-thread default stream is one for each thread.
type handleKey struct {
	process int32
	handle  uint64
	thread  int32 // None but for the per-thread default stream
}

// handles finds streams by the handle that calls use. A handle can be used again after its stream
// was destroyed, so that it can mean several.
type handles map[handleKey][]int32

// nameStreams learns the handle of each stream from a call that is linked to one of its activities.
// The first node of a graph runs where the graph was launched; the others can run elsewhere, so that
// graphs are asked only where nothing else is there.
func (b *builder) nameStreams() {
	b.handles = handles{}
	for s := range b.t.Streams {
		st := &b.t.Streams[s]
		op := b.namer(int32(s))
		if op == None {
			continue
		}
		key, ok := b.handleOf(op, st.Process)
		if !ok {
			continue
		}
		b.handles[key] = append(b.handles[key], int32(s))
	}
}

// maxNamers is how many activities are looked at to name their stream.
const maxNamers = 64

// namer returns the call that best names a stream, None where there is none.
func (b *builder) namer(stream int32) int32 {
	graph := None
	list := b.of(stream)
	for n := range min(list.n, maxNamers) {
		switch a := &b.t.Activities[list.at(n)]; {
		case a.Op == None:
		case !a.Graph:
			return a.Op
		case graph == None:
			graph = a.Op
		}
	}
	return graph
}

// handleOf returns the stream that a call names.
func (b *builder) handleOf(op, process int32) (handleKey, bool) {
	c := b.decoder.Decode(b.t.RawEvent(&b.t.Ops[op]))
	if !c.HasStream {
		return handleKey{}, false
	}
	k := handleKey{process: process, handle: c.Stream, thread: None}
	if c.Stream == cuda.PerThreadStream {
		k.thread = b.t.ThreadOf(op)
	}
	return k, true
}

// streamsOf returns the streams of a process in the order of the timeline: those of one
// process follow each other.
func (b *builder) streamsOf(process int32) (first, last int32) {
	at := func(p int32) int32 {
		i, _ := slices.BinarySearchFunc(b.t.Streams, p, func(s Stream, p int32) int { return int(s.Process - p) })
		return int32(i)
	}
	return at(process), at(process + 1)
}
