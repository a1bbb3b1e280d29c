package html

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// flame is a flame graph: a tree of frames, the callers at the root.
type flame struct {
	title, unit, note string
	nodes             []flameNode // parents before their children
	index             map[flameKey]int32
}

// flameNode is a frame below its caller, with what was spent in it and in what it called.
type flameNode struct {
	parent int32
	frame  uint32 // index into frames.list
	total  uint64
}

type flameKey struct {
	parent int32
	frame  uint32
}

// frames numbers the frames of all flame graphs: a function of a file once, whatever its lines.
type frames struct {
	rec   *recording.Recording
	list  []flameFrame
	index map[flameFrame]uint32
	known []uint32 // by index into Meta.Frames: number + 1
	path  []uint32
}

// flameFrame is a frame's text, and what it is: python, native, kernel, thread or wait.
type flameFrame struct{ text, kind string }

func newFrames(rec *recording.Recording) *frames {
	return &frames{rec: rec, index: map[flameFrame]uint32{}, known: make([]uint32, len(rec.Meta.Frames))}
}

func (f *frames) number(fr flameFrame) uint32 {
	i, ok := f.index[fr]
	if !ok {
		i = uint32(len(f.list))
		f.list = append(f.list, fr)
		f.index[fr] = i
	}
	return i
}

func (f *frames) of(i uint32) uint32 {
	if f.known[i] == 0 {
		fr := &f.rec.Meta.Frames[i]
		kind := "native"
		switch fr.Kind {
		case recording.PythonFrame:
			kind = "python"
		case recording.KernelFrame:
			kind = "kernel"
		}
		text := format.Clean(fr.Name)
		if file := fileOf(fr); file != "" {
			text += " (" + format.Clean(file) + ")"
		}
		f.known[i] = f.number(flameFrame{format.Shorten(text, maxFrame), kind}) + 1
	}
	return f.known[i] - 1
}

// stack returns the frames of a stack, the caller of all first; valid until the next call.
func (f *frames) stack(stack uint64) []uint32 {
	f.path = f.path[:0]
	for i := range threads.Walk(f.rec, stack) {
		if f.rec.Meta.Frames[i].Kind != recording.ErrorFrame {
			f.path = append(f.path, f.of(i))
		}
	}
	slices.Reverse(f.path)
	return f.path
}

func newFlame(title, unit, note string) *flame {
	return &flame{title: title, unit: unit, note: note, index: map[flameKey]int32{}}
}

// add counts n in a stack below first, with last at its end where that is not 0.
func (f *flame) add(n uint64, first uint32, stack []uint32, last *uint32) {
	at := f.child(-1, first, n)
	for _, fr := range stack {
		at = f.child(at, fr, n)
	}
	if last != nil {
		f.child(at, *last, n)
	}
}

func (f *flame) child(parent int32, frame uint32, n uint64) int32 {
	k := flameKey{parent, frame}
	i, ok := f.index[k]
	if !ok {
		i = int32(len(f.nodes))
		f.nodes = append(f.nodes, flameNode{parent: parent, frame: frame})
		f.index[k] = i
	}
	f.nodes[i].total += n
	return i
}

// narrowest is the share of a flame graph below which a frame is left out: a third of a pixel on a wide screen.
const narrowest = 1.0 / 6000

// prune leaves out what is too narrow to be seen, and says how many frames that are.
func (f *flame) prune() (left int) {
	all := uint64(0)
	for i := range f.nodes {
		if f.nodes[i].parent < 0 {
			all += f.nodes[i].total
		}
	}
	least := uint64(float64(all) * narrowest)
	moved := make([]int32, len(f.nodes))
	kept := f.nodes[:0]
	for i, n := range f.nodes {
		if n.total <= least && least > 0 || n.parent >= 0 && moved[n.parent] < 0 {
			moved[i] = -1
			left++
			continue
		}
		moved[i] = int32(len(kept))
		if n.parent >= 0 {
			n.parent = moved[n.parent]
		}
		kept = append(kept, n)
	}
	f.nodes, f.index = kept, nil
	return left
}

// flames returns the non-empty flame graphs.
func flames(in Input, names func(thread) string) (list []*flame, fr *frames) {
	rec := in.Timeline.Rec
	fr = newFrames(rec)
	all := newFlame("All CPU time", "samples",
		"Samples of running threads, taken at regular intervals of their running time.")
	idle := newFlame("CPU time while the GPU was idle", "samples",
		"Samples of running threads at moments at which a GPU of the program ran nothing.")
	off := newFlame(
		"Off-CPU time",
		"ns",
		"How long threads were blocked, by where they went to sleep. It includes threads that only wait for work.",
	)
	gaps := idleSpans(in)
	next := 0
	if in.Timeline.Index == nil {
		return nil, fr
	}
	for _, e := range in.Timeline.Index.Samples {
		if e.TS < in.Timeline.From || e.TS > in.Timeline.To {
			continue
		}
		root := fr.number(flameFrame{names(thread{e.PID, e.TID}), "thread"})
		stack := fr.stack(uint64(e.Stack))
		all.add(1, root, stack, nil)
		for next < len(gaps) && gaps[next].To <= e.TS {
			next++
		}
		if next < len(gaps) && gaps[next].From <= e.TS {
			idle.add(1, root, stack, nil)
		}
	}
	offCPU(off, fr, in, names)
	for _, f := range []*flame{idle, all, off} {
		if len(f.nodes) > 0 {
			list = append(list, f)
		}
	}
	return list, fr
}

// idleSpans are the times at which some device ran nothing, in their order.
func idleSpans(in Input) timeline.Spans {
	var list []timeline.Span
	for g := range in.Walk.All() {
		list = append(list, timeline.Span{From: g.From, To: g.To})
	}
	return timeline.Join(list)
}

func offCPU(off *flame, fr *frames, in Input, names func(thread) string) {
	if len(in.Threads) == 0 {
		return
	}
	waits := in.Timeline.Index.Waits()
	for i := range in.Threads {
		th := &in.Threads[i]
		root := fr.number(flameFrame{names(thread{th.PID, th.TID}), "thread"})
		for _, iv := range th.Intervals {
			if iv.State != threads.Blocked {
				continue
			}
			w, ok := waits.Of(iv)
			last := fr.number(flameFrame{iv.Reason.String(), "wait"})
			var stack []uint32
			if ok {
				stack = fr.stack(w.Stack)
			}
			off.add(iv.Dur(), root, stack, &last)
		}
	}
}

// threadNames returns how flame graphs call threads: by name, so that the threads of a pool are one.
func threadNames(in Input) func(thread) string {
	names := map[thread]string{}
	for _, th := range in.Timeline.Rec.Meta.Threads {
		names[thread{th.PID, th.TID}] = format.Clean(th.Name)
	}
	return func(k thread) string { return cmp.Or(names[k], "thread") }
}

// frameName writes a frame with its place.
func frameName(f *recording.Frame) string {
	if f.Kind == recording.PythonFrame {
		return cpu.PythonPlace(f.Name, f.File, f.Line)
	}
	return f.Name
}

func fileOf(f *recording.Frame) string {
	if f.Kind == recording.PythonFrame {
		return cpu.ShortFile(f.File)
	}
	return f.File
}

// addFlame writes a flame graph: parents (how far back they are), frames, totals.
func (c *columns) addFlame(f *flame) {
	for i := range f.nodes {
		if p := f.nodes[i].parent; p < 0 {
			c.put(0)
		} else {
			c.put(uint64(int32(i) - p))
		}
	}
	for i := range f.nodes {
		c.put(uint64(f.nodes[i].frame))
	}
	for i := range f.nodes {
		c.put(f.nodes[i].total)
	}
}
