package sched_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestMain lets this program be the sampler's helper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == profile.HelperArgument {
		if err := profile.RunHelper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// pythonVictim runs gil.py, and a daemon with scheduling and samples for it.
func pythonVictim(t *testing.T, args ...string) (*waiter, *daemon.Daemon) {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	python := needs.Tool(t, "python3")
	v := run(t, exec.Command(python, append([]string{"../../../testdata/waiters/gil.py"}, args...)...))
	v.beforeOthers()
	samples, err := profile.New(
		profile.Options{Hz: profile.DefaultHz, Switches: profile.DefaultSwitch, Helper: []string{"/proc/self/exe"}},
	)
	must.NoError(t, err)
	return v, serve(t, v.pid, samples)
}

// proven looks at the last 2 s again and again until they show what is looked for: native
// stacks are whole only once the unwinder has started and has read the process's tables.
func proven(t *testing.T, v *waiter, d *daemon.Daemon, shows func(s *cpu.Summary) error) *cpu.Summary {
	t.Helper()
	var missing error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		recording, err := d.Record(context.Background(), api.Asker{Any: true}, v.pid, 2*time.Second, 0)
		must.NoError(t, err)
		rec := streamed(t, recording)
		recording.Release()
		s := cpu.Summarize(rec)
		if missing = shows(s); missing == nil {
			seen := &seen{t: t, rec: rec, threads: threads.Build(rec)}
			for i := range seen.threads {
				seen.whole(&seen.threads[i])
			}
			return s
		}
	}
	t.Fatal(missing)
	return nil
}

// stateOf returns what is said of an activity.
func stateOf(s *cpu.Summary, a threads.Activity) *cpu.Activity {
	for i := range s.States {
		if s.States[i].Name == a.String() {
			return &s.States[i]
		}
	}
	return &cpu.Activity{}
}

// Two threads of CPython that compute: each waits for the other to let go of the
// interpreter, and the stacks prove that it is the GIL, and who has it meanwhile.
func TestGILFight(t *testing.T) {
	v, d := pythonVictim(t)
	rival := v.threads["rival"]
	s := proven(t, v, d, func(s *cpu.Summary) error {
		gil := stateOf(s, threads.GIL)
		other := map[uint32]uint32{v.pid: rival, rival: v.pid}[gil.TID]
		if gil.Blocked < s.Length/3 || gil.HolderTID != other || !strings.HasPrefix(gil.HolderAt, "compute (gil.py:") ||
			!strings.HasPrefix(gil.Place, "compute (gil.py:") {
			return fmt.Errorf(
				"the GIL: %+v; want waits of a third of %d ns and more, while the other thread is in compute",
				gil,
				s.Length,
			)
		}
		return nil
	})
	rows := 0
	for i := range s.Waits {
		w := &s.Waits[i]
		if w.Activity != threads.GIL.String() || w.Share < 0.15 {
			continue
		}
		rows++
		other := map[uint32]uint32{v.pid: rival, rival: v.pid}[w.TID]
		released := uint64(0)
		for _, by := range w.By {
			if by.TID == other {
				released += by.Count
			}
		}
		// The rest are time-outs of 5 ms, after which it asks for the interpreter again.
		if released < 5 {
			t.Errorf("thread %d was let in by thread %d in %d of %d waits: %+v", w.TID, other, released, w.Count, w.By)
		}
	}
	if rows != 2 {
		t.Errorf("%d threads wait for the GIL for long, want both: %+v", rows, s.Waits)
	}
}

// A thread that collects garbage, and one that waits for the GIL meanwhile.
func TestGarbageCollection(t *testing.T) {
	v, d := pythonVictim(t, "gc")
	collector := v.threads["gc"]
	proven(t, v, d, func(s *cpu.Summary) error {
		gc, gil := stateOf(s, threads.GC), stateOf(s, threads.GIL)
		if gc.TID != collector || gc.Share < 0.25 || !strings.HasPrefix(gc.Place, "collect (gil.py:") {
			return fmt.Errorf(
				"garbage collection: %+v; want a quarter of the samples and more, by thread %d in collect",
				gc,
				collector,
			)
		}
		if gil.TID != v.pid || gil.HolderTID != collector || !strings.HasPrefix(gil.HolderAt, "collect (gil.py:") {
			return fmt.Errorf("the GIL: %+v; want the first thread to wait for it while the other one collects", gil)
		}
		return nil
	})
}
