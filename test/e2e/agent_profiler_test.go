package e2e

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// launchesSeen counts the launches of pid in a recording that began in [from, to].
func launchesSeen(rec *recording.Recording, pid int, from, to uint64) int {
	n := 0
	for _, e := range rec.Events {
		if e.Kind == event.Call && int(e.PID) == pid && e.TS >= from && e.TS <= to &&
			rec.Meta.Functions[e.Func].Group == string(cuda.Launch) {
			n++
		}
	}
	return n
}

// launchesMade counts the launches of the truth that began in [from, to].
func launchesMade(truth *cudasim.Truth, from, to uint64) int {
	n := 0
	for _, c := range truth.Calls {
		if r, ok := cuda.Match(c.Name); ok && r.Group == cuda.Launch && r.Library == "driver" && c.Enter >= from &&
			c.Enter <= to {
			n++
		}
	}
	return n
}

// counted is what a target does whose launches are compared with the truth: it works until it is told to go on, is idle
// until then again, so that no launch is under way when the comparison begins, and launches.
var counted = []string{busy, "print idle", "wait", "launch 500 kernel=counted_us1", "sync", "print done", "wait"}

// launchCounted has a target launch, and returns the time in which it does.
func launchCounted(v *cudasim.Victim) (began, ended uint64) {
	v.Go()
	v.WaitLine("idle")
	began = now()
	v.Go()
	v.WaitLine("done")
	return began, now()
}

// probesSee fails the test unless the launches come from probes, all of them, and nothing of ours is in the target.
func probesSee(t *testing.T, v *cudasim.Victim, d *daemon) *recording.Recording {
	t.Helper()
	waitFor(t, "the launches to be probed", func() bool {
		rec := d.fetch(v.PID) // not as they were until the agent came
		return rec.Meta.GPU != nil &&
			slices.ContainsFunc(rec.Meta.GPU.Windows, func(w recording.GPUWindow) bool { return w.End == "open" })
	})
	began, ended := launchCounted(v)
	want := launchesMade(v.Truth(), began, ended)
	var rec *recording.Recording
	waitFor(t, "the launches to be recorded", func() bool {
		rec = d.fetch(v.PID)
		return launchesSeen(rec, v.PID, began, ended) >= want
	})
	if got := launchesSeen(rec, v.PID, began, ended); got != want || want < 500 {
		t.Errorf("%d launches seen, %d made", got, want)
	}
	for _, w := range rec.Meta.GPU.Windows {
		if w.Activity || !w.Calls {
			t.Errorf("a window without an agent: %+v", w)
		}
	}
	return rec
}

func TestAnotherProfilerHoldsCUPTI(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(
		t,
		cudasim.Options{Env: []string{"CUDASIM_CUPTI_BUSY=1", "CUDASIM_CUPTI_BUSY_NAME=CUPTI for somebody else"}},
		counted...,
	)
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	a := d.waitAgent(v.PID, "refused")
	if !strings.Contains(a.Detail, "another profiler holds CUPTI") ||
		!strings.Contains(a.Detail, `it calls itself "CUPTI for somebody else"`) {
		t.Errorf("the agent says %q: not who else holds CUPTI", a.Detail)
	}
	probesSee(t, v, d)
	d.stop()
	unharmed(t, v) // taking over the other's buffers would kill it at its exit
}

func TestNoInjectIsHonoured(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, counted...)
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--no-inject")
	rec := probesSee(t, v, d)
	if n := len(kernelsIn(rec, v.PID, "")); n != 0 {
		t.Errorf("%d kernels seen without an agent", n)
	}
	if agentThreads(v.PID)+agentFiles(v.PID) != 0 || agentMapped(t, v.PID) {
		t.Error("something of ours is in the target")
	}
	d.stop()
	unharmed(t, v)
}

func TestGPUOffDoesNothing(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, counted...)
	d := startDaemon(t, v.PID, "--gpu", "off")
	began, _ := launchCounted(v)
	sleep(200)
	rec := d.fetch(v.PID)
	if n := launchesSeen(rec, v.PID, began, now()); n != 0 {
		t.Errorf("%d launches seen with --gpu off", n)
	}
	if agentMapped(t, v.PID) {
		t.Error("something of ours is in the target")
	}
	d.stop()
	unharmed(t, v)
}

// agentMapped reports whether a file of ours is mapped, wherever the checkout lies from which the others come.
func agentMapped(t *testing.T, pid int) bool {
	t.Helper()
	for line := range strings.Lines(readProc(t, pid, "maps")) {
		if strings.Contains(path.Base(line), "inferscope") {
			return true
		}
	}
	return false
}

// TestAProfilerOfTheTargetsOwn shows how a program fares that profiles itself: it gets CUPTI between windows, and then
// has it for itself; in an open window it is refused, as by any other profiler.
func TestAProfilerOfTheTargetsOwn(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	t.Run("while records are on", func(t *testing.T) {
		v := cudasim.Start(t, cudasim.Options{}, busy, "cupti subscribe", "print done", busy)
		d := startDaemon(t, v.PID, "--gpu", "continuous")
		d.waitOpen(v.PID)
		d.waitKernels(v.PID, "warm", 1)
		if !agentMapped(t, v.PID) {
			t.Error("the agent is not found in the target's maps")
		}
		v.Go()
		if got := v.WaitLine("cupti subscribe"); got != "39" {
			t.Errorf("subscribing in an open window returned %s", got)
		}
		d.stop()
		unharmed(t, v)
	})
	t.Run("between windows", func(t *testing.T) {
		// it came just as a window was open, which a busy machine makes longer
		for tries := 0; !profilesItself(t); tries++ {
			if tries == 5 {
				t.Fatal("between two windows the target cannot profile itself")
			}
		}
	})
}

// profilesItself lets a target profile itself between two windows, where it must see all of its kernels and our agent
// none; false where CUPTI was taken.
func profilesItself(t *testing.T) bool {
	t.Helper()
	v := cudasim.Start(t, cudasim.Options{}, busy, "cupti subscribe", "wait",
		"cupti buffers; cupti clock; cupti enable 10",
		"until 2s { launch 1 kernel=own_us1; sync; sleep 1ms }", "cupti flush; cupti dump", "print done",
		busy)
	d := startDaemon(t, v.PID, inWindows("20ms", "700ms")...)
	d.waitAgent(v.PID, "running")
	d.waitWindows(v.PID, 1)
	v.Go()
	if got := v.WaitLine("cupti subscribe"); got != "0" {
		t.Logf("subscribing returned %s", got)
		d.stop()
		return false
	}
	v.Go()
	records, ran := 0, 0
	text := v.WaitLine("cupti")
	for !strings.HasPrefix(text, "records=") {
		text = v.WaitLine("cupti")
	}
	for _, f := range strings.Fields(text) {
		if n, ok := strings.CutPrefix(f, "records="); ok {
			records = atoi(t, n)
		}
	}
	for _, o := range v.Truth().Ops {
		if o.Name == "own_us1" {
			ran++
		}
	}
	if records != ran || ran < 100 {
		t.Errorf("the target's own profiler saw %d kernels of %d", records, ran)
	}
	if n := len(kernelsIn(d.fetch(v.PID), v.PID, "own_us1")); n != 0 {
		t.Errorf("%d of its kernels went to our agent", n)
	}
	d.stop()
	unharmed(t, v)
	return true
}

// TestAgentInAForkedChild forks a process that has an agent: the parent's records stay right, the child is not harmed.
func TestAgentInAForkedChild(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, busy, "launch 300 kernel=counted_us2",
		"fork { until 3s { launch 2 kernel=child_us1; sync; sleep 1ms } }", "launch 300 kernel=counted_us3",
		"sync", "print done", busy)
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	a := d.waitOpen(v.PID)
	v.Go()
	child, err := cudasim.ParsePID(v.WaitLine("child"))
	must.NoError(t, err)
	v.WaitLine("done")
	rec := d.waitKernels(v.PID, "counted", 600)
	equalKernels(t, kernelsIn(rec, v.PID, "counted"), kernelsOf(v.Truth(), "counted", a.Joined, now()))
	truth, err := cudasim.ReadTruth(v.TruthOf(child))
	must.NoError(t, err)
	own := agentIn(rec, child)
	seen := kernelsIn(rec, child, "child")
	ran := kernelsOf(truth, "child", 0, now())
	known := map[uint64]bool{}
	for _, k := range ran {
		known[k.start] = true
	}
	for _, k := range seen {
		if !known[k.start] {
			t.Errorf("seen in the child, and it never ran there: %+v", k)
		}
	}
	t.Logf("the child's agent: %+v; %d of its %d kernels seen", own, len(seen), len(ran))
	if own.State == "" {
		t.Error("nothing is said of an agent in the child")
	}
	d.stop()
	unharmed(t, v)
}

// TestAgentInAProcessThatLoadsCUDALater waits with its attach until there is something to attach to.
func TestAgentInAProcessThatLoadsCUDALater(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Args: []string{"--late"}, NoReady: true}, "print up", "wait",
		"dlopen-now", busy, "launch 400 kernel=counted_us2", "sync", "print done", busy)
	v.WaitLine("up")
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	v.Go()
	a := d.waitOpen(v.PID)
	v.Go()
	v.WaitLine("done")
	rec := d.waitKernels(v.PID, "counted", 400)
	equalKernels(t, kernelsIn(rec, v.PID, "counted"), kernelsOf(v.Truth(), "counted", a.Joined, now()))
	d.stop()
	unharmed(t, v)
}
