package whatif

import (
	"math"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestKernelsBound: kernels that take 89% of the time, in two streams that overlap a little, as a split product and its
// reduction do. Nothing that leaves them as they are makes the program more than 1/0.89 times as fast.
func TestKernelsBound(t *testing.T) {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * ms
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+20*us, at+500*us, 0)
		sc.run(event.Kernel, "cuLaunchKernel", 8, at+5*us, at+450*us, at+910*us, 0)
		sc.wait(at+10*us, at+920*us)
	}
	s := sc.study(t)
	const most = 1000.0 / 890
	for _, e := range []Edit{
		edit(t, Without, "launch-overhead"), edit(t, Without, "sync"), edit(t, Without, "no-cpu"),
	} {
		p := s.Predict(e, edit(t, Without, "sync"))
		if p.Speedup > most*1.01 || p.High > most*1.01 || p.Low > p.Speedup {
			t.Errorf("%s: %.3f (%.3f to %.3f), more than the kernels allow (%.3f)",
				p.Plan, p.Speedup, p.Low, p.High, most)
		}
		if !strings.HasPrefix(p.Limit, "the kernels") {
			t.Errorf("%s: limited by %q", p.Plan, p.Limit)
		}
	}
	if p := s.Predict(edit(t, Kernels, "*=2"), edit(t, Without, "sync")); p.Speedup < 1.5 {
		t.Errorf("kernels that are twice as fast are no bound: %.3f (%s)", p.Speedup, p.Limit)
	}
	if p := s.Predict(edit(t, Without, "sleep")); p.Limit != "" || p.Speedup != 1 {
		t.Errorf("nothing sleeps: %+v", p)
	}
}

// pageableSteps copies 20 MB from pageable memory in 2 ms (10 GB/s), and computes for 1 ms.
func pageableSteps() *scene {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * period
		sc.copy(at, at+10*us, at+2010*us, 1|1<<8, 20<<20)
		sc.wait(at+5*us, at+2020*us)
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+2025*us, at+2035*us, at+3035*us, 0)
		sc.wait(at+2030*us, at+3040*us)
	}
	return sc
}

func (s *scene) copy(at, from, to uint64, ret int32, bytes uint64) {
	id := s.call("cudaMemcpyAsync", at, 3*us)
	s.Event(event.Event{
		TS: start + from, Dur: to - from, PID: s.PID, TID: 7, Func: 1 << 8, Kind: event.Copy, Flags: event.Timed,
		Ret:  ret,
		Args: [4]uint64{uint64(id), 0, bytes},
	})
}

// TestPinnedRate: pinned copies are as fast as the recording's own are, and where it has none no faster than the link.
func TestPinnedRate(t *testing.T) {
	sc := pageableSteps()
	s := sc.study(t)
	if g := s.pins[replay.ToDevice]; g.usual != pinnedGain || g.least != leastPinned || g.most != mostPinned ||
		g.measured {
		t.Errorf("of an unknown link %+v", g)
	}

	sc = pageableSteps()
	sc.Meta.GPU.Devices[0].Major = 8
	if g := sc.study(t).pins[replay.ToDevice]; math.Abs(g.most-28/10.48576) > 0.01 ||
		math.Abs(g.usual-usualOfLink*g.most) > 0.01 || g.least < 1 || g.least > g.usual {
		t.Errorf("of PCIe 4 %+v", g)
	}

	sc = pageableSteps()
	for i := range uint64(20) { // 20 MB in 1 ms, pinned; and a small one that is slower
		at := i*period + 3100*us
		sc.copy(at, at+10*us, at+910*us, 1|2<<8, 20<<20)
		sc.copy(at+20*us, at+910*us, at+915*us, 1|2<<8, 100)
	}
	s = sc.study(t)
	if g := s.pins[replay.ToDevice]; math.Abs(g.usual-2000.0/900) > 0.001 || !g.measured {
		t.Errorf("of measured copies %+v", g)
	}
	if g := s.pins[replay.ToHost]; g.usual != 1 {
		t.Errorf("nothing is copied back: %+v", g)
	}

	sc = pageableSteps()
	for i := range uint64(20) { // 4 bytes come back, pinned: they say nothing of the link
		at := i*period + 3100*us
		sc.copy(at, at+10*us, at+12*us, 2|2<<16, 4)
	}
	if g := sc.study(t).pins[replay.ToDevice]; g.usual != pinnedGain || g.measured {
		t.Errorf("of copies too small to compare with %+v", g)
	}
}

// TestUnknownLink: where copies are most of the time, and none is pinned, it is the link that widens the interval.
func TestUnknownLink(t *testing.T) {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * 2200 * us
		sc.copy(at, at+10*us, at+2010*us, 1|1<<8, 20<<20)
		sc.wait(at+5*us, at+2020*us)
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+2025*us, at+2035*us, at+2135*us, 0)
		sc.wait(at+2030*us, at+2140*us)
	}
	if p := sc.study(t).Predict(edit(t, Without, "sync-copy")); p.Because != ofLink {
		t.Errorf("%.2f (%.2f to %.2f) is wide because %q", p.Speedup, p.Low, p.High, p.Because)
	}
}

// batches is a loader that prepares a batch for 30 ms while the leader waits for it, and then for 2.5 ms of GPU work.
func batches(cpus int) *scene {
	sc := newScene()
	sc.Meta.Host.CPUs = cpus
	load := sc.Stack(recordtest.Native("load", "server"))
	const each = 33 * ms
	for i := range uint64(30) {
		at := i * each
		sc.Off(recordtest.Off{
			TID:     leader,
			TS:      start + at,
			Dur:     30 * ms,
			Blocked: 30 * ms,
			Call:    sysFutex,
			By:      [2]uint32{leader, helper},
		})
		sc.Samples(helper, start+at, start+at+30*ms, 3, load, event.Whole)
		sc.Off(recordtest.Off{
			TID:     helper,
			TS:      start + at + 30*ms,
			Dur:     3 * ms,
			Blocked: 3 * ms,
			Call:    sysFutex,
			By:      [2]uint32{leader, leader},
		})
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+30*ms+20*us, at+30*ms+30*us, at+32500*us, 0)
		sc.wait(at+30*ms+30*us, at+32900*us)
	}
	return sc
}

// TestWorkersNeedCPUs: a loader that takes 12 times as long as the GPU is made up for by 12 loaders on 12 CPUs, and not
// by any number on fewer.
func TestWorkersNeedCPUs(t *testing.T) {
	free, ok := batches(32).study(t).Together(cause.Remedy{Cause: cause.Worker})
	if !ok || free.Workers < 9 || free.Workers > 13 || free.Speedup < 9 || free.Speedup > 13.3 {
		t.Errorf("with 32 CPUs %+v", free)
	}
	few, _ := batches(4).study(t).Together(cause.Remedy{Cause: cause.Worker})
	if few.Speedup > 4.4 || few.High > 4.4 || few.Low > few.Speedup/1.05 || few.Workers < 3 || few.Workers > 5 ||
		!strings.Contains(few.Limit, "4 CPUs") {
		t.Errorf("with 4 CPUs %+v", few)
	}
	if few.CPUs < 3.5 || few.CPUs > 4 || few.CPUsNow < 0.8 || few.CPUsNow > 1 || few.FreeCPUs != nil {
		t.Errorf("with 4 CPUs it takes %.2f in place of %.2f", few.CPUs, few.CPUsNow)
	}
	busy := batches(4) // other programs take two of them
	const taken, left = 100 * calltest.Second, 11 * calltest.Second / 10
	busy.Meta.Pressure = []recording.Pressure{
		{TS: start, FreeCPU: taken}, {TS: start + calltest.Second, FreeCPU: taken + left},
	}
	beside, _ := busy.study(t).Together(cause.Remedy{Cause: cause.Worker})
	if beside.Speedup > 2.4 || beside.Speedup < 1.8 || beside.High < 2.2 || beside.FreeCPUs == nil ||
		*beside.FreeCPUs != 1.1 || !strings.Contains(beside.Limit, "1.1 of which are free") {
		t.Errorf("with 1.1 of 4 CPUs free %+v", beside)
	}
	unknown, _ := batches(0).study(t).Together(cause.Remedy{Cause: cause.Worker})
	if unknown.Limit != "" && strings.Contains(unknown.Limit, "CPUs") || unknown.Speedup < 9 {
		t.Errorf("with unknown CPUs %+v", unknown)
	}
}

// TestWorkersShareTheGIL: a handler that computes in Python for two thirds of the time is not made up for by more of
// them than there are: they share the lock, and the thread that launches waits for it. Code of a library, which may let
// go of it, is not bounded by it.
func TestWorkersShareTheGIL(t *testing.T) {
	const each = 6 * ms
	handlers := func(frames ...recording.Frame) *Study {
		sc := newScene()
		sc.Meta.Host.CPUs = 64
		stack := sc.Stack(frames...)
		for i := range uint64(calltest.Second / each) {
			at := i * each
			sc.Off(recordtest.Off{
				TID: leader, TS: start + at, Dur: 5 * ms, Blocked: 5 * ms, Call: sysFutex,
				By: [2]uint32{leader, helper},
			})
			sc.Off(recordtest.Off{TID: helper, TS: start + at, Dur: ms, Blocked: ms, Call: sysSleep})
			for k := range uint64(8) {
				sc.Sample(helper, start+at+ms+k*500*us+250*us, stack, event.Whole)
			}
			sc.Off(recordtest.Off{
				TID: helper, TS: start + at + 5*ms, Dur: ms, Blocked: ms, Call: sysFutex, By: [2]uint32{leader, leader},
			})
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+5*ms+20*us, at+5*ms+30*us, at+5900*us, 0)
			sc.wait(at+5*ms+30*us, at+5950*us)
		}
		return sc.study(t)
	}
	python := recordtest.Python("tokenize", "/app/serve.py", 7)
	own, ok := handlers(python).Together(cause.Remedy{Cause: cause.Worker})
	if !ok || own.Speedup < 1.15 || own.Speedup > 1.3 || own.High > 1.5 || own.Workers != 1 {
		t.Errorf("threads in Python: %+v", own)
	}
	four := handlers(python).Predict(Edit{Verb: Without, Pattern: "worker", Cause: cause.Worker, Workers: 4})
	if four.Speedup > own.Speedup+0.01 || four.High > 1.55 || !strings.Contains(four.Limit, "GIL") {
		t.Errorf("four times as many: %+v", four)
	}
	zlib := recordtest.Native("deflate", "/lib/libz.so.1")
	native, _ := handlers(zlib, python).Together(cause.Remedy{Cause: cause.Worker})
	if native.Speedup < 3 || strings.Contains(native.Limit, "GIL") {
		t.Errorf("threads in zlib: %+v", native)
	}
}

// TestWorkersThatAlwaysWork: a thread that has the lock all the time is asked ahead already, and more of them bring
// nothing. That is a prediction: none was made of it once, and then nobody knew.
func TestWorkersThatAlwaysWork(t *testing.T) {
	const each = 6 * ms
	sc := newScene()
	sc.Meta.Host.CPUs = 64
	stack := sc.Stack(recordtest.Python("tokenize", "/app/serve.py", 7))
	for i := range uint64(calltest.Second / each) {
		at := i * each
		sc.asked(at, helper)
		for k := range uint64(12) {
			sc.Sample(helper, start+at+k*500*us+250*us, stack, event.Whole)
		}
	}
	p, ok := sc.study(t).Together(cause.Remedy{Cause: cause.Worker})
	if !ok || p.Speedup > 1.02 || p.Touched == 0 || !strings.Contains(p.Limit, "GIL") {
		t.Errorf("%v: %+v", ok, p)
	}
}

// TestVague: an interval whose upper end is more than three times its lower one holds no number to act on.
func TestVague(t *testing.T) {
	for p, want := range map[cause.Gain]bool{
		{Speedup: 4.46, Low: 2.25, High: 107}:     true,
		{Speedup: 1.1, Low: 0.58, High: 11.4}:     true,
		{Speedup: 4.61, Low: 2.35, High: 6.09}:    false,
		{Speedup: 1000, Low: 400, High: 1000}:     false,
		{Speedup: 1000, Low: 0.37, High: 1000}:    true,
		{Speedup: 1, Low: 1, High: 1, Workers: 5}: false,
	} {
		if p.Vague() != want {
			t.Errorf("%.2f to %.2f: vague %v", p.Low, p.High, !want)
		}
	}
}

// TestLockOfThoseThatLeave: Python code that leaves the thread that launches brings less in a thread of the same
// process than in another one where that thread runs Python as well, and as much where it does not.
func TestLockOfThoseThatLeave(t *testing.T) {
	features := func(launching recording.Frame) Prediction {
		sc := newScene()
		leave := sc.Stack(recordtest.Python("features", "/app/serve.py", 7))
		stay := sc.Stack(launching)
		for at := uint64(0); at < uint64(calltest.Second); at += 6 * ms {
			for k := range uint64(8) {
				sc.Sample(leader, start+at+k*500*us+250*us, leave, event.Whole)
			}
			for k := range uint64(2) {
				sc.Sample(leader, start+at+4*ms+k*500*us+250*us, stay, event.Whole)
			}
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+5*ms+20*us, at+5*ms+30*us, at+5900*us, 0)
			sc.wait(at+5*ms+30*us, at+5950*us)
		}
		return sc.study(t).Predict(edit(t, Overlap, "features"))
	}
	both := features(recordtest.Python("schedule", "/app/serve.py", 9))
	if both.Speedup < 1.4 || both.InThread < 1.1 || both.InThread > 6./5+0.01 {
		t.Errorf("the thread that launches runs Python: %+v", both)
	}
	one := features(recordtest.Native("schedule", "/app/libserve.so"))
	if one.InThread != 0 || one.Speedup < both.Speedup-0.01 {
		t.Errorf("it runs native code: %+v, and Python: %+v", one, both)
	}
}

// TestTwoRemedies: computing beside the GPU's work brings at most what the longer of the two allows, and not computing
// brings more; both together with what else is on the path bring most.
func TestTwoRemedies(t *testing.T) {
	s := stepwise().study(t)
	beside, _ := s.Together(cause.Remedy{Cause: cause.PythonWork})
	less, ok := s.Together(cause.Remedy{Cause: cause.PythonWork, Less: true})
	predicts(t, beside, 4000.0/2930)
	predicts(t, less, 4000.0/(4000-2930))
	if !ok || less.Plan != "faster python-work=1e+06" {
		t.Errorf("%v %q", ok, less.Plan)
	}
	if e, err := Parse(Faster, "python-work=1e+06"); err != nil ||
		e != editOf(cause.Remedy{Cause: cause.PythonWork, Less: true}) {
		t.Errorf("whatif does not take its own plan: %+v, %v", e, err)
	}
	all, _ := s.Together(cause.Remedy{Cause: cause.PythonWork, Less: true}, cause.Remedy{Cause: cause.HostSync})
	if all.Speedup < less.Speedup || !strings.HasPrefix(all.Limit, "the kernels") {
		t.Errorf("both: %+v", all)
	}
	if _, ok := s.Together(cause.Remedy{Cause: cause.HostSync, Less: true}); ok {
		t.Error("a synchronization has one remedy")
	}
	if _, ok := s.Together(); ok {
		t.Error("nothing is no remedy")
	}
}

// TestThreadsNeedCPUs: of two functions that take half of the computing each, one leaves its thread: on a CPU that is
// free they run side by side, on none one after the other.
func TestThreadsNeedCPUs(t *testing.T) {
	overlapped := func(freeCPUs uint64) Prediction {
		sc := newScene()
		sc.Meta.Host.CPUs = 4
		const taken = 100 * calltest.Second
		sc.Meta.Pressure = []recording.Pressure{
			{TS: start, FreeCPU: taken}, {TS: start + calltest.Second, FreeCPU: taken + freeCPUs*calltest.Second},
		}
		for i := range uint64(steps) {
			at := i * period
			sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
			sc.wait(at+5*us, at+1020*us)
			for k := range uint64(6) {
				function := []string{"encode", "decode"}[k/3]
				stack := sc.Stack(recordtest.Python(function, "/app/infer.py", 7))
				sc.Sample(leader, start+at+1100*us+k*500*us, stack, event.Whole)
			}
		}
		return sc.study(t).Predict(edit(t, Overlap, "encode"))
	}
	free, none := overlapped(3), overlapped(0)
	if free.Speedup < 1.45 || strings.Contains(free.Limit, "CPUs") {
		t.Errorf("with free CPUs %+v", free)
	}
	if none.Speedup > 1.4 || none.High < free.Speedup || !strings.Contains(none.Limit, "0.0 of which are free") {
		t.Errorf("with none %+v", none)
	}
}
