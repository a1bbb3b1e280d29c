package profile_test

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// buildBusy compiles the victim and its library without frame pointers.
func buildBusy(t testing.TB) string {
	t.Helper()
	cc := needs.Tool(t, "cc")
	dir := t.TempDir()
	for _, args := range [][]string{
		{
			"-shared", "-fPIC", "-O2", "-fomit-frame-pointer", "-o", filepath.Join(dir, "libbusy.so"),
			"testdata/libbusy.c",
		},
		{
			"-O2", "-fomit-frame-pointer", "-pthread", "-o", filepath.Join(dir, "busy"), "testdata/busy.c", "-L" + dir,
			"-lbusy", "-Wl,-rpath," + dir,
		},
	} {
		must.Run(t, exec.Command(cc, args...))
	}
	return filepath.Join(dir, "busy")
}

// victim is a process with a line-wise protocol.
type victim struct{ *child.Child }

// tell sends it a line.
func (v *victim) tell(t testing.TB) {
	t.Helper()
	if _, err := v.In.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
}

func start(t testing.TB, name string, args ...string) *victim {
	t.Helper()
	return &victim{child.Start(t, exec.Command(name, args...))}
}

func (v *victim) pid() uint32 { return uint32(v.PID) }

// tid reads "NAME TID".
func (v *victim) tid(t testing.TB, name string) uint32 {
	t.Helper()
	line := v.Line()
	var tid uint32
	if _, err := fmt.Sscanf(line, name+" %d", &tid); err != nil {
		t.Fatalf("%q does not name %s: %v", line, name, err)
	}
	return tid
}

// following is a source at work, as the daemon drives it.
type following struct {
	*profile.Source
	t      testing.TB
	events []event.Event
	named  map[uint64]bool // stacks
}

func newSource(t testing.TB, opts profile.Options) *following {
	t.Helper()
	needs.Root(t, "it samples other processes")
	s, err := profile.New(opts)
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &following{Source: s, t: t}
}

func (f *following) follow(pid uint32) *proc.Process {
	f.t.Helper()
	p, err := proc.Describe(int(pid))
	must.NoError(f.t, err)
	f.t.Cleanup(func() { _ = p.Close() })
	must.NoError(f.t, f.Follow(p))
	return p
}

// until drains until enough says so, or fails.
func (f *following) until(what string, enough func([]event.Event) bool) {
	f.t.Helper()
	const timeout = 60 * time.Second // a loaded machine takes its time
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		f.Feed(0, func(batch []event.Event) { f.events = append(f.events, batch...) })
		if enough(f.events) {
			return
		}
	}
	f.t.Fatalf("waited for %s; %d events; %s", what, len(f.events), f.State().Detail)
}

// untilUnwinder waits until the native unwinder runs.
func (f *following) untilUnwinder() {
	f.t.Helper()
	f.until("the unwinder", func([]event.Event) bool {
		if strings.Contains(f.State().Detail, "none: ") {
			f.t.Fatal(f.State().Detail)
		}
		return running(f.Source)
	})
}

// clockOf returns the clock samples of a thread.
func clockOf(events []event.Event, tid uint32) []event.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
		return e.TID != tid || e.Func != uint16(event.Clock)
	})
}

func (f *following) untilThread(tid uint32, n int) []event.Event {
	f.t.Helper()
	f.until(fmt.Sprintf("%d samples of thread %d", n, tid),
		func(e []event.Event) bool { return len(clockOf(e, tid)) >= n })
	return clockOf(f.events, tid)
}

// stack returns the frames of a sample, leaf first.
func (f *following) stack(e event.Event) []recording.Frame {
	if !f.named[e.Args[0]] { // all that there are: each time the kernel's symbols are read for addresses that are new
		f.named = map[uint64]bool{e.Args[0]: true}
		for i := range f.events {
			f.named[f.events[i].Args[0]] = true
		}
		f.Stacks(slices.Collect(maps.Keys(f.named)))
	}
	frames, nodes, at := f.Stacks([]uint64{e.Args[0]})
	var out []recording.Frame
	for n := int32(at[e.Args[0]]) - 1; n >= 0; n = nodes[n].Parent {
		out = append(out, frames[nodes[n].Frame])
	}
	return out
}

func names(frames []recording.Frame, kind recording.FrameKind) []string {
	var out []string
	for _, f := range frames {
		if f.Kind == kind {
			out = append(out, f.Name)
		}
	}
	return out
}

func running(s *profile.Source) bool { return strings.HasSuffix(s.State().Detail, "unwinder: running") }
