package profile

import "github.com/inferscope/inferscope/internal/recording/event"

// trace describes which stack the unwinder found for a sample.
type trace struct {
	pid, tid uint32
	at       uint64 // ns, CLOCK_MONOTONIC, when it began to unwind
	stack    *unwound
}

// unwound is a stack of the unwinder's, native frames only. Samples with the same stack
// share it, so that what was made of it once need not be made again.
type unwound struct {
	frames []*frame // leaf first; of other stacks as well
	cut    string   // why it ends before the thread's start; "" where it does not

	// eval says of each frame whether it is code of CPython's interpreter loop: a call
	// of the loop, which runs Python frames. It is as the converter knew it at epoch,
	// and belongs to whoever merges.
	eval  []bool
	epoch uint64
}

// call is one Python frame.
type call struct {
	frame
	entry bool // C code has called it: the call of the loop that runs it runs no frame below it
}

// pyStack is the Python frames of a sample, leaf first.
type pyStack struct {
	calls    []call
	complete bool // to the thread's first frame
}

// stack is the merged stack of a sample.
type stack struct {
	frames []frame // leaf first
	origin event.StackOrigin
}

// merge makes one stack of what is known of a sample: the kernel frames and the
// Python frames of the own program, the unwinder's stack (nil: none), and the leaf,
// which stands in where there is none. It appends to kernel.
// probed are callers behind the end of a stack that was cut at a call whose return is probed.
func merge(kernel []frame, py pyStack, t *unwound, leaf frame, probed []frame) stack {
	w := weaver{out: kernel, calls: py.calls, probed: probed}
	switch {
	case t != nil && len(t.frames) > 0:
		return stack{origin: w.weave(t, py.complete), frames: w.out}
	case len(py.calls) > 0:
		w.out = append(w.out, leaf)
		w.take(len(w.calls))
		return stack{origin: event.Python, frames: w.out}
	}
	return stack{origin: event.Leaf, frames: append(w.out, leaf)}
}

// atProbe is why a stack ends at a call whose return is probed, as timed CUDA calls are.
const atProbe = "native callers are hidden by a return probe on a CUDA call"

// weaver puts Python frames where the interpreter's loop runs them: each call of the
// loop runs the frames up to one that C code has called, a chunk. No Python frame is
// lost where the two do not agree.
type weaver struct {
	out   []frame
	calls []call // those that are left
	bare  int    // calls of the loop, the topmost, that run no frame yet, or no more
	extra int    // chunks, the topmost, for which there is no call of the loop
	begun bool   // a call of the loop was met that runs frames

	probed []frame // callers behind the end of the trace
}

// weave goes through the trace.
func (w *weaver) weave(t *unwound, complete bool) event.StackOrigin {
	origin := event.Spliced
	if t.cut == "" && (complete || len(w.calls) == 0) {
		origin = w.align(t.loops())
	}
	for i, f := range t.frames {
		if t.eval[i] {
			w.loop(*f)
		} else {
			w.out = append(w.out, *f)
		}
	}
	cut := t.cut
	if len(w.probed) > 0 {
		w.out = append(w.out, w.probed...)
		cut = atProbe
	}
	if len(w.calls) == 0 && cut != "" {
		w.out = append(w.out, frame{kind: errorFrame, name: cut})
	}
	w.take(len(w.calls))
	return origin
}

// align compares two walks that are whole: they meet at the thread's start, so that
// they differ, if they do, at the leaf, where a call of the loop may just begin or end.
func (w *weaver) align(loops int) event.StackOrigin {
	chunks := w.chunks()
	w.bare, w.extra = max(0, loops-chunks), max(0, chunks-loops)
	if w.extra > 0 {
		return event.Spliced
	}
	return event.Whole
}

// loop takes what a call of the interpreter's loop runs. Of these calls only the
// topmost stays, as the native function in which its Python frames ran.
func (w *weaver) loop(f frame) {
	if w.bare > 0 || len(w.calls) == 0 {
		w.bare--
		w.out = append(w.out, f)
		return
	}
	if !w.begun {
		w.begun = true
		w.out = append(w.out, f)
		for range w.extra {
			w.take(w.chunk())
		}
	}
	w.take(w.chunk())
}

// chunk returns how many Python frames the present call of the loop runs.
func (w *weaver) chunk() int {
	for i := range w.calls {
		if w.calls[i].entry {
			return i + 1
		}
	}
	return len(w.calls)
}

func (w *weaver) chunks() int {
	n := 0
	for i := range w.calls {
		if w.calls[i].entry || i == len(w.calls)-1 {
			n++
		}
	}
	return n
}

func (w *weaver) take(n int) {
	for i := range w.calls[:n] {
		w.out = append(w.out, w.calls[i].frame)
	}
	w.calls = w.calls[n:]
}

func (t *unwound) loops() int {
	n := 0
	for _, is := range t.eval {
		if is {
			n++
		}
	}
	return n
}
