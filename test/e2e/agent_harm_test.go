package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func sleep(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

// rounds is how often a test repeats itself: def, or what the environment says.
func rounds(t *testing.T, variable string, def int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is not a number above 0", variable, text)
	}
	return n
}

// graphLoop launches a graph that is older than any profiler, and updates it, for ever.
var graphLoop = []string{
	"stream-new nonblocking", "graph 8 stream=1 kernel=n_us1", "h2d 4096",
	"until { graph-launch stream=1; graph-update 8 stream=1 kernel=n_us2; launch 5 kernel=k_us1; h2d 4096; ssync " +
		"stream=1; sync; sleep 300us }",
}

// TestAgentComesAndGoes attaches to one process again and again, in a short run five times. INFERSCOPE_CYCLES says how
// often.
func TestAgentComesAndGoes(t *testing.T) {
	t.Parallel()
	cycles := 25
	if testing.Short() {
		cycles = 5
	}
	n := rounds(t, "INFERSCOPE_CYCLES", cycles)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	var early cudasim.Footprint
	windows := 0
	for i := range n {
		flags := inWindows("20ms", "60ms", "--ring-mb", "1")
		if i%10 != 0 { // the other sources put nothing into a target, and take twice the time to start and to stop
			flags = append(flags, "--cpu-sampling-frequency-hz", "0", "--scheduling=false")
		}
		d := startDaemon(t, v.PID, flags...)
		d.waitAgent(v.PID, "running")
		starved := 0
		for _, w := range closedWindows(d.waitWindows(v.PID, 1), v.PID) {
			if windows++; w.End != "finalized" {
				starved++
			}
		}
		if n := d.starved(v.PID); uint64(starved) > n {
			t.Errorf("cycle %d: %d windows were not finalized, and %d for want of CPUs", i, starved, n)
		}
		d.stop()
		if i == 9 || i == n-1 && n < 10 {
			early = v.Footprint()
		}
		if i >= 9 &&
			(i+1)%max(10, n/20) == 0 { // a growth of all the time shows as a slope, one of the first times does not
			t.Logf("after cycle %d the target held %+v", i+1, v.Footprint())
		}
	}
	late := v.Footprint()
	if late.Grew(early, n) {
		t.Errorf("from the 10th to the %dth cycle the target grew from %+v to %+v", n, early, late)
	}
	t.Logf("%d cycles, %d windows; the target held %+v after the 10th cycle, %+v after the last",
		n, windows, early, late)
	unharmed(t, v)
}

// TestTargetGoesOnWithoutTheDaemon kills the daemon at random instants from its start on: before, in and after the
// injection, 200 times or, in a short run, 8. INFERSCOPE_KILLS says how often.
func TestTargetGoesOnWithoutTheDaemon(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	program(t, "inferscoped")
	kills := 200
	if testing.Short() {
		kills = 8
	}
	n := rounds(t, "INFERSCOPE_KILLS", kills)
	const targets = 4
	var wg sync.WaitGroup
	var mu sync.Mutex
	slowest, joined := time.Duration(0), 0
	for target := range targets {
		wg.Add(1)
		t.Run(fmt.Sprint(target), func(t *testing.T) {
			t.Parallel()
			defer wg.Done()
			dice := rand.New(
				rand.NewPCG(7, uint64(target)),
			) // the same instants each time, as far as the machine allows
			v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: ownLibcuda(t)}, graphLoop...)
			for range n / targets {
				there, took := killOnce(t, v, dice)
				mu.Lock()
				slowest = max(slowest, took)
				if there {
					joined++
				}
				mu.Unlock()
			}
			if waitingFiles(v.PID) > 0 {
				d := startDaemon(t, v.PID)
				d.waitAgent(v.PID, "running")
				d.stop()
			}
			unharmed(t, v)
		})
	}
	t.Cleanup(func() {
		t.Logf(
			"%d kills, %d of them with an agent in the target; it was gone %v after the kill at the latest",
			n/targets*targets,
			joined,
			slowest,
		)
	})
}

// ownLibcuda makes a libcuda for one target alone: what is left in one that others map goes when their probes do.
func ownLibcuda(t *testing.T) (env []string) {
	t.Helper()
	p, dir := cudasim.Build(t), t.TempDir()
	library, err := os.ReadFile(p.Libcuda(cudasim.Shape580))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "libcuda.so.1"), library, 0o755)
	}
	must.NoError(t, err)
	return []string{"LD_LIBRARY_PATH=" + dir + ":" + p.LibraryPath(cudasim.Shape580)}
}

// killOnce starts a daemon, kills it between 0 and some time after its agent came, and waits until the target is alone.
// It returns whether an agent was there at the kill, and how long it, or a probe, stayed.
func killOnce(t *testing.T, v *cudasim.Victim, dice *rand.Rand) (there bool, took time.Duration) {
	t.Helper()
	d := launchDaemon(t, inWindows("30ms", "80ms", "--ring-mb", "1", "--pid", fmt.Sprint(v.PID))...)
	phase := dice.IntN(4)
	switch phase {
	case 0: // anywhere in its start
		sleep(dice.IntN(1500))
	case 1: // about when it injects
		d.waitLog("ready")
		time.Sleep(time.Duration(dice.IntN(60_000)) * time.Microsecond)
	case 2:
		waitFor(t, "the agent's thread", func() bool { return agentThreads(v.PID) > 0 })
		time.Sleep(time.Duration(dice.IntN(20_000)) * time.Microsecond)
	default: // in and between windows
		waitFor(t, "the agent's thread", func() bool { return agentThreads(v.PID) > 0 })
		sleep(dice.IntN(500))
	}
	_ = d.cmd.Process.Kill()
	killed := time.Now()
	there = agentThreads(v.PID) > 0
	d.exitCode()
	state, tracer := stateOf(t, v.PID)
	if strings.ContainsAny(state, "tTZX") || tracer != 0 {
		waitFor(t, "the target to run again", func() bool {
			state, tracer = stateOf(t, v.PID)
			return !strings.ContainsAny(state, "tTZX") && tracer == 0
		})
	}
	waitFor(t, "the agent to be gone",
		func() bool { return agentThreads(v.PID) == 0 && agentFiles(v.PID) == waitingFiles(v.PID) })
	if n := waitingFiles(v.PID); n > 1 { // between the two stops of an attach; the next one uses it
		t.Errorf("%d files of agents that never came are open", n)
	}
	// The link holder takes them off when the daemon has gone, and the process that brings the agent in a moment after
	// it.
	waitFor(t, "the probes to be off", func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	took = time.Since(killed)
	before := v.Truth().Count("cuGraphLaunch")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+2 })
	return there, took
}

// waitingFiles counts the open files in a process that were made for an agent, which has not come. The agent closes its
// own.
func waitingFiles(pid int) int {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n := 0
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); strings.HasPrefix(
			to,
			"/memfd:inferscope-agent-",
		) {
			n++
		}
	}
	return n
}

// stateOf returns a process's state letter and its tracer.
func stateOf(t *testing.T, pid int) (state string, tracer int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("the target is gone: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "State: %s", &state)
		_, _ = fmt.Sscanf(line, "TracerPid: %d", &tracer)
	}
	return state, tracer
}

// TestExitWhileTheAgentComes has targets end at any time of the attach: the daemon must end well.
func TestExitWhileTheAgentComes(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	dice := rand.New(rand.NewPCG(3, 3))
	for range 8 {
		v := cudasim.Start(t, cudasim.Options{}, fmt.Sprintf("until %dms { launch 3; sync }", 200+dice.IntN(1200)))
		d := launchDaemon(t, "--pid", fmt.Sprint(v.PID), "--gpu", "continuous")
		v.Finish()
		waitFor(t, "inferscoped to have begun", func() bool { // or to say that the target is gone
			return strings.Contains(d.log.String(), "ready") || strings.Contains(d.log.String(), "inferscoped: ")
		})
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		if code := d.exitCode(); code != 0 && code != 3 {
			t.Errorf("inferscoped ended with %d:\n%s", code, d.log)
		}
	}
}

// TestThreadsThatLaunchGraphs: where several threads launch CUDA graphs CUPTI could not be taken out again, so no
// window is opened: that is seen beforehand, and said. The simulated target dies of a finalize, as the real one does.
func TestThreadsThatLaunchGraphs(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 3 nowait { repeat 1000000 { graph-launch stream=1; ssync stream=1; sleep 1ms } }",
		"until { launch 5 kernel=k_us1; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms")...)
	a := d.waitAgent(v.PID, "refused")
	if len(closedWindows(d.fetch(v.PID), v.PID)) != 0 || a.Slower != "" ||
		!strings.Contains(a.Detail, "several threads of this process launch CUDA graphs") {
		t.Errorf("the agent is %+v, want one that has opened no window and says why", a)
	}
	d.stop()
	unharmed(t, v)
}

// TestThreadThatRarelyLaunchesGraphs: a thread launches a CUDA graph now and then, as a server does with each request,
// and others make calls all the time. Few windows have a graph, yet no other thread may ever finalize. The simulated
// target dies of it.
func TestThreadThatRarelyLaunchesGraphs(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(
		t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_FINALIZE_NS=30000000"}},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 1 nowait { repeat 1000000 { graph-launch stream=1; ssync stream=1; sleep 150ms } }",
		"thread 3 nowait { repeat 100000000 { launch 1 kernel=k_us5; sync; sleep 1ms } }; until { sleep 50ms }",
	)
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms", "--overhead-budget", "0")...)
	rec := d.waitWindows(v.PID, 15)
	finalized := 0
	for _, w := range closedWindows(rec, v.PID) {
		if w.End == "finalized" {
			finalized++
		}
	}
	t.Logf("%d of %d windows were finalized", finalized, len(closedWindows(rec, v.PID)))
	d.stop()
	unharmed(t, v)
}

// TestThreadsThatLaunchOneGraph: graphs are launched by threads that are made for it and end with it, as where a server
// makes one for each request: nobody knows who launches the next one. Nothing is recorded, and the target goes on.
func TestThreadsThatLaunchOneGraph(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_FINALIZE_NS=5000000"}},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 2 nowait { repeat 100000000 { launch 1 kernel=k_us5; sync; sleep 1ms } }",
		"until { thread 1 { graph-launch stream=1; ssync stream=1 }; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms", "--overhead-budget", "0")...)
	if a := d.waitAgent(v.PID, "refused"); a.Slower != "" || !strings.Contains(a.Detail, "launch CUDA graphs") {
		t.Errorf("the agent is %+v, want one that says why, and nothing that stays", a)
	}
	d.stop()
	unharmed(t, v)
}

// TestWindowsDuringGraphCapture: while a thread captures a graph, in the mode that forbids other threads what may be
// unsafe, windows come and go, and the graph is not spoilt: the simulated target ends badly where it is.
func TestWindowsDuringGraphCapture(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(
		t,
		cudasim.Options{Level: "counts"},
		"stream-new nonblocking",
		"thread 3 nowait { repeat 100000000 { launch 1 kernel=k_us5; sync; sleep 1ms } }",
		"graph stream=1 { launch 3 kernel=n_us1 stream=1; until { sleep 20ms } }; graph-launch stream=1; ssync "+
			"stream=1",
	)
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms", "--overhead-budget", "0")...)
	d.waitWindows(v.PID, 10)
	d.stop()
	if n := v.Truth().Count("cuStreamEndCapture"); n > 0 {
		t.Errorf("%d captures have ended: want windows beside one", n)
	}
	unharmed(t, v)
	if n := v.Truth().Count("cuGraphLaunch"); n != 1 {
		t.Errorf("the graph was launched %d times, want once", n)
	}
}
