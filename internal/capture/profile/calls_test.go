package profile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// inOrder tests that native and Python frames stand in the order of their calls, whichever way a CPython version runs
// its calls.
func inOrder(t *testing.T, s *following) {
	found := pythons()
	if len(found) == 0 {
		t.Skip("no python3.N under $PATH, ~/.pyenv/versions or /opt")
	}
	for _, python := range found {
		t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_"), func(t *testing.T) {
			v := start(t, python, "testdata/calls.py")
			if !v.Out.Scan() {
				t.Skip("it does not run here")
			}
			from := len(s.events)
			s.follow(v.pid())
			samples := func() []event.Event { return whole(clockOf(s.events[from:], v.pid())) }
			s.until("whole stacks", func([]event.Event) bool { return len(samples()) >= 60 })
			checked := 0
			for _, e := range samples() {
				if checkOrder(t, s.stack(e)) {
					checked++
				}
			}
			if checked < 40 {
				t.Errorf("only %d of %d stacks are of the innermost function", checked, len(samples()))
			}
		})
	}
}

// checkOrder checks a stack that was taken in spin or below it.
func checkOrder(t *testing.T, frames []recording.Frame) bool {
	t.Helper()
	python := names(frames, recording.PythonFrame)
	if !slices.Equal(python, []string{"spin", "ask", "through", "main", "<module>"}) {
		return false
	}
	between := func(a, b string) []recording.Frame {
		at := func(name string) int {
			return slices.IndexFunc(frames,
				func(f recording.Frame) bool { return f.Kind == recording.PythonFrame && f.Name == name })
		}
		return frames[at(a)+1 : at(b)]
	}
	for _, pair := range [][2]string{{"ask", "through"}, {"through", "main"}} {
		if len(between(pair[0], pair[1])) == 0 {
			t.Fatalf("no native frame stands between %s and %s: %v", pair[0], pair[1], frames)
		}
	}
	for _, f := range frames[1:] {
		if f.Kind == recording.NativeFrame && f.Name == "_PyEval_EvalFrameDefault" &&
			slices.Index(
				frames,
				f,
			) > slices.IndexFunc(
				frames,
				func(f recording.Frame) bool { return f.Kind == recording.PythonFrame },
			) {
			t.Fatalf("the interpreter's loop stands beside the Python frames that it runs: %v", frames)
		}
	}
	if last := frames[len(frames)-1]; last.Kind != recording.NativeFrame {
		t.Fatalf("a whole stack ends in %v", last)
	}
	return true
}
