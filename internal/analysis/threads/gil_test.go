package threads_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestMain also is the sampler's helper process.
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

// fight is four threads that each want the GIL all the time.
const fight = `
import threading
def counts():
    x = 0
    while True:
        x += 1
for _ in range(3):
    t = threading.Thread(target=counts)
    t.daemon = True
    t.start()
print("ready", flush=True)
counts()
`

// Threads that wait for the GIL are seen to, whatever symbols their interpreter has: as
// it is here, and stripped of all but its dynamic symbols.
func TestWaitsForTheGILWithoutSymbols(t *testing.T) {
	needs.Root(t, "it samples other processes")
	python := needs.Tool(t, "python3")
	s, err := profile.New(profile.Options{Hz: 99, Switches: 200, Helper: []string{"/proc/self/exe"}})
	must.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	t.Run("as it is", func(t *testing.T) { fightSeen(t, s, exec.Command(python, "-c", fight)) })
	t.Run("stripped", func(t *testing.T) {
		for _, name := range fightSeen(t, s, stripped(t, python)) {
			if name == "take_gil" {
				t.Fatal("it is not stripped: a frame is called take_gil")
			}
		}
	})
}

// stripped returns a command that runs the fight in a stripped copy of a CPython.
func stripped(t *testing.T, python string) *exec.Cmd {
	t.Helper()
	strip := needs.Tool(t, "strip")
	out, err := exec.Command(python, "-c", `import os, sys, sysconfig as s
v = s.get_config_var
print(os.path.realpath(sys.executable), sys.prefix + ":" + sys.exec_prefix, v("Py_ENABLE_SHARED"), os.path.join(v("LIBDIR"), v("INSTSONAME") or ""), sep="\n")`).Output()
	said := strings.Split(string(out), "\n")
	if err != nil || len(said) < 4 {
		t.Fatalf("%s does not say where it is: %v", python, err)
	}
	program, from, dir := said[0], said[0], t.TempDir()
	env := "PYTHONHOME=" + said[1]
	if said[2] == "1" {
		from, env = said[3], "LD_LIBRARY_PATH="+dir
	}
	to := filepath.Join(dir, filepath.Base(from))
	must.Run(t, exec.Command(strip, "--strip-all", "-o", to, from))
	if said[2] != "1" {
		program = to
	}
	c := exec.Command(program, "-c", fight)
	c.Env = append(os.Environ(), env)
	return c
}

// fightSeen runs the fight until fifty waits on a condition were sampled, which must all
// be waits for the GIL, and returns the names of their frames.
func fightSeen(t *testing.T, s *profile.Source, c *exec.Cmd) []string {
	t.Helper()
	program := child.Start(t, c)
	program.Line()
	p, err := proc.Describe(program.PID)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	must.NoError(t, s.Follow(p))
	var stacks []uint64
	const timeout = 120 * time.Second // to notice that nothing comes: a loaded machine takes its time
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		s.Feed(0, func(batch []event.Event) {
			for i := range batch {
				if e := &batch[i]; e.PID == p.PID && e.Func == uint16(event.Switch) &&
					event.StackOrigin(e.Args[1]) == event.Whole {
					stacks = append(stacks, e.Args[0])
				}
			}
		})
		if waits, names := onCondition(t, s, stacks); waits >= 50 {
			return names
		}
	}
	t.Fatalf("%d whole stacks of switches, and too few waits on a condition; %s", len(stacks), s.State().Detail)
	return nil
}

// onCondition counts the stacks that wait on a condition variable.
func onCondition(t *testing.T, s *profile.Source, stacks []uint64) (waits int, names []string) {
	t.Helper()
	frames, nodes, at := s.Stacks(stacks)
	rec := &recording.Recording{Meta: recording.Meta{Frames: frames, Stacks: nodes}}
	c := threads.NewClassifier(rec)
	for _, stack := range stacks {
		number := uint64(at[stack])
		waiting := false
		var text []string
		for _, f := range threads.Frames(rec, number) {
			waiting = waiting ||
				f.Kind == recording.NativeFrame &&
					(strings.Contains(f.Name,
						"pthread_cond_timedwait") || strings.Contains(f.Name, "pthread_cond_clockwait"))
			text = append(text, f.Name)
		}
		if !waiting {
			continue
		}
		waits++
		names = append(names, text...)
		if got := c.Of(number); got != threads.GIL {
			t.Fatalf("%v, want %v: %q", got, threads.GIL, text)
		}
	}
	return waits, names
}
