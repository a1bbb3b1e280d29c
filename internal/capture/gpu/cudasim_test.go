package gpu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// realInjector is what the daemon uses; it needs root.
func realInjector(t testing.TB) *AgentInjector {
	t.Helper()
	needs.Root(t, "an agent is injected into another process")
	loader, err := inject.New(inject.Options{})
	if err != nil {
		t.Skip(err)
	}
	in, err := NewAgentInjector(loader)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// watch follows a victim with s.
func watch(t testing.TB, s *Source, v *cudasim.Victim) *proc.Process {
	t.Helper()
	p, err := proc.Describe(v.PID)
	if err != nil {
		t.Fatal(err)
	}
	p.Root = p.PID
	t.Cleanup(func() { _ = p.Close() })
	if err := s.Follow(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// drain feeds until ok.
func drain(t testing.TB, s *Source, got *collector, what string, ok func() bool) {
	t.Helper()
	said := ""
	eventually(t, what, func() bool {
		if a := s.Agents(); len(a) > 0 && a[0].Detail != said {
			said = a[0].Detail
			t.Logf("the agent is %s: %s", a[0].State, said)
		}
		s.Feed(0, got.emit)
		time.Sleep(10 * time.Millisecond)
		return ok()
	})
}

// simOptions index every driver function, as package calls does.
func simOptions(t testing.TB, mode Mode) Options {
	in := realInjector(t)
	var names []string
	return Options{
		Mode: mode, Inject: in, Build: in.Build(),
		Index: func(name string) (uint16, bool) { names = append(names, name); return uint16(len(names)), true },
	}
}

// TestKernelForKernel: an agent that is injected into a process with 8 threads tells of every
// kernel that the simulator knows to have run from then on: name, times, grid.
func TestKernelForKernel(t *testing.T) {
	opts := simOptions(t, Continuous)
	v := cudasim.Start(t, cudasim.Options{}, "until { thread 8 { rate 2000 for 300ms; sync } }",
		"rate 1000 for 500ms", "sync", "wait")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "the agent records",
		func() bool { return stateOf(s, p.PID) == string(running) && len(got.of(event.Kernel)) > 0 })
	v.Go()
	v.WaitLine("waiting")
	s.Flush(context.Background(), []uint32{p.PID})
	s.Feed(0, got.emit)
	compareKernels(t, s, p, v, got.of(event.Kernel))
	t.Logf("stopped for %v", time.Duration(s.sessions[p.ID()].entry.stopped))
}

// TestWindowsOnCudasim: windows of 100 ms each 300 ms end in the good way, and each holds all kernels.
func TestWindowsOnCudasim(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period = 100*time.Millisecond, 300*time.Millisecond
	v := cudasim.Start(t, cudasim.Options{}, "stream-new; graph 20 stream=1",
		"until { rate 3000 for 100ms; graph-launch 5 stream=1; sync }", "wait")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "four windows", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 4 })
	v.Go()
	v.WaitLine("waiting")
	s.Feed(0, got.emit)
	compareKernels(t, s, p, v, got.of(event.Kernel))
	if a := s.Agents()[0]; a.Disabled != 0 || a.Dropped != 0 {
		t.Errorf("the agent is %+v", a)
	}
	checkSteps(t, s.Agents()[0], opts.On)
	if l := s.Losses(); len(l) != 0 {
		t.Errorf("losses are %+v", l)
	}
}

// hasThread reports whether a process has a thread of that name.
func hasThread(t *testing.T, pid int, name string) bool {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		comm, _ := os.ReadFile(path)
		return strings.TrimSpace(string(comm)) == name
	})
}

// compareKernels compares what came in windows with the simulator's truth.
func compareKernels(t *testing.T, s *Source, p *proc.Process, v *cudasim.Victim, kernels []event.Event) {
	t.Helper()
	now := clock.Monotonic()
	used := map[int32]bool{}
	for _, e := range kernels {
		used[e.Ret] = true
	}
	var numbers []int32
	for n := range used {
		numbers = append(numbers, n)
	}
	g, at, _ := s.GPU(p.Root, []uint32{p.PID}, p.Born, now, numbers, nil)
	truth := map[[2]uint64]string{}
	told := v.Truth()
	calls := map[uint64]cudasim.Call{}
	for _, c := range told.Calls {
		calls[c.ID] = c
	}
	// CUPTI decides in the call whether a kernel gets a record: one whose call was under way when the window began or
	// ended may have none.
	inside, sure := 0, 0
	for _, op := range told.Ops {
		if op.Kind == cudasim.Kernel {
			truth[[2]uint64{op.Start, op.End}] = op.Name
			if within(g.Windows, op.Start, op.End) {
				inside++
				if c, ended := calls[op.Call]; ended && within(g.Windows, c.Enter, max(op.End, c.Exit)) {
					sure++
				}
			}
		}
	}
	found := 0
	for _, e := range kernels {
		name, ok := truth[[2]uint64{e.TS, e.End()}]
		if !ok {
			t.Fatalf("a kernel that never ran: %+v", e)
		}
		if k := at[e.Ret]; k == 0 ||
			!strings.Contains(g.Kernels[k-1].Name, name) && !strings.Contains(name, g.Kernels[k-1].Name) {
			t.Fatalf("kernel %q is called %+v", name, g.Kernels)
		}
		if within(g.Windows, e.TS, e.End()) {
			found++
		}
	}
	if found > inside || found < sure || sure == 0 {
		t.Errorf("%d kernels, of which %d in windows; %d ran in them, of which %d were asked for in them",
			len(kernels), found, inside, sure)
	}
	t.Logf("%d of %d kernels in %d windows, all as they were", found, len(truth), len(g.Windows))
}

// within reports whether [from, to] lies in a window wholly.
func within(windows []recording.GPUWindow, from, to uint64) bool {
	return slices.ContainsFunc(windows,
		func(w recording.GPUWindow) bool { return w.Activity && w.From <= from && to <= w.To })
}

// TestTakesOverALivingAgent: a daemon that dies without a word is followed by another one, which
// uses the agent that is still there: nothing is injected, no thread stopped.
func TestTakesOverALivingAgent(t *testing.T) {
	opts := simOptions(t, Continuous)
	v := cudasim.Start(t, cudasim.Options{}, "until { rate 2000 for 20ms; sync }")
	dead, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	watch(t, dead, v)
	var got collector
	drain(t, dead, &got, "kernels", func() bool { return len(got.of(event.Kernel)) > 0 })
	dead.quiet() // its heart stops, and it does nothing more
	<-dead.heartbeatsDone

	opts.Inject = noInjector{t}
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	drain(t, s, &got, "the agent is taken over", func() bool { return stateOf(s, p.PID) == string(running) })
	n := len(got.of(event.Kernel))
	drain(t, s, &got, "more kernels", func() bool { return len(got.of(event.Kernel)) > n })
	if a := s.Agents()[0]; a.Stopped != 0 {
		t.Errorf("a thread was stopped: %+v", a)
	}
}

// TestAgentOfADeadDaemonEnds: nobody beats, so the agent leaves CUPTI and goes; the next daemon brings it in again.
func TestAgentOfADeadDaemonEnds(t *testing.T) {
	opts := simOptions(t, Continuous)
	v := cudasim.Start(t, cudasim.Options{}, "until { rate 2000 for 20ms; sync }")
	dead, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	watch(t, dead, v)
	var got collector
	drain(t, dead, &got, "kernels", func() bool { return len(got.of(event.Kernel)) > 0 })
	dead.quiet()
	eventually(t, "the agent's thread is gone", func() bool { return !hasThread(t, v.PID, "inferscope") })
	s := newTestSource(t, simOptions(t, Continuous))
	p := watch(t, s, v)
	n := len(got.of(event.Kernel))
	drain(t, s, &got, "kernels again", func() bool { return len(got.of(event.Kernel)) > n })
	if a := s.Agents()[0]; a.PID != p.PID || a.Stopped == 0 {
		t.Errorf("the agent is %+v", a)
	}
}

// TestThreadsOfANamespace: calls of a process in a pid namespace of its own carry the host's thread ids.
func TestThreadsOfANamespace(t *testing.T) {
	opts := simOptions(t, Continuous)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	sim := cudasim.Build(t)
	v := cudasim.Start(t,
		cudasim.Options{Program: []string{unshare, "--pid", "--fork", "--mount-proc", sim.Victim}},
		"until { rate 2000 for 20ms; sync }")
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", v.PID, v.PID))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Describe(child)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL); _ = p.Close() })
	s := newTestSource(t, opts)
	if err := s.Follow(p); err != nil {
		t.Fatal(err)
	}
	var got collector
	drain(t, s, &got, "launches", func() bool { return len(got.of(event.Call)) > 10 })
	if p.NSPID == p.PID {
		t.Fatal("the victim is in no namespace of its own")
	}
	for _, e := range got.of(event.Call) {
		if e.TID != p.PID || e.PID != p.PID {
			t.Fatalf("a launch of thread %d of process %d, want %d", e.TID, e.PID, p.PID)
		}
	}
}

// TestForkedChild: a child maps its parent's ring, which is not its own: it gets an agent and
// a ring of its own, and each one's activity stays its own. The parent goes on.
func TestForkedChild(t *testing.T) {
	opts := simOptions(t, Continuous)
	v := cudasim.Start(t, cudasim.Options{}, "until { rate 2000 for 20ms; sync }",
		"fork nowait { until 60s { rate 2000 for 20ms; sync } }", "until { rate 2000 for 20ms; sync }")
	s := newTestSource(t, opts)
	parent := watch(t, s, v)
	var got collector
	drain(t, s, &got, "kernels of the parent", func() bool { return len(got.of(event.Kernel)) > 0 })
	v.Go()
	pid, err := cudasim.ParsePID(v.WaitLine("child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := proc.Describe(pid)
	if err != nil {
		t.Fatal(err)
	}
	child.Root = parent.PID
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL); _ = child.Close() })
	if err := s.Follow(child); err != nil {
		t.Fatal(err)
	}
	of := func(pid uint32) (n int) {
		for _, e := range got.of(event.Kernel) {
			if e.PID == pid {
				n++
			}
		}
		return n
	}
	drain(t, s, &got, "kernels of the child", func() bool { return of(child.PID) > 100 })
	before := of(parent.PID)
	drain(t, s, &got, "more of the parent", func() bool { return of(parent.PID) > before+100 })
	for _, e := range got.events {
		if e.PID != parent.PID && e.PID != child.PID {
			t.Fatalf("an event of process %d", e.PID)
		}
	}
	if st := stateOf(s, parent.PID); st != string(running) {
		t.Errorf("the parent's agent is %s", st)
	}
}
