package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// busy is what a victim does while an agent is injected: an idle process gives no chance to.
const busy = "until { launch 1 kernel=warm_us1; sync; sleep 1ms }"

// ran is one kernel: what truth and recording are compared by, to the nanosecond.
type ran struct {
	name        string
	start, end  uint64
	stream      uint64
	call        uint64 // correlation id
	grid, block [3]uint32
}

// anyProcess stands for every process of a recording.
const anyProcess = 0

// kernelsIn returns the kernels of pid in a recording whose name contains part.
func kernelsIn(rec *recording.Recording, pid int, part string) []ran {
	var out []ran
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.Kernel || pid != anyProcess && int(e.PID) != pid {
			continue
		}
		name := "a kernel without a name"
		if n := int(e.Ret); n > 0 && n <= len(rec.Meta.GPU.Kernels) {
			name = rec.Meta.GPU.Kernels[n-1].Name
		}
		if !strings.Contains(name, part) {
			continue
		}
		g, b := e.Args[2], e.Args[3]
		out = append(out, ran{
			name: name, start: e.TS, end: e.TS + e.Dur, stream: uint64(e.TID), call: e.Args[0] & 0xffffffff,
			grid:  [3]uint32{uint32(g), uint32(g >> 32 & 0xffff), uint32(g >> 48)},
			block: [3]uint32{uint32(b & 0x7ff), uint32(b >> 11 & 0x7ff), uint32(b >> 22 & 0x3ff)},
		})
	}
	return out
}

// kernelsOf returns the kernels of a truth whose name contains part and that were queued and over within a time.
func kernelsOf(truth *cudasim.Truth, part string, from, to uint64) []ran {
	var out []ran
	returned := map[uint64]uint64{}
	for _, c := range truth.Calls {
		returned[c.ID] = c.Exit
	}
	for _, o := range truth.Ops {
		// A launch that has not returned by the end may have run its kernel and not noted it yet.
		if o.Kind == cudasim.Kernel && strings.Contains(o.Name, part) && o.Submit >= from && o.End <= to &&
			returned[o.Call] <= to {
			out = append(out, ran{o.Name, o.Start, o.End, o.StreamID, o.Call, o.Grid, o.Block})
		}
	}
	return out
}

// equalKernels fails the test unless got and want hold the same kernels, each as often.
func equalKernels(t *testing.T, got, want []ran) {
	t.Helper()
	left := map[ran]int{}
	for _, k := range want {
		left[k]++
	}
	otherThreads, missing := 0, 0
	for _, k := range got {
		if left[k]--; left[k] < 0 {
			if otherThreads++; otherThreads <= 3 {
				t.Errorf("seen, and it never ran: %+v", k)
			}
		}
	}
	for k, n := range left {
		if n > 0 {
			if missing += n; missing <= 3 {
				t.Errorf("it ran, and was not seen: %+v", k)
			}
		}
	}
	if otherThreads+missing > 0 {
		t.Errorf("%d kernels seen, %d ran; %d of them differ, %d are missing",
			len(got), len(want), otherThreads, missing)
	}
}

// launchesOf fails the test unless each kernel's launch is in the recording, by the thread that made it.
func launchesOf(t *testing.T, rec *recording.Recording, truth *cudasim.Truth, kernels []ran) {
	t.Helper()
	calls := map[uint64]*event.Event{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Call && e.Flags&event.Correlated != 0 {
			calls[uint64(uint32(e.Ret))] = e
		}
	}
	made := map[uint64]*cudasim.Call{}
	for i := range truth.Calls {
		made[truth.Calls[i].ID] = &truth.Calls[i]
	}
	unknown, wrong := 0, 0
	for _, k := range kernels {
		e, c := calls[k.call], made[k.call]
		switch {
		case e == nil:
			unknown++
		case e.TID != c.TID || e.TS < c.Enter || e.End() > c.Exit:
			if wrong++; wrong == 1 {
				t.Errorf("%s: its launch is seen in thread %d at %d to %d, truly in %d from %d to %d",
					k.name, e.TID, e.TS, e.End(), c.TID, c.Enter, c.Exit)
			}
		}
	}
	if unknown+wrong > 0 {
		t.Errorf("of %d kernels %d have no launch, %d a wrong one", len(kernels), unknown, wrong)
	}
}

// agentIn is what a recording says of the agent in pid.
func agentIn(rec *recording.Recording, pid int) recording.Agent {
	if rec.Meta.GPU != nil {
		for _, a := range rec.Meta.GPU.Agents {
			if int(a.PID) == pid {
				return a
			}
		}
	}
	return recording.Agent{}
}

// waitAgent waits until the agent in pid is in a state.
func (d *daemon) waitAgent(pid int, state string) recording.Agent {
	d.t.Helper()
	var a recording.Agent
	for end := time.Now().Add(testTimeout); ; sleep(20) {
		if a = agentIn(d.fetch(pid), pid); a.State == state {
			return a
		}
		if time.Now().After(end) {
			d.t.Fatalf("waited %v for the agent in %d to be %s; it is %+v", testTimeout, pid, state, a)
		}
	}
}

// waitOpen waits until the window is open of an agent that records all the time, which on a loaded machine is some time
// after it runs.
func (d *daemon) waitOpen(pid int) recording.Agent {
	d.t.Helper()
	a := d.waitAgent(pid, "running")
	waitFor(d.t, "an open window", func() bool {
		return slices.ContainsFunc(d.fetch(pid).Meta.GPU.Windows, func(w recording.GPUWindow) bool {
			return int(w.PID) == pid && w.Activity && w.End == "open"
		})
	})
	return a
}

// waitKernels waits until the recording holds n kernels of pid whose name contains part, and returns it. Where no more
// come the test goes on with fewer: the comparison says what is missing.
func (d *daemon) waitKernels(pid int, part string, n int) *recording.Recording {
	d.t.Helper()
	return d.waitKernelsOf(pid, pid, part, n)
}

// waitAllKernels is waitKernels for root and its children together.
func (d *daemon) waitAllKernels(root int, part string, n int) *recording.Recording {
	d.t.Helper()
	return d.waitKernelsOf(root, anyProcess, part, n)
}

func (d *daemon) waitKernelsOf(root, pid int, part string, n int) *recording.Recording {
	d.t.Helper()
	var rec *recording.Recording
	for rounds, had := 0, 0; rounds < 40; rounds++ { // a flush every 100 ms at least
		rec = d.fetch(root)
		have := len(kernelsIn(rec, pid, part))
		if have >= n {
			break
		}
		if have > had {
			rounds, had = 0, have
		}
		sleep(50)
	}
	return rec
}

// whole fails the test if the agents lost records.
func whole(t *testing.T, rec *recording.Recording) {
	t.Helper()
	for _, a := range rec.Meta.GPU.Agents {
		if a.Dropped != 0 {
			t.Errorf("the agent in %d dropped %d records", a.PID, a.Dropped)
		}
	}
	for _, w := range rec.Meta.GPU.Windows {
		if w.Dropped != 0 {
			t.Errorf("a window dropped %d records: %+v", w.Dropped, w)
		}
	}
}

// workloads are what kernels are compared on, in a short run the first one. Their kernels have "counted" in the name.
var workloads = []struct {
	name   string
	o      cudasim.Options
	before string   // before the agent comes
	script []string // after
	want   int
	loop   []string // instead of script again and again, where that would not do
}{
	{
		"one thread",
		cudasim.Options{},
		"",
		[]string{
			"launch 2000 kernel=counted_us3 grid=7,3,2 block=128,2,1 shared=64",
			"launch 50 ex kernel=counted_ns500",
			"launch 20 coop kernel=counted_us9",
			"sync",
		},
		2070,
		nil,
	},
	{
		"runtime, driver 535",
		cudasim.Options{Lib: "runtime", Shape: cudasim.Shape535},
		"",
		[]string{"launch 1500 kernel=counted_us3 grid=9", "launchex 100 kernel=counted_us2", "sync"},
		1600,
		nil,
	},
	{
		"CUPTI 11.8",
		cudasim.Options{Env: []string{"CUDASIM_CUPTI_VERSION=11.8"}},
		"",
		[]string{"launch 700 kernel=counted_us3 grid=9", "h2d 4096 x20 pinned async", "sync"},
		700,
		nil,
	},
	{
		"CUPTI 13.5",
		cudasim.Options{Env: []string{"CUDASIM_CUPTI_VERSION=13.5"}},
		"",
		[]string{"launch 700 kernel=counted_us3 grid=9", "h2d 4096 x20 pinned async", "sync"},
		700,
		nil,
	},
	{
		"8 threads, a stream each",
		cudasim.Options{Lib: "runtime", Args: []string{"--ptds"}, Env: []string{"CUDASIM_KERNEL_SLOTS=16"}},
		"",
		[]string{"thread 8 { launch 400 kernel=counted_us2 grid=5; ssync }"},
		3200,
		[]string{"thread 8 { until 8s { launch 40 kernel=counted_us2 grid=5; ssync; sleep 30ms } }"},
	},
	{
		"64 threads, a stream each",
		cudasim.Options{Lib: "runtime", Args: []string{"--ptds"}, Env: []string{"CUDASIM_KERNEL_SLOTS=64"}},
		"",
		[]string{"thread 64 { launch 50 kernel=counted_us2; ssync }"},
		3200,
		[]string{"thread 64 { until 8s { launch 40 kernel=counted_us2; ssync; sleep 130ms } }"},
	},
	{
		"streams with copies between",
		cudasim.Options{Env: []string{"CUDASIM_KERNEL_SLOTS=8"}},
		"stream-new; stream-new nonblocking; stream-new nonblocking",
		[]string{
			"repeat 100 { h2d 4096 async pinned stream=1; launch 3 kernel=counted_us5 stream=1; launch 2 " +
				"kernel=counted_us7 stream=2; event-record 1 stream=2; event-wait 1 stream=3; launch 1 " +
				"kernel=counted_us1 stream=3; d2h 512 async stream=3 }",
			"sync",
		},
		600,
		nil,
	},
	{
		"graphs made before, updated and launched",
		cudasim.Options{},
		"stream-new nonblocking; graph 20 stream=1 kernel=counted_us1; graph 5 stream=1 kernel=warm_us2",
		[]string{
			"repeat 30 { graph-launch 2 stream=1 graph=1; graph-launch stream=1 graph=2; graph-update 20 stream=1 " +
				"graph=1 kernel=counted_us4 }",
			"ssync stream=1",
		},
		1200,
		nil,
	},
	{"contexts, and a device that is reset", cudasim.Options{}, "", []string{
		"launch 50 kernel=counted_us2", "context 1", "launch 60 kernel=counted_us3", "sync", "context 0",
		"launch 10 kernel=counted_us1", "sync", "reset", "launch 80 kernel=counted_us2", "sync",
	}, 200, []string{
		"until 4s { launch 5 kernel=counted_us2; context 1; launch 6 kernel=counted_us3; sync; context 0; launch 2 " +
			"kernel=counted_us1; sync; reset; launch 8 kernel=counted_us2; sync; sleep 20ms }",
	}},
}

func TestAgentSeesEveryKernel(t *testing.T) {
	t.Parallel()
	for i, c := range workloads {
		t.Run(c.name, func(t *testing.T) {
			if i > 0 {
				needs.Long(t)
			}
			t.Parallel()
			script := append([]string{c.before, busy}, c.script...)
			v := cudasim.Start(t, c.o, append(script, "print done", busy)...)
			d := startDaemon(t, v.PID, "--gpu", "continuous")
			a := d.waitOpen(v.PID)
			v.Go()
			v.WaitLine("done")
			rec := d.waitKernels(v.PID, "counted", c.want)
			truth := v.Truth()
			want := kernelsOf(truth, "counted", a.Joined, now())
			if len(want) != c.want {
				t.Fatalf("the victim ran %d kernels, not %d", len(want), c.want)
			}
			equalKernels(t, kernelsIn(rec, v.PID, "counted"), want)
			launchesOf(t, rec, truth, want)
			whole(t, rec)
			d.stop()
			unharmed(t, v)
		})
	}
}

func TestAgentSeesEveryKernelOfItsWindows(t *testing.T) {
	t.Parallel()
	for i, c := range workloads {
		t.Run(c.name, func(t *testing.T) {
			if i > 0 {
				needs.Long(t)
			}
			t.Parallel()
			loop := []string{"until { " + strings.Join(c.script, "; ") + "; sleep 40ms }"}
			if c.loop != nil {
				loop = append(c.loop, busy)
			}
			v := cudasim.Start(t, c.o, append([]string{c.before}, loop...)...)
			d := startDaemon(t, v.PID, inWindows("60ms", "200ms", "--trace-size-mb", "400")...)
			d.waitAgent(v.PID, "running")
			// They may not all be outside together in time: then CUPTI, with its thread, stays at rest.
			crowd := strings.Contains(c.name, "threads")
			compared := 0
			// a loaded machine makes few kernels in a window
			for windows := 5; compared < 100 && windows <= 20; windows += 5 {
				compared = equalWindows(t, d.waitWindows(v.PID, windows), v, crowd, d.starved(v.PID))
			}
			if compared < 100 && !crowd {
				t.Errorf("only %d kernels were compared", compared)
			}
			t.Logf("%d kernels were compared", compared)
			d.stop()
			stays := 0
			if crowd {
				stays = 1
			}
			left(t, v, stays)
		})
	}
}

// starved returns how many windows of a process were not finalized because its thread waits for CPUs, as threads do
// beside other tests.
func (d *daemon) starved(pid int) (n uint64) {
	d.t.Helper()
	for _, a := range d.status().Agents {
		if int(a.PID) == pid {
			n += a.Starved
		}
	}
	return n
}

// equalWindows fails the test unless the windows of rec that have ended hold the kernels that ran in them. It returns
// how many those are. In a crowd a window may say that it lacks records, and then lack them.
func equalWindows(
	t *testing.T, rec *recording.Recording, v *cudasim.Victim, crowd bool, starved uint64,
) (compared int) {
	t.Helper()
	seen, truth := kernelsIn(rec, v.PID, ""), v.Truth()
	all := kernelsOf(truth, "", 0, now())
	if !crowd {
		whole(t, rec)
	}
	for _, w := range closedWindows(rec, v.PID) {
		// kept where a crowd is not outside together
		if w.End != "finalized" && w.End != "kept" && (w.End != "disabled" || starved == 0) {
			t.Errorf("a window ended %q: %+v", w.End, w)
		}
		want := kernelsOf(truth, "", w.From, w.To)
		if w.Dropped == 0 {
			equalKernels(t, inside(seen, want, all, w.From, w.To), want)
			compared += len(want)
		}
	}
	return compared
}

// waitWindows waits until n windows of pid have ended. After a moment it asks rarely: recordings are large.
func (d *daemon) waitWindows(pid, n int) *recording.Recording {
	d.t.Helper()
	for end, wait := time.Now().Add(testTimeout), 20; ; wait = min(2*wait, 150) {
		sleep(wait)
		rec := d.fetch(pid)
		if got := len(closedWindows(rec, pid)); got >= n {
			return rec
		} else if time.Now().After(end) {
			d.t.Fatalf("waited %v for %d windows; %d have ended: %+v", testTimeout, n, got, rec.Meta.GPU)
		}
	}
}

// closedWindows are the windows of pid with GPU activity that have ended.
func closedWindows(rec *recording.Recording, pid int) []recording.GPUWindow {
	var out []recording.GPUWindow
	for _, w := range rec.Meta.GPU.Windows {
		if int(w.PID) == pid && w.Activity && w.End != "open" && w.From > rec.Meta.From {
			out = append(out, w)
		}
	}
	return out
}

// inside returns those of seen that began and ended within a window, without those at its edges: kernels that did run,
// and were queued before it began, or by a launch that had not returned when it ended.
func inside(seen, want, everything []ran, from, to uint64) []ran {
	wanted, made := map[ran]bool{}, map[ran]bool{}
	for _, k := range want {
		wanted[k] = true
	}
	for _, k := range everything {
		made[k] = true
	}
	var out []ran
	for _, k := range seen {
		if k.start >= from && k.end <= to && (wanted[k] || !made[k]) {
			out = append(out, k)
		}
	}
	return out
}

// unharmed ends a victim that waits in its last command, and fails the test if the daemon left anything in it or if a
// CUDA call of it failed.
func unharmed(t *testing.T, v *cudasim.Victim) {
	t.Helper()
	left(t, v, 0)
}

// left is unharmed for a target in which so many threads of the agent's name stay.
func left(t *testing.T, v *cudasim.Victim, threads int) {
	t.Helper()
	waitFor(t, "the agent's threads to end", func() bool { return agentThreads(v.PID) <= threads })
	if n := agentFiles(v.PID); n != 0 {
		t.Errorf("%d files of the agent are still open in the target", n)
	}
	if n := cudasim.ChangedText(t, v.PID, "libcuda.so"); n != 0 {
		t.Errorf("%d bytes of libcuda's text still differ from its file", n)
	}
	v.Go()
	v.Finish()
	truth := v.Truth()
	for name := range truth.Counts() {
		n := truth.FailedCount(name)
		// the agent's own, in which it finalizes: refused, since its thread has no context
		if name == "cuCtxSynchronize" {
			n -= min(n, truth.Count("cuptiFinalize"))
		}
		if n != 0 {
			t.Errorf("%s failed %d times", name, n)
		}
	}
}

// agentThreads counts the agent's threads in a process, and those that CUPTI made for it.
func agentThreads(pid int) int {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	n := 0
	for _, task := range tasks {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/comm", pid, task.Name()))
		if strings.HasPrefix(string(comm), "inferscope") || string(comm) == "cupti\n" {
			n++
		}
	}
	return n
}

// agentFiles counts the agent's open files in a process.
func agentFiles(pid int) int {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n := 0
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); strings.Contains(to, "inferscope") {
			n++
		}
	}
	return n
}
