package sampler

import (
	"slices"

	"github.com/inferscope/inferscope/internal/event"
)

// trace is the unwinder's stack of a sample, without kernel frames.
type trace struct {
	tid    uint32
	at     uint64 // ns, CLOCK_MONOTONIC, when it began to unwind
	frames []frame
	// eval says of each frame whether it is native code of CPython's interpreter loop.
	eval []bool
	cut  string // why it ends before the thread's start; "" where it does not
}

// stack is the merged stack of a sample.
type stack struct {
	frames []frame // leaf first
	origin event.StackOrigin
}

// merge makes one stack of what is known of a sample: the kernel frames and the
// Python frames of the own program, the unwinder's trace (nil: none), and the leaf,
// which stands in where there is no trace. python says whether the thread's Python
// frames are all there.
func merge(kernel, python []frame, t *trace, leaf frame) stack {
	if t == nil || len(t.frames) == 0 {
		return withoutTrace(kernel, python, leaf)
	}
	origin := event.Whole
	user := t.frames
	if known, _ := agreed(t.frames, python); t.cut != "" || known < len(python) {
		origin = event.Spliced
		user = splice(t, python)
	}
	return stack{frames: join(kernel, user), origin: origin}
}

func withoutTrace(kernel, python []frame, leaf frame) stack {
	if len(python) == 0 {
		return stack{frames: join(kernel, []frame{leaf}), origin: event.Leaf}
	}
	return stack{frames: join(kernel, []frame{leaf}, python), origin: event.Python}
}

// splice puts the Python frames that the trace lacks where they belong: behind the
// last one that it has, at the first frame of the interpreter's loop after that, or at
// the end of what it knows. Native frames between two Python frames that the
// unwinder did not tell apart are left out; what lies below the last frame of the
// loop (the program's start) is kept.
func splice(t *trace, python []frame) []frame {
	known, last := agreed(t.frames, python)
	head, rest := t.frames[:last], t.frames[last:]
	missing := python[known:]
	if len(missing) == 0 {
		return cutOff(t.frames, t.cut)
	}
	cut := t.cut != ""
	if i := slices.IndexFunc(rest, func(f frame) bool { return f.kind == pythonFrame }); i >= 0 {
		rest, cut = rest[:i], true // misled from here on
	}
	first, end := loop(t.eval[last : last+len(rest)])
	if first < 0 { // it went as far as it could, and never came to the loop
		return join(head, rest, missing)
	}
	if cut {
		return join(head, rest[:first], missing)
	}
	return join(head, rest[:first], missing, rest[end:])
}

// agreed returns how many Python frames of the trace are the leading ones of python,
// and where in the trace the last of them ends. A trace that tells of others was
// misled, so everything from its first Python frame on is left to the own walk.
func agreed(frames, python []frame) (known, end int) {
	for i := range frames {
		if frames[i].kind != pythonFrame {
			continue
		}
		if known == len(python) || !same(frames[i], python[known]) {
			return known, end
		}
		known++
		end = i + 1
	}
	return known, end
}

// same compares the function, not the line: the two walks may see a frame that is
// just being entered differently.
func same(a, b frame) bool {
	return a.name == b.name && a.file == b.file || b.name == unnamed
}

// loop returns the range of frames from the first to behind the last of the
// interpreter's loop; first is -1 where there is none.
func loop(eval []bool) (first, end int) {
	first = -1
	for i, is := range eval {
		if !is {
			continue
		}
		if first < 0 {
			first = i
		}
		end = i + 1
	}
	return first, end
}

// cutOff says at the end of a stack why it ends there.
func cutOff(frames []frame, why string) []frame {
	if why == "" {
		return frames
	}
	return join(frames, []frame{{kind: errorFrame, name: why}})
}

func join(parts ...[]frame) []frame {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	out := make([]frame, 0, n)
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
