package cudaapi_test

import (
	"cmp"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// bench is a source on a victim.
type bench struct {
	tb       testing.TB
	rings    *ring.Rings
	source   *cudaapi.Source
	process  *proc.Process
	seen     map[string][]event.Event // by function
	observes bool                     // what is drained is shown to the source
}

func watch(tb testing.TB, opts cudaapi.Options, script ...string) (*bench, *cudasim.Victim) {
	tb.Helper()
	return watchLibrary(tb, "driver", opts, script...)
}

// watchLibrary is watch for a program that calls the driver, or the runtime.
func watchLibrary(tb testing.TB, library string, opts cudaapi.Options, script ...string) (*bench, *cudasim.Victim) {
	tb.Helper()
	for _, n := range (feature.Prober{}).Detect().Capabilities.Missing() {
		if !n.Optional {
			tb.Skip("needs root, or ", n.Needs, " for ", n.For)
		}
	}
	v := cudasim.Start(tb, cudasim.Options{Lib: library}, append([]string{"wait"}, script...)...)
	b := &bench{tb: tb, seen: map[string][]event.Event{}}
	var err error
	if b.rings, err = ring.New(ring.Options{Bytes: 32 << 20}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { b.rings.Close() })
	opts.Complain = func(err error) { tb.Error(err) }
	if b.source, err = cudaapi.New(b.rings, opts); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { b.source.Close() })
	if b.process, err = proc.Describe(v.PID); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { b.process.Close() })
	must.NoError(tb, b.source.Follow(b.process))
	return b, v
}

func (b *bench) drain() {
	names := b.source.Functions()
	b.rings.Drain(func(batch []event.Event) {
		if b.observes {
			b.source.Observe(batch)
		}
		for _, e := range batch {
			b.seen[names[e.Func].Base] = append(b.seen[names[e.Func].Base], e)
		}
	})
}

// windows returns those of the process so far.
func (b *bench) windows() []recording.GPUWindow {
	return b.source.LaunchWindows(b.process.PID, 0, ^uint64(0))
}

// await waits until ok, and empties the rings meanwhile. The deadline only finds what hangs: where all CPUs are taken
// the kernel needs seconds to take probes off, and they stay off for nine times as long.
func (b *bench) await(what string, ok func() bool) {
	b.tb.Helper()
	for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		b.drain()
		if time.Now().After(deadline) {
			b.tb.Fatalf("%s: not within 90 s; windows: %+v", what, b.windows())
		}
	}
	b.drain()
}

func now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return uint64(t.Nano())
}

// Every launch in a window is seen, none is counted as seen that is not, and
// the rare calls are seen all the time.
func TestLaunchesInWindows(t *testing.T) {
	opts := cudaapi.Options{
		Launches:      cudaapi.LaunchesWindows,
		LaunchesFor:   30 * time.Millisecond,
		LaunchesEvery: 120 * time.Millisecond,
	}
	b, v := watch(t, opts, "until { launch 5 kernel=k_us5 ; sync ; sleep 200us }")
	v.Go()
	b.await("three windows", func() bool { return len(b.windows()) > 3 })
	v.Send("end")
	v.Finish()
	b.drain()
	b.source.SetLaunches(b.process.ID(), cudaapi.LaunchesOff)
	b.compare(v.Truth(), len(b.seen["cuCtxSynchronize"]))
}

// compare checks the launches of the windows that have ended against the truth.
func (b *bench) compare(truth *cudasim.Truth, syncs int) {
	b.tb.Helper()
	inside := 0
	for _, w := range b.windows() {
		if !w.Calls || w.Activity || w.PID != b.process.PID || w.To < w.From {
			b.tb.Errorf("window %+v", w)
		}
		if w.End != "detached" {
			continue
		}
		var want, have int
		for _, c := range truth.CallsOf("cuLaunchKernel") {
			if c.Enter > w.From && c.Exit < w.To {
				want++
			}
		}
		for _, e := range b.seen["cuLaunchKernel"] {
			if e.TS >= w.From && e.TS < w.To {
				have++
			}
		}
		inside += want
		if have < want-1 || have > want+1 { // one may be past its probe when the window begins, or end after it
			b.tb.Errorf("window of %v: %d launches seen, %d made", time.Duration(w.To-w.From), have, want)
		}
	}
	all := len(truth.CallsOf("cuLaunchKernel"))
	b.tb.Logf("%d windows, %d launches in them, of %d; %d were seen",
		len(b.windows()), inside, all, len(b.seen["cuLaunchKernel"]))
	if inside == 0 || len(b.seen["cuLaunchKernel"]) > all/2 {
		b.tb.Error("no launch in a window, or probes outside of windows")
	}
	if want := int(truth.Count("cuCtxSynchronize")); syncs < want-1 {
		b.tb.Errorf("%d synchronizations seen, %d made", syncs, want)
	}
}

// SetLaunches turns the probes off and on while the process runs, and each time says when.
func TestSetLaunches(t *testing.T) {
	b, v := watch(
		t,
		cudaapi.Options{},
		"stream-new ; graph 3 stream=1 ; until { launch 3 kernel=k_us5 ; graph-launch stream=1 ; sleep 100us }",
	)
	id := b.process.ID()
	if w := b.windows(); len(w) != 1 || w[0].End != "open" {
		t.Fatalf("windows %+v before anything was set, want one that is open", w)
	}
	v.Go()
	b.await("launches", func() bool { return len(b.seen["cuLaunchKernel"]) > 100 })
	for round := 1; round <= 3; round++ {
		b.source.SetLaunches(id, cudaapi.LaunchesOff)
		b.await("off", func() bool { w := b.windows(); return len(w) == round && w[round-1].End == "detached" })
		off := b.windows()[round-1].To
		quiet := now() + uint64(60*time.Millisecond) // by then the kernel has taken the probes off
		graphs := len(b.seen["cuGraphLaunch"])
		b.await("graph launches, which stay probed", func() bool {
			return now() > quiet+uint64(50*time.Millisecond) && len(b.seen["cuGraphLaunch"]) > graphs+10
		})
		for _, e := range b.seen["cuLaunchKernel"] {
			if e.TS > quiet {
				t.Fatalf("round %d: a launch was seen %v after the end of the window", round, time.Duration(e.TS-off))
			}
		}
		b.source.SetLaunches(id, cudaapi.LaunchesOn)
		before := len(b.seen["cuLaunchKernel"])
		b.await("launches again", func() bool { return len(b.seen["cuLaunchKernel"]) > before+10 })
	}
	v.Send("end")
	v.Finish()
	b.source.Forget(b.process)
	all := b.windows()
	if len(all) != 4 || all[3].End != "detached" {
		t.Errorf("windows after the process has gone: %+v", all)
	}
	if !slices.IsSortedFunc(all, func(x, y recording.GPUWindow) int { return int(x.From) - int(y.From) }) {
		t.Errorf("windows out of order: %+v", all)
	}
}

// TestLaunchesThatCannotBeProbed: a library of which the first attempt fails is said not to be probed, and gets no
// probes later either.
func TestLaunchesThatCannotBeProbed(t *testing.T) {
	b, v := watch(t, cudaapi.Options{})
	file, err := os.Open(os.DevNull) // nothing can be probed in a device
	must.NoError(t, err)
	defer file.Close()
	if n, err := b.source.AddLaunches(b.process.ID(), file, 4096); err == nil || n != 1 {
		t.Errorf("%d libraries get probes, error %v", n, err)
	}
	v.Go()
	v.Finish()
}

// TestProbesGoWithThoseThatFail: where some of a library's probes cannot be put on, none stays or comes back.
func TestProbesGoWithThoseThatFail(t *testing.T) {
	b, v := watch(t, cudaapi.Options{})
	beyond := []uprobe.Site{{Offset: 1 << 40}}
	for i := range 20 {
		plain := i%2 == 1
		path := ""
		for _, l := range b.source.Libraries() {
			path = cmp.Or(path, l.Path)
		}
		file, err := os.Open(path)
		must.NoError(t, err)
		defer file.Close()
		if open, on, err := b.source.ProbeAgain(b.process, file, beyond, plain); err == nil || on != 0 || open {
			t.Fatalf("other calls than launches %v: %d probes are on, file open %v, error %v", plain, on, open, err)
		}
	}
	v.Go()
	v.Finish()
}

// What is set before a process is followed counts too.
func TestSetLaunchesEarly(t *testing.T) {
	b, v := watch(t, cudaapi.Options{})
	b.source.Forget(b.process)
	b.source.SetLaunches(b.process.ID(), cudaapi.LaunchesOff)
	must.NoError(t, b.source.Follow(b.process))
	for _, w := range b.windows() {
		if w.End == "open" {
			t.Errorf("launches are probed: %+v", w)
		}
	}
	v.Go()
	v.Finish()
}

func TestIndex(t *testing.T) {
	b, v := watch(t, cudaapi.Options{})
	for _, name := range []string{"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2"} {
		i, ok := b.source.Index(name)
		again, _ := b.source.Index(name)
		if !ok || i != again {
			t.Fatalf("%s: %d, %v, then %d", name, i, ok, again)
		}
		if f := b.source.Functions()[i]; f.Name != name || f.Library != "driver" {
			t.Errorf("%s is %+v", name, f)
		}
	}
	i, _ := b.source.Index("cuLaunchKernel")
	for j, f := range b.source.Functions() {
		if f.Name == "cuLaunchKernel" && j != int(i) {
			t.Errorf("cuLaunchKernel is %d and %d", i, j)
		}
	}
	for _, name := range []string{"", "printf", "cudaMalloc", "cuNo\nsuch"} {
		if _, ok := b.source.Index(name); ok {
			t.Errorf("%q has a number", name)
		}
	}
	v.Go()
	v.Finish()
}

// BenchmarkWindow prints what it takes to put the probes on launches on and off, in
// each mode, while the victim launches all the time.
func BenchmarkWindow(b *testing.B) {
	for _, mode := range []uprobe.Mode{uprobe.Session, uprobe.Multi, uprobe.Perf} {
		b.Run(string(mode), func(b *testing.B) {
			w, v := watch(b, cudaapi.Options{Mode: mode, Launches: cudaapi.LaunchesOff},
				"until { launch 20 kernel=k_us5 ; sleep 100us }")
			v.Go()
			on, off, functions := w.source.LaunchProbes(w.process.ID())
			var times [3]uint64
			for b.Loop() {
				t0 := now()
				on()
				t1 := now()
				off()
				times[1], times[2] = times[1]+t1-t0, times[2]+now()-t1
				w.drain()
			}
			b.ReportMetric(float64(times[1])/1e6/float64(b.N), "ms-on")
			b.ReportMetric(float64(times[2])/1e6/float64(b.N), "ms-off")
			b.ReportMetric(float64(functions), "functions")
			v.Send("end")
			v.Finish()
		})
	}
}
