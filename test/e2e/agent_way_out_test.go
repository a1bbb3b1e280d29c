package e2e

import (
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestWayOutWithoutASynchronize watches a process that never waits for the GPU: a window could not be ended by a
// finalize there, for it launches graphs. So none opens, and nothing stays.
func TestWayOutWithoutASynchronize(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "stream-new nonblocking", "graph 8 stream=1 kernel=n_us1",
		"until { graph-launch stream=1; query stream=1; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("30ms", "100ms")...)
	d.waitAgent(v.PID, "refused")
	rec := d.fetch(v.PID)
	for _, w := range rec.Meta.GPU.Windows {
		if w.Activity {
			t.Errorf("a window was opened, and ended %q", w.End)
		}
	}
	if a := agentIn(rec, v.PID); a.Slower != "" {
		t.Errorf("something stays: %s", a.Slower)
	}
	d.stop()
	unharmed(t, v)
}

// TestASynchronizeComesBackLater: windows open, and end well, once the thread that launches graphs was seen to wait.
func TestASynchronizeComesBackLater(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "stream-new nonblocking",
		"graph 8 stream=1 kernel=n_us1", "until { graph-launch stream=1; query stream=1; sleep 1ms }",
		"print quiet", "until 3s { ssync stream=1; sync; sleep 1ms }", "print again",
		"until { graph-launch stream=1; ssync stream=1; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("30ms", "100ms", "--overhead-budget", "0")...)
	d.waitAgent(v.PID, "refused")
	v.Go()
	v.WaitLine("again")
	began := now()
	waitFor(t, "a window to end well", func() bool {
		sleep(150)
		for _, w := range closedWindows(d.fetch(v.PID), v.PID) {
			if w.From > began && w.End == "finalized" {
				return true
			}
		}
		return false
	})
	d.stop()
	unharmed(t, v)
}

// TestManyThreadsAreNotHeldUp: where CUPTI comes and goes only when all other threads are outside of the driver for a
// moment, and several are mostly inside, no thread of the target waits for that: it is the agent's that finalizes, and
// all kernels are seen.
func TestManyThreadsAreNotHeldUp(t *testing.T) {
	needs.Long(t)
	v := cudasim.Start(t, cudasim.Options{Env: []string{"CUDASIM_CUPTI_LOCK=1", "CUDASIM_KERNEL_SLOTS=8"}},
		"stream-new nonblocking",
		"thread 4 { repeat 1000000 { launch 3 kernel=counted_us5 stream=1; ssync stream=1; sleep 300us } }")
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--trace-size-mb", "400")
	d.waitAgent(v.PID, "running")
	var rec *recording.Recording
	waitFor(t, "launches of several threads, and kernels", func() bool {
		sleep(50)
		rec = d.fetch(v.PID)
		return len(launchers(rec)) > 1 && len(kernelsIn(rec, v.PID, "counted")) > 100
	})
	seen, truth, compared := kernelsIn(rec, v.PID, "counted"), v.Truth(), 0
	for _, w := range rec.Meta.GPU.Windows {
		if !w.Activity { // launches by probes, until the agent was there
			continue
		}
		want := kernelsOf(truth, "counted", w.From, w.To)
		equalKernels(t, inside(seen, want, kernelsOf(truth, "counted", 0, now()), w.From, w.To), want)
		compared += len(want)
	}
	d.stop()
	waitFor(t, "the agent's threads to end", func() bool { return agentThreads(v.PID) == 0 })
	before := v.Truth().Count("cuLaunchKernel")
	waitFor(t, "launches after it", func() bool { sleep(10); return v.Truth().Count("cuLaunchKernel") > before+100 })
	truth = v.Truth()
	programs, finalized := map[uint32]bool{}, 0
	for _, c := range truth.Calls {
		programs[c.TID] = programs[c.TID] || c.Name == "cuLaunchKernel"
	}
	for _, c := range truth.Calls {
		if c.Name != "cuptiFinalize" {
			continue
		}
		if finalized++; programs[c.TID] {
			t.Errorf("thread %d of the target finalized CUPTI, which took it %d ns", c.TID, c.Exit-c.Enter)
		}
	}
	if failed := truth.FailedCount("cuLaunchKernel") + truth.FailedCount("cuStreamSynchronize"); finalized != 1 ||
		compared == 0 ||
		failed != 0 {
		t.Errorf(
			"CUPTI was finalized %d times, %d kernels were compared, %d calls failed; want 1, some, none",
			finalized,
			compared,
			failed,
		)
	}
}

// launchers returns the threads whose launches are in a recording.
func launchers(rec *recording.Recording) map[uint32]bool {
	out := map[uint32]bool{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Call && e.Flags&event.Correlated != 0 {
			out[e.TID] = true
		}
	}
	return out
}

func TestASlowFirstEnableHoldsNobody(t *testing.T) {
	needs.Long(t)
	v := cudasim.Start(
		t,
		cudasim.Options{Env: []string{"CUDASIM_CUPTI_ENABLE_NS=2000000000", "CUDASIM_CUPTI_FINALIZE_NS=30000000"}},
		busy,
		"launch 100 kernel=counted_us1",
		"sync",
		"print done",
		busy,
	)
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	waitFor(t, "the agent's thread", func() bool { return agentThreads(v.PID) > 0 })
	before := v.Truth().Count("cuLaunchKernel")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuLaunchKernel") > before+100 })
	d.waitKernels(v.PID, "warm", 1)
	d.stop()
	v.Go()
	unharmed(t, v)
}

func TestRecordsThatCUPTIDropsAreCounted(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Env: []string{"CUDASIM_CUPTI_DROP_EVERY=10"}},
		"until { launch 100 kernel=counted_us1; sync; sleep 5ms }")
	d := startDaemon(t, v.PID, inWindows("100ms", "300ms")...)
	d.waitAgent(v.PID, "running")
	rec := d.waitWindows(v.PID, 2)
	seen, truth := kernelsIn(rec, v.PID, "counted"), v.Truth()
	for _, w := range closedWindows(rec, v.PID) {
		made := kernelsOf(truth, "counted", w.From, w.To)
		got := len(inside(seen, made, kernelsOf(truth, "counted", 0, now()), w.From, w.To))
		if w.Dropped == 0 || got >= len(made) || got+int(w.Dropped) < len(made) {
			t.Errorf("of %d kernels %d are seen, and %d records are said to be dropped", len(made), got, w.Dropped)
		}
	}
	d.stop()
	unharmed(t, v)
}

// detach releases a process, as a user does.
func (d *daemon) detach(pid int) {
	d.t.Helper()
	if _, said, code := d.inferscope("detach", "--pid", strconv.Itoa(pid)); code != 0 {
		d.t.Fatalf("it ended with %d: %s", code, said)
	}
}

// TestDetach: on request nothing of ours is left in a process, while the daemon goes on; and it can be watched again.
func TestDetach(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms")...)
	d.waitAgent(v.PID, "running")
	d.waitWindows(v.PID, 1)
	d.detach(v.PID)
	waitFor(t, "the agent to leave", func() bool { return agentThreads(v.PID) == 0 && agentFiles(v.PID) == 0 })
	waitFor(t, "the probes to come off", func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	before := v.Truth().Count("cuGraphLaunch")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+10 })
	c, err := api.Dial(d.socket)
	must.NoError(t, err)
	defer c.Close()
	if targets, err := c.Targets(t.Context()); err != nil || len(targets) != 1 || targets[0].State != api.Released {
		t.Errorf("targets are %+v, %v; want one that is released", targets, err)
	}
	if agentThreads(v.PID) != 0 || cudasim.ChangedText(t, v.PID, "libcuda.so") != 0 {
		t.Error("something of ours came back")
	}
	must.NoError(t, c.Watch(t.Context(), uint32(v.PID)))
	began := now()
	waitFor(t, "windows of its new agent", func() bool {
		sleep(50)
		for _, w := range closedWindows(d.fetch(v.PID), v.PID) {
			if w.From > began && w.End == "finalized" {
				return true
			}
		}
		return false
	})
	d.stop()
	unharmed(t, v)
}
