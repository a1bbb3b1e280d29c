package sampler

import (
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/event"
)

// frames reads a stack, leaf first: n... native, N... native of the interpreter's loop,
// p... Python, k... kernel.
func framesOf(text string) (frames []frame, eval []bool) {
	for word := range strings.FieldsSeq(text) {
		f := frame{name: word}
		switch word[0] {
		case 'p':
			f.kind = pythonFrame
		case 'k':
			f.kind = kernelFrame
		}
		frames = append(frames, f)
		eval = append(eval, word[0] == 'N')
	}
	return frames, eval
}

func text(frames []frame) string {
	words := make([]string, len(frames))
	for i := range frames {
		words[i] = frames[i].name
	}
	return strings.Join(words, " ")
}

func TestMerge(t *testing.T) {
	const cut = "cut"
	for _, c := range []struct {
		what                  string
		kernel, python, trace string
		cut                   string
		none                  bool
		want                  string
		origin                event.StackOrigin
	}{
		{what: "whole", python: "p0 p1", trace: "n0 p0 n1 p1 n2", want: "n0 p0 n1 p1 n2", origin: event.Whole},
		{what: "whole native", trace: "n0 n1", want: "n0 n1", origin: event.Whole},
		{what: "kernel first", kernel: "k0 k1", trace: "n0 n1", want: "k0 k1 n0 n1", origin: event.Whole},
		{what: "no trace", python: "p0 p1", none: true, want: "leaf p0 p1", origin: event.Python},
		{what: "no trace, in the kernel", kernel: "k0", python: "p0", none: true, want: "k0 leaf p0", origin: event.Python},
		{what: "nothing", none: true, want: "leaf", origin: event.Leaf},
		{what: "an empty trace", python: "p0", trace: "", want: "leaf p0", origin: event.Python},
		{what: "gave up at the leaf", python: "p0 p1", trace: "n0", cut: cut, want: "n0 p0 p1", origin: event.Spliced},
		{what: "gave up between two", python: "p0 p1 p2", trace: "n0 p0 n1 n2", cut: cut, want: "n0 p0 n1 n2 p1 p2", origin: event.Spliced},
		{what: "gave up after all Python", python: "p0", trace: "n0 p0 n1", cut: cut, want: "n0 p0 n1 cut", origin: event.Spliced},
		{what: "gave up without Python", trace: "n0 n1", cut: cut, want: "n0 n1 cut", origin: event.Spliced},
		{what: "does not know the interpreter", python: "p0 p1", trace: "n0 N n1 n2 N n3", want: "n0 p0 p1 n3", origin: event.Spliced},
		{what: "loses the interpreter on the way", python: "p0 p1 p2", trace: "n0 p0 n1 N n2 N n3", want: "n0 p0 n1 p1 p2 n3", origin: event.Spliced},
		{what: "gave up in the interpreter", python: "p0 p1", trace: "n0 N n1", cut: cut, want: "n0 p0 p1", origin: event.Spliced},
		{what: "was misled", python: "p0 p1", trace: "n0 px", cut: cut, want: "n0 p0 p1", origin: event.Spliced},
		{what: "more Python than our walk", python: "p0", trace: "n0 p0 p1 n1", want: "n0 p0 p1 n1", origin: event.Whole},
	} {
		t.Run(c.what, func(t *testing.T) {
			kernel, _ := framesOf(c.kernel)
			python, _ := framesOf(c.python)
			frames, eval := framesOf(c.trace)
			var tr *trace
			if !c.none {
				tr = &trace{frames: frames, eval: eval, cut: c.cut}
			}
			got := merge(kernel, python, tr, frame{name: "leaf"})
			if text(got.frames) != c.want || got.origin != c.origin {
				t.Errorf("%q (%d), not %q (%d)", text(got.frames), got.origin, c.want, c.origin)
			}
		})
	}
}

// Whatever the unwinder says, no Python frame that our walk saw may be lost or change its order.
func FuzzMergeKeepsPython(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 1, 1}, uint8(3), true)
	f.Add([]byte{3, 3, 0, 1}, uint8(7), false)
	f.Fuzz(func(t *testing.T, shape []byte, depth uint8, cut bool) {
		var python []frame
		for i := range int(depth % 20) {
			python = append(python, frame{kind: pythonFrame, name: string(rune('a' + i))})
		}
		tr := &trace{}
		if cut {
			tr.cut = "cut"
		}
		next := 0
		for _, b := range shape[:min(len(shape), 64)] {
			switch {
			case b%4 == 0 && next < len(python):
				tr.add(python[next], false)
				next++
			case b%4 == 1:
				tr.add(frame{kind: pythonFrame, name: string(rune('A' + b%7))}, false)
			default:
				tr.add(frame{addr: uint64(b)}, b%4 == 3)
			}
		}
		got := merge(nil, python, tr, frame{name: "leaf"}).frames
		at := 0
		for _, want := range python {
			i := slices.Index(got[at:], want)
			if i < 0 {
				t.Fatalf("%v lacks %v of %v; the trace was %v", got, want, python, tr.frames)
			}
			at += i + 1
		}
	})
}
