package profile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// One source with the unwinder serves all tests that want whole stacks: it takes the
// verifier seconds to let it in.
func TestWholeStacks(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, Helper: helper()})
	v := start(t, buildBusy(t), "busy")
	tid := v.tid(t, "main")
	s.follow(v.pid()) // also starts the unwinder
	s.untilUnwinder()
	t.Run("without frame pointers", func(t *testing.T) { wholeNative(t, s, tid) })
	t.Run("native and Python", func(t *testing.T) { wholePython(t, s) })
	t.Run("native and Python in order", func(t *testing.T) { inOrder(t, s) })
	t.Run("nothing is held back", func(t *testing.T) { settled(t, s) })
}

// Once the source says so, no sample of before a moment comes any more; with the
// unwinder running the last ones have to be waited for.
func settled(t *testing.T, s *following) {
	waited := false
	for range 5 {
		s.until("samples", func([]event.Event) bool { return true })
		to := clock.Monotonic()
		waited = waited || !s.Settled(to)
		s.until("the samples of before", func([]event.Event) bool { return s.Settled(to) })
		n := len(s.events)
		s.until("later samples", func(e []event.Event) bool { return len(e) > n+20 })
		for _, e := range s.events[n:] {
			if e.TS < to {
				t.Fatalf("a sample came that is %v older than what was complete", time.Duration(to-e.TS))
			}
		}
	}
	if !waited {
		t.Error("no sample ever had to be waited for: this shows nothing")
	}
}

func wholeNative(t *testing.T, s *following, tid uint32) {
	s.until("whole stacks", func(e []event.Event) bool { return countOrigin(clockOf(e, tid), event.Whole) >= 50 })
	want := []string{"work_inner", "work_middle", "work_outer", "busy", "main"}
	for _, e := range whole(clockOf(s.events, tid)) {
		got := names(s.stack(e), recording.NativeFrame)
		// The very first instruction of a function or its last may be sampled; the callers are always there.
		if i := slices.Index(want, first(got)); i < 0 || len(got) < len(want)-i ||
			!slices.Equal(got[:len(want)-i], want[i:]) {
			t.Fatalf("a stack is %q, not a tail of %q", got, want)
		}
		if !strings.Contains(got[len(got)-1], "_start") {
			t.Fatalf("a whole stack ends in %q", got[len(got)-1])
		}
	}
}

func wholePython(t *testing.T, s *following) {
	python := pythonOrSkip(t)
	v := start(t, python, "testdata/victim.py", "busy")
	v.Line()
	tid := v.pid()
	s.follow(tid)
	s.until("whole stacks", func(e []event.Event) bool { return countOrigin(clockOf(e, tid), event.Whole) >= 20 })
	for _, e := range whole(clockOf(s.events, tid)) {
		checkBusy(t, s.stack(e))
	}
}

func whole(events []event.Event) []event.Event {
	return slices.DeleteFunc(slices.Clone(events),
		func(e event.Event) bool { return event.StackOrigin(e.Args[1]) != event.Whole })
}

func countOrigin(events []event.Event, o event.StackOrigin) int {
	n := 0
	for i := range events {
		if event.StackOrigin(events[i].Args[1]) == o {
			n++
		}
	}
	return n
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func pythonOrSkip(t *testing.T) string {
	t.Helper()
	python := needs.Tool(t, "python3")
	return python
}

// checkBusy compares the Python frames of victim.py busy, function and line.
func checkBusy(t *testing.T, frames []recording.Frame) {
	t.Helper()
	var got []recording.Frame
	for _, f := range frames {
		if f.Kind == recording.PythonFrame {
			f.File = filepath.Base(f.File)
			got = append(got, f)
		}
	}
	py := func(name string, line uint32) recording.Frame {
		return recording.Frame{Kind: recording.PythonFrame, Name: name, File: "victim.py", Line: line}
	}
	for _, ready := range []uint32{44, 45} { // it may still be saying so
		if slices.Equal(got, []recording.Frame{py("main", ready), py("<module>", 49)}) {
			return
		}
	}
	if len(got) < 3 {
		t.Fatalf("Python frames are %v", got)
	}
	tail := []recording.Frame{py("loop", 27), py("main", 46), py("<module>", 49)}
	if diff := cmp.Diff(tail, got[len(got)-3:]); diff != "" {
		t.Fatalf("callers (-want +got):\n%s", diff)
	}
	for i, f := range got[:len(got)-3] {
		switch {
		case f.Name == "outer" && (f.Line == 15 || f.Line == 14) && i == len(got)-4:
		case f.Name == "inner" && f.Line >= 7 && f.Line <= 11 && i == 0:
		default:
			t.Fatalf("frame %d is %v", i, f)
		}
	}
}

// Every CPython that this machine offers must give exact functions and lines without
// the unwinder.
func TestPythonVersions(t *testing.T) {
	needs.Root(t, "it samples other processes")
	found := pythons()
	if len(found) == 0 {
		t.Skip("no python3.N under $PATH, ~/.pyenv/versions or /opt")
	}
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	for _, python := range found {
		t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_"), func(t *testing.T) {
			v := start(t, python, "testdata/victim.py", "busy")
			if !v.Out.Scan() {
				t.Skip("it does not run here")
			}
			s.follow(v.pid())
			samples := s.untilThread(v.pid(), 60)
			for _, e := range samples {
				checkBusy(t, s.stack(e))
			}
		})
	}
}

// pythons returns the CPython programs that are found in the usual places, one of each minor version.
func pythons() []string {
	var found []string
	home, _ := os.UserHomeDir()
	places := append(filepath.SplitList(os.Getenv("PATH")), "/opt/*/bin", filepath.Join(home, ".pyenv/versions/*/bin"))
	seen := map[string]bool{}
	for _, place := range places {
		matches, _ := filepath.Glob(filepath.Join(place, "python3.*"))
		for _, m := range matches {
			version := strings.TrimPrefix(filepath.Base(m), "python3.")
			if strings.Trim(version, "0123456789") != "" || seen[version] {
				continue
			}
			if exec.Command(m, "-c", "pass").Run() == nil { // a shim without a version behind it fails
				seen[version] = true
				found = append(found, m)
			}
		}
	}
	return found
}

// Native code that runs without the GIL keeps its thread's Python stack.
func TestPythonWithoutTheLock(t *testing.T) {
	python := pythonOrSkip(t)
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	v := start(t, python, "testdata/victim.py", "hash")
	v.Line()
	s.follow(v.pid())
	for _, e := range s.untilThread(v.pid(), 60)[5:] { // its import comes first
		if got := names(s.stack(e), recording.PythonFrame); !slices.Equal(got, []string{"hashes", "main", "<module>"}) {
			t.Fatalf("Python frames are %q", got)
		}
	}
}

func TestPythonThread(t *testing.T) {
	python := pythonOrSkip(t)
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	v := start(t, python, "testdata/victim.py", "thread")
	v.Line()
	s.follow(v.pid())
	s.until("samples of the other thread", func(e []event.Event) bool { return len(e) > 40 })
	for _, e := range s.events {
		if e.TID == v.pid() {
			continue
		}
		if got := names(s.stack(e), recording.PythonFrame); !slices.Contains(got, "loop") ||
			got[len(got)-1] == "<module>" {
			t.Fatalf("Python frames of the thread are %q", got)
		}
	}
}

// A thread that is born after the attach is sampled, once each period.
func TestThreadBornLater(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	v := start(t, buildBusy(t), "thread")
	v.tid(t, "main")
	s.follow(v.pid())
	v.tell(t)
	tid := v.tid(t, "born")
	samples := s.untilThread(tid, 100)
	// Two events on the thread would give twice the rate; a late timer catches up, so
	// single gaps say nothing.
	span := time.Duration(samples[len(samples)-1].TS - samples[0].TS)
	if rate := float64(len(samples)-1) / span.Seconds(); rate > 1.3*199 {
		t.Errorf("%.0f samples a second, asked for 199", rate)
	}
}

// A forked process is not sampled through its parent, and once when it is followed.
func TestFork(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	v := start(t, buildBusy(t), "fork")
	s.follow(v.pid())
	v.tell(t)
	tids := map[string]uint32{}
	for range 2 {
		name, _, _ := strings.Cut(v.Line(), " ")
		tids[name] = 0
		_, id, _ := strings.Cut(v.Out.Text(), " ")
		tids[name] = atoi(t, id)
	}
	t.Cleanup(func() { kill(tids["child"]) })
	s.untilThread(tids["main"], 30)
	if n := len(clockOf(s.events, tids["child"])); n != 0 {
		t.Fatalf("the child has %d samples before it is followed", n)
	}
	s.follow(tids["child"])
	samples := s.untilThread(tids["child"], 60)
	for i := range samples {
		if samples[i].PID != tids["child"] {
			t.Fatalf("a sample of the child says pid %d", samples[i].PID)
		}
	}
	// Sampled twice, by its parent's event as well, it would have as many in half of the time. One sample may come
	// late.
	gaps := uint64(len(samples) - 1)
	if span := samples[gaps].TS - samples[0].TS; span < gaps*uint64(time.Second)/199*9/10 {
		t.Fatalf("%d samples of the child are from %d ns", len(samples), span)
	}
}

// Samples go on across exec, and what was C becomes Python.
func TestExec(t *testing.T) {
	python := pythonOrSkip(t)
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	v := start(t, "/bin/sh", "-c", "read x; exec "+python+" testdata/victim.py busy")
	s.follow(v.pid())
	v.tell(t)
	v.Line()
	s.follow(v.pid())
	from := len(s.events)
	s.until("Python frames", func(e []event.Event) bool {
		return len(e) > from && countOrigin(clockOf(e[from:], v.pid()), event.Python) >= 40
	})
}

// A thread or process that has ended is not an error, and leaves nothing behind.
func TestEndedThreadsAndProcesses(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 999, OwnOnly: true, Switches: profile.DefaultSwitch})
	v := start(t, buildBusy(t), "short")
	v.tid(t, "main")
	p := s.follow(v.pid())
	s.until("samples", func(e []event.Event) bool { return len(e) > 20 })
	v.Kill()
	s.Forget(p)
	if err := s.Follow(p); err != nil {
		t.Logf("following the dead: %v", err) // allowed to complain, not to sample
	}
	s.Forget(p)
	s.Feed(0, func([]event.Event) {})
	n := len(s.events)
	time.Sleep(50 * time.Millisecond)
	s.Feed(0, func(batch []event.Event) { s.events = append(s.events, batch...) })
	if len(s.events) != n {
		t.Fatalf("%d samples of a dead process", len(s.events)-n)
	}
}

func TestOptionsOutOfBounds(t *testing.T) {
	for _, o := range []profile.Options{{Hz: -1}, {Hz: 2001}, {Switches: -1}, {Switches: 20_001}} {
		if s, err := profile.New(o); err == nil {
			_ = s.Close()
			t.Errorf("New(%+v) works", o)
		}
	}
}
