package profile

import (
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// framesOf reads a stack, leaf first: n... native, N... native of the interpreter's
// loop, p... Python, P... Python that C code has called, k... kernel.
func framesOf(text string) (frames []frame, eval []bool) {
	for word := range strings.FieldsSeq(text) {
		f := frame{name: word}
		switch word[0] {
		case 'p', 'P':
			f.kind = pythonFrame
		case 'k':
			f.kind = kernelFrame
		}
		frames = append(frames, f)
		eval = append(eval, word[0] == 'N')
	}
	return frames, eval
}

func pythonOf(text string, complete bool) pyStack {
	frames, _ := framesOf(text)
	py := pyStack{complete: complete}
	for _, f := range frames {
		py.calls = append(py.calls, call{f, f.name[0] == 'P'})
	}
	return py
}

func pointers(frames []frame) []*frame {
	out := make([]*frame, len(frames))
	for i := range frames {
		out[i] = &frames[i]
	}
	return out
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
		none, deep            bool
		want                  string
		origin                event.StackOrigin
	}{
		{what: "whole", python: "P0 P1", trace: "n0 N0 n1 N1 n2", want: "n0 N0 P0 n1 P1 n2", origin: event.Whole},
		{
			what: "one call of the loop runs several", python: "p0 p1 P2 p3 P4", trace: "n0 N0 n1 N1 n2",
			want: "n0 N0 p0 p1 P2 n1 p3 P4 n2", origin: event.Whole,
		},
		{
			what: "the first frame is never called by C", python: "P0 p1", trace: "N0 n1 N1", want: "N0 P0 n1 p1",
			origin: event.Whole,
		},
		{what: "whole native", trace: "n0 n1", want: "n0 n1", origin: event.Whole},
		{
			what: "the loop of a thread that is none of Python's", trace: "n0 N0 n1", want: "n0 N0 n1",
			origin: event.Whole,
		},
		{what: "kernel first", kernel: "k0 k1", trace: "n0 n1", want: "k0 k1 n0 n1", origin: event.Whole},
		{
			what: "a call of the loop just begins", python: "p0 P1 P2", trace: "N0 n0 N1 n1 N2",
			want: "N0 n0 N1 p0 P1 n1 P2", origin: event.Whole,
		},
		{
			what: "more Python than the loop", python: "P0 P1 P2", trace: "n0 N0 n1 N1 n2",
			want: "n0 N0 P0 P1 n1 P2 n2", origin: event.Spliced,
		},
		{what: "the loop is not known", python: "p0 P1", trace: "n0 n1", want: "n0 n1 p0 P1", origin: event.Spliced},
		{what: "no trace", python: "P0 P1", none: true, want: "leaf P0 P1", origin: event.Python},
		{
			what: "no trace, in the kernel", kernel: "k0", python: "P0", none: true, want: "k0 leaf P0",
			origin: event.Python,
		},
		{what: "nothing", none: true, want: "leaf", origin: event.Leaf},
		{what: "an empty trace", python: "P0", trace: "", want: "leaf P0", origin: event.Python},
		{what: "gave up at the leaf", python: "P0 P1", trace: "n0", cut: cut, want: "n0 P0 P1", origin: event.Spliced},
		{
			what: "gave up between two", python: "P0 p1 P2", trace: "n0 N0 n1 n2", cut: cut,
			want: "n0 N0 P0 n1 n2 p1 P2", origin: event.Spliced,
		},
		{
			what: "gave up after all Python", python: "P0", trace: "n0 N0 n1", cut: cut, want: "n0 N0 P0 n1 cut",
			origin: event.Spliced,
		},
		{what: "gave up without Python", trace: "n0 n1", cut: cut, want: "n0 n1 cut", origin: event.Spliced},
		{
			what: "deeper than our walk", python: "p0 P1 p2", trace: "N0 n0 N1 n1 N2 n2", deep: true,
			want: "N0 p0 P1 n0 p2 n1 N2 n2", origin: event.Spliced,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			kernel, _ := framesOf(c.kernel)
			frames, eval := framesOf(c.trace)
			var tr *unwound
			if !c.none {
				tr = &unwound{frames: pointers(frames), eval: eval, cut: c.cut}
			}
			got := merge(kernel, pythonOf(c.python, !c.deep), tr, frame{name: "leaf"}, nil)
			if text(got.frames) != c.want || got.origin != c.origin {
				t.Errorf("%q (%d), not %q (%d)", text(got.frames), got.origin, c.want, c.origin)
			}
		})
	}
}

// Whatever the unwinder says, no Python frame that our walk saw may be lost or change
// its order, and no native frame but calls of the loop.
func FuzzMergeKeepsFrames(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 1, 1}, []byte{1, 0, 1}, true, true)
	f.Add([]byte{3, 3, 0, 1}, []byte{0, 0, 0}, false, true)
	f.Add([]byte{3, 3, 3, 3}, []byte{1, 1}, false, false)
	fuzzing.Run(f, func(t *testing.T, shape, entries []byte, cut, complete bool) {
		py := pyStack{complete: complete}
		var want []frame
		for i, b := range entries[:min(len(entries), 20)] {
			p := call{frame{kind: pythonFrame, name: string(rune('a' + i))}, b%2 == 1}
			py.calls = append(py.calls, p)
			want = append(want, p.frame)
		}
		tr := &unwound{}
		if cut {
			tr.cut = "cut"
		}
		var native []frame
		for i, b := range shape[:min(len(shape), 64)] {
			n := frame{addr: uint64(i) + 1}
			tr.frames, tr.eval = append(tr.frames, &n), append(tr.eval, b%4 == 3)
			if b%4 != 3 {
				native = append(native, n)
			}
		}
		got := merge(nil, py, tr, frame{name: "leaf"}, nil).frames
		for what, all := range map[string][]frame{"Python": want, "native": native} {
			at := 0
			for _, f := range all {
				i := slices.Index(got[at:], f)
				if i < 0 {
					t.Fatalf("%v lacks %v of the %s frames %v; the trace was %v", got, f, what, all, tr.frames)
				}
				at += i + 1
			}
		}
	})
}
