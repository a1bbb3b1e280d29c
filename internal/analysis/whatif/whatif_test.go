package whatif

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestSteps: 1,020 µs of GPU with its waiting and 2,980 µs of Python in turns, of which the first 50 are launching.
func TestSteps(t *testing.T) {
	s := stepwise().study(t)
	const work, whole = 2930.0, 4000.0
	for _, c := range []struct {
		verb Verb
		text string
		want float64
	}{
		{Faster, "encode=2", whole / (whole - work/2)},
		{Faster, "python=4", whole / (whole - work*3/4)},
		{Without, "encode", whole / (whole - work)},
		{Kernels, "*=2", whole / (whole - 500)},
		{Faster, "nothing=2", 1},
		{Without, "sleep", 1},
		// Beside the rest it is what takes longest.
		{Overlap, "encode", whole / work},
		{Without, "python-work", whole / work},
		// The kernel runs beside the computing of the next step.
		{Without, "sync", whole / (whole - 1010)},
	} {
		t.Run(fmt.Sprintf("%s %s", c.verb, c.text),
			func(t *testing.T) { predicts(t, s.Predict(edit(t, c.verb, c.text)), c.want) })
	}
	if p := s.Predict(edit(t, Without, "sleep")); !p.Empty() || p.Because != ofNothing {
		t.Errorf("nobody sleeps: %+v", p)
	}
	if p := s.Predict(edit(t, Faster, "nothing=2")); !p.Empty() || p.High < 2 {
		t.Errorf("what has no samples may take time: %+v", p)
	}
	if p := s.Predict(edit(t, Faster, "encode=2"), edit(t, Faster, "nothing=2")); len(p.Unmatched) != 1 ||
		p.Unmatched[0] != "nothing" {
		t.Errorf("%+v", p)
	}
	both := s.Predict(edit(t, Without, "sync"), edit(t, Faster, "encode=1000000"))
	predicts(t, both, whole/1000) // the GPU is what is left
}

// TestMarginals: what is beside the critical path brings nothing, whatever it takes.
func TestMarginals(t *testing.T) {
	sc := stepwise()
	busy := sc.Stack(recordtest.Python("log", "/app/log.py", 7))
	sc.Samples(helper, start, start+steps*period, 100, busy, event.Whole)
	gains := map[string]Marginal{}
	for _, m := range sc.study(t).Marginals() {
		gains[m.Name] = m
	}
	if m := gains["log (log.py)"]; m.Time < steps*period*9/10 || m.Gone != 1 {
		t.Errorf("log: %+v", m)
	}
	if m := gains["encode (infer.py)"]; m.Gone < 3.7 || m.Twice < 1.5 || m.Twice > 1.6 {
		t.Errorf("encode: %+v", m)
	}
}

// TestSleep: a sleep of 2 ms of the 2,980 µs.
func TestSleep(t *testing.T) {
	sc := stepwise()
	for i := range uint64(steps) {
		sc.Off(recordtest.Off{
			TID:     leader,
			TS:      start + i*period + 1500*us,
			Dur:     2 * ms,
			Blocked: 2 * ms,
			Call:    sysSleep,
			Flags:   event.FromIRQ,
		})
	}
	s := sc.study(t)
	predicts(t, s.Predict(edit(t, Without, "sleep")), 2)
	predicts(t, s.Predict(edit(t, Faster, "sleep=2")), 4.0/3)
}

// TestWakingUpGoesWithTheWait: a thread that sleeps for 1 ms and gets a CPU 1 ms later keeps its CPU if it does not sleep,
// unless others compute there then.
func TestWakingUpGoesWithTheWait(t *testing.T) {
	sc := stepwise()
	for i := range uint64(steps) {
		sc.Off(recordtest.Off{
			TID:     leader,
			TS:      start + i*period + 1500*us,
			Dur:     2 * ms,
			Blocked: ms,
			Call:    sysSleep,
			Flags:   event.FromIRQ,
		})
	}
	s := sc.study(t)
	p := s.Predict(edit(t, Without, "sleep"))
	predicts(t, p, 2)
	if p.Low > 4.0/3 {
		t.Errorf("%.2f to %.2f: it may wait for a CPU all the same", p.Low, p.High)
	}
	predicts(t, s.Predict(edit(t, Faster, "sleep=2")), 4.0/3.5)
}

// TestPollingIsWaiting: a loop that sleeps between looks at a kernel of 1.5 ms waits for that kernel where it does not
// sleep, before it computes for 1 ms.
func TestPollingIsWaiting(t *testing.T) {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * period
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1510*us, 0)
		for k := range uint64(4) {
			sc.Do("cuEventQuery", int64(at+20*us+k*900*us), us, 9)
			if k < 3 {
				sc.Off(recordtest.Off{
					TID:     leader,
					TS:      start + at + 25*us + k*900*us,
					Dur:     890 * us,
					Blocked: 890 * us,
					Call:    sysSleep,
					Flags:   event.FromIRQ,
				})
			}
		}
	}
	// 2,721 µs to the last look, of which 1,510 stay, and 1,279 of computing.
	predicts(t, sc.study(t).Predict(edit(t, Without, "sleep")), 4000.0/(1510+1279))
}

// workers is stepwise with a helper that works for 2 ms in each step while the leader waits for it.
func workers() *scene {
	sc := stepwise()
	sc.Samples(helper, start, start+steps*period, 400, sc.Stack(recordtest.Native("load", "server")), event.Whole)
	idle := func(from, to uint64) {
		sc.Off(recordtest.Off{
			TID: helper, TS: start + from, Dur: to - from, Blocked: to - from, Call: sysFutex,
			By: [2]uint32{leader, leader},
		})
	}
	idle(0, 1500*us)
	for i := range uint64(steps) {
		at := start + i*period
		sc.Off(recordtest.Off{
			TID:     leader,
			TS:      at + 1500*us,
			Dur:     2 * ms,
			Blocked: 2 * ms,
			Call:    sysFutex,
			By:      [2]uint32{leader, helper},
		})
		if i+1 < steps {
			idle(i*period+3500*us, (i+1)*period+1500*us)
		}
	}
	idle(steps*period-500*us, calltest.Second)
	return sc
}

func TestWorkers(t *testing.T) {
	s := workers().study(t)
	predicts(t, s.Predict(edit(t, Faster, "load=2")), 4.0/3)
	one := edit(t, Without, "worker")
	one.Workers = 1
	predicts(t, s.Predict(one), 2) // the helper's 2 ms beside the leader's
	two := one
	two.Workers = 2
	predicts(t, s.Predict(two), 2) // the leader's own 2 ms
}

// TestOverlappedCopies: an upload of 500 µs before each kernel of 1 ms, all queued ahead.
func TestOverlappedCopies(t *testing.T) {
	const h2d = 1 | 3<<8 // CUPTI_ACTIVITY_MEMCPY_KIND_HTOD from CUPTI_ACTIVITY_MEMORY_KIND_DEVICE's neighbour, pinned
	sc := newScene()
	for i := range uint64(steps) {
		at := i * 1500 * us
		sc.run(event.Copy, "cuMemcpyHtoDAsync_v2", 7, i*10*us, 20*us+at, at+520*us, h2d)
		sc.run(event.Kernel, "cuLaunchKernel", 7, i*10*us+5*us, at+520*us, at+1520*us, 0)
	}
	s := sc.study(t)
	predicts(t, s.Predict(edit(t, Without, "copy-not-overlapped")), 1.5)
	predicts(t, s.Predict(edit(t, Kernels, "*=2")), 1.5)
}

// TestRandomRecordings: the replay without changes takes as long as the recording did, and what takes no longer
// makes nothing take longer.
func TestRandomRecordings(t *testing.T) {
	for seed := range uint64(25) {
		c := timelinetest.Config{Seed: seed, Agent: seed%3 != 0, Length: 20 * timelinetest.Millisecond}
		if seed%5 == 2 {
			c.Windows = []timelinetest.Span{
				timelinetest.Between(2_000_000, 7_000_000),
				timelinetest.Between(11_000_000, 16_000_000),
			}
		}
		tl := timeline.Build(timelinetest.Random(c).Run())
		s := New(tl, tl.Index.Threads())
		if !s.Any() {
			continue
		}
		if e := s.Error(); e > 0.02 || e < -0.02 {
			t.Errorf("seed %d: the replay is off by %.3f", seed, e)
		}
		rng, before := rand.New(rand.NewPCG(seed, 1)), s.replayed
		for range 20 {
			by := map[replay.What]float64{}
			after := s.length(func(g *replay.Graph, p *replay.Plan) {
				for i, w := range g.Whats {
					if _, ok := by[w]; !ok {
						by[w] = rng.Float64()
					}
					p.Changes[i].Scale, p.Changes[i].Detach = by[w], rng.IntN(4) == 0
				}
			})
			if after > before {
				t.Fatalf("seed %d: %d ns became %d ns by taking time away", seed, before, after)
			}
		}
	}
}

// TestEveryRemedy: no remedy makes anything slower, and each says so in words.
func TestEveryRemedy(t *testing.T) {
	s := workers().study(t)
	for id := range cause.Count {
		if p, ok := s.Of(id); ok && (p.Speedup < 0.999 || p.Plan == "") {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

func TestParse(t *testing.T) {
	for _, bad := range []struct {
		verb Verb
		text string
	}{
		{Faster, "f"},
		{Faster, "f=0"},
		{Faster, "f=-1"},
		{Faster, "f=x"},
		{Faster, "=2"},
		{Kernels, "k"},
		{Without, ""},
		{Without, "[a"},
	} {
		if e, err := Parse(bad.verb, bad.text); err == nil {
			t.Errorf("%s %q: %+v", bad.verb, bad.text, e)
		}
	}
	if e := edit(t, Without, "sync"); e.Cause != cause.HostSync || e.String() != "without host-sync" {
		t.Errorf("sync is %+v", e)
	}
	for pattern, want := range map[string]bool{
		"tokenize*": true, "Tokenize_Batch": true, "*batch*": true, "batch": false, "tokenize_batch (prog)": true,
	} {
		if got := edit(t, Without, pattern).matches("tokenize_batch (prog)"); got != want {
			t.Errorf("%s matches: %v", pattern, got)
		}
	}
}

// TestWithoutGPU: 600 µs of encode, 300 µs of embed and 100 µs of sleep in turns. What leaves the thread leaves the
// rest there, also where it was the last that the thread ran.
func TestWithoutGPU(t *testing.T) {
	sc := newScene()
	sc.Meta.GPU = nil
	encode, embed := sc.Stack(recordtest.Python("encode", "/app/infer.py", 7)),
		sc.Stack(recordtest.Native("embed", "server"))
	for i := range uint64(999) {
		at := start + i*ms
		for k := range uint64(6) {
			sc.Sample(leader, at+50*us+k*100*us, encode, event.Whole)
		}
		for k := range uint64(3) {
			sc.Sample(leader, at+650*us+k*100*us, embed, event.Whole)
		}
		sc.Off(recordtest.Off{
			TID:     leader,
			TS:      at + 900*us,
			Dur:     100 * us,
			Blocked: 100 * us,
			Call:    sysSleep,
			Flags:   event.FromIRQ,
		})
	}
	s := sc.study(t)
	predicts(t, s.Predict(edit(t, Without, "python-work")), 1/0.6)
	predicts(t, s.Predict(edit(t, Without, "native-work")), 1/0.7)
	predicts(t, s.Predict(edit(t, Without, "sleep")), 1/0.9)
}

// TestWaitInStream: of each step of 4 ms the kernel's 1 ms begins 2.9 ms after its launch, because its stream waits for
// something that nobody recorded. That stays in the stream, one step after the other, who ever waits for it: without
// the synchronization 0.1 ms of a step are saved, and not 3 ms.
func TestWaitInStream(t *testing.T) {
	s := newScene()
	for i := range uint64(steps) {
		at := i * period
		s.run(event.Kernel, "cuLaunchKernel", 7, at, at+2900*us, at+3900*us, 0)
		s.wait(at+5*us, at+3990*us)
	}
	predicts(t, s.study(t).Predict(edit(t, Without, "sync")), 4/3.9)
}

// TestReads: a result that nobody looks at is not copied, and the way from one look to the next is gone, but not the way
// to the next launch. Programs that look all the same, but later, lose their waits only: the interval holds that.
func TestReads(t *testing.T) {
	const each, looks = 400 * us, 4
	s := newScene()
	for i := range uint64(steps) {
		at := i * each
		s.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+60*us, 0)
		for k := range uint64(looks) { // 10 µs for each, and 20 µs to the next
			copied := at + 70*us + 30*k*us
			id := s.call("cuMemcpyDtoHAsync_v2", copied, 4*us)
			s.Event(event.Event{
				TS: start + copied + 5*us, Dur: 1 * us, PID: s.PID, TID: 7, Func: 1 << 8, Kind: event.Copy,
				Flags: event.Timed, Ret: 2 | 3<<8 | 2<<16, Args: [4]uint64{uint64(id), 0, 8},
			})
			s.wait(copied+5*us, copied+10*us)
		}
	}
	p := s.study(t).Predict(edit(t, Without, "sync"))
	predicts(t, p, 400./(400-10*looks-20*(looks-1)))
	if waits := 400. / (400 - 5*looks); p.Low > waits {
		t.Errorf("at least %.3f, but with the copies it is %.3f", p.Low, waits)
	}
}

// TestQuotaInUntimedCall: what a call launched whose return was not seen began when its thread had a CPU again, and
// begins earlier where it always has one.
func TestQuotaInUntimedCall(t *testing.T) {
	s := newScene()
	for i := range uint64(steps) {
		at, id := i*period, uint32(10_000+i)
		s.Event(event.Event{
			TS: start + at, PID: leader, TID: leader, Func: s.Fn("cuMemsetD8Async"), Kind: event.Call,
			Flags: event.Correlated, Ret: int32(id),
		})
		s.Off(recordtest.Off{
			TID: leader, TS: start + at + 10*us, Dur: 1990 * us, Call: event.NoSyscall, Flags: event.Preempted,
		})
		s.Event(event.Event{
			TS: start + at + 2010*us, Dur: 980 * us, PID: leader, TID: 7, Func: 1 << 8, Kind: event.Set,
			Flags: event.Timed, Args: [4]uint64{uint64(id), 0, 4},
		})
		s.wait(at+2020*us, at+3000*us)
	}
	predicts(t, s.study(t).Predict(edit(t, Without, "throttled")), 4./(4-1.99))
}

// TestFunctionsGoWithWhatTheyCall: a function that is not called does not call others either.
func TestFunctionsGoWithWhatTheyCall(t *testing.T) {
	inner := replay.What{Kind: replay.Run, Name: "deepcopy (copy.py)", Callers: "fresh (server.py)\nstep (server.py)"}
	for pattern, want := range map[string]bool{
		"deepcopy": true, "fresh": true, "st*": true, "fresh (server.py)": true, "f": false, "copy.py": false,
		"": false,
	} {
		e := Edit{Verb: Without, Pattern: pattern, Cause: cause.Count}
		if got := e.about(&inner); got != want {
			t.Errorf("without %q: %v", pattern, got)
		}
	}
	for verb, want := range map[Verb]bool{Without: true, Overlap: true, Faster: false} {
		e := Edit{Verb: verb, Pattern: "fresh", Cause: cause.Count, Factor: 2}
		if got := e.about(&replay.What{Kind: replay.Wait, Callers: inner.Callers}); got != want {
			t.Errorf("%s a function that waits: %v", verb, got)
		}
	}
}

// TestFunctionsThatLaunch: of launches every 40 µs, of kernels of 2 µs, samples show three quarters in a function
// whose time is all launching. Without it a quarter of that is left.
func TestFunctionsThatLaunch(t *testing.T) {
	for _, c := range []struct {
		verb Verb
		text string
		want float64
	}{{Without, "*adapted", 4}, {Faster, "adapted=3", 2}, {Without, "other", 1}} {
		sc := newScene()
		adapted := sc.Stack(recordtest.Python("adapted", "/app/model.py", 7))
		plain := sc.Stack(recordtest.Python("step", "/app/model.py", 9))
		for i := range uint64(24_000) {
			at := i * 40 * us
			sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+12*us, 0)
			if i%50 < 4 {
				stack := adapted
				if i%50 == 0 {
					stack = plain
				}
				sc.Sample(leader, start+at+20*us, stack, event.Whole)
			}
		}
		p := sc.study(t).Predict(edit(t, c.verb, c.text))
		if p.Speedup < 0.85*c.want || p.Speedup > 1.15*c.want {
			t.Errorf("%s %s: %+v, want %.1f", c.verb, c.text, p.Gain, c.want)
		}
	}
}

// TestFewSamplesOfLaunching: which functions launch is as sure as samples are many, in calls and between them.
func TestFewSamplesOfLaunching(t *testing.T) {
	for _, c := range []struct {
		samples uint64
		low     float64 // of twice as fast
		high    float64
	}{{10, 1.2, 1.5}, {1000, 1.75, 2}} {
		sc := newScene()
		adapted := sc.Stack(recordtest.Python("adapted", "/app/model.py", 7))
		plain := sc.Stack(recordtest.Python("step", "/app/model.py", 9))
		for i := range uint64(24_000) {
			at := i * 40 * us
			sc.Event(event.Event{
				TS: start + at, Dur: 20 * us, PID: leader, TID: leader, Func: sc.Fn("cuLaunchKernel"), Kind: event.Call,
				Flags: event.Timed | event.Correlated, Ret: int32(1000 + i),
			})
			sc.Event(event.Event{
				TS: start + at + 21*us, Dur: 2 * us, PID: leader, TID: 7, Func: 1 << 8, Kind: event.Kernel,
				Flags: event.Timed, Args: [4]uint64{1000 + i, 0, 1 << 20},
			})
			if each := 24_000 / c.samples; i%each == 0 {
				sc.Sample(leader, start+at+30*us, []uint64{adapted, plain}[i/each%2], event.Whole)
			}
		}
		p := sc.study(t).Predict(edit(t, Without, "*adapted"))
		if p.Speedup < 1.85 || p.Speedup > 2.15 || p.Low < c.low || p.Low > c.high {
			t.Errorf("%d samples: %+v", c.samples, p)
		}
	}
}

// TestNativeFunctionsOfPython: an edit finds a native function that Python calls, beside the rest of what its caller
// does: 1.5 of the 3 ms of each step.
func TestNativeFunctionsOfPython(t *testing.T) {
	sc := stepwise()
	encode := recordtest.Python("encode", "/app/infer.py", 7)
	native := sc.Stack(recordtest.Native("bpe_merge", "/app/libtokens.so"),
		recordtest.Native("_pickle_dumps", "python3.12"), recordtest.Native("PyObject_Call", "python3.12"), encode)
	for i := range uint64(steps) {
		sc.Samples(leader, start+i*period+1050*us, start+i*period+2500*us, 29, native, event.Whole)
	}
	s := sc.study(t)
	without, faster := s.Predict(edit(t, Without, "bpe_*")), s.Predict(edit(t, Faster, "bpe_merge=1000000"))
	whole := s.Predict(edit(t, Faster, "encode=1000000"))
	module, api := s.Predict(edit(t, Without, "_pickle_dumps")), s.Predict(edit(t, Without, "PyObject_Call"))
	if !api.Empty() {
		t.Errorf("%+v", api)
	}
	for _, p := range []Prediction{without, faster, module} {
		if p.Speedup < 1.4 || p.Speedup > 1.8 {
			t.Errorf("%+v", p)
		}
	}
	if whole.Speedup < 3.5 {
		t.Errorf("with its caller: %+v", whole)
	}
}

// fetching is stepwise with 2.5 of each 4 ms in a function that waits for a server outside, or for a thread.
func fetching(flags event.Flags, by [2]uint32) *scene {
	const sysRead = 0
	sc := newScene()
	compute := sc.Stack(recordtest.Python("fetch", "/app/infer.py", 7))
	wait := sc.Stack(recordtest.Kernel("sk_wait_data"), recordtest.Native("recv", "libc.so.6"),
		recordtest.Python("fetch", "/app/infer.py", 7))
	for i := range uint64(steps) {
		at := i * period
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
		sc.wait(at+5*us, at+1020*us)
		sc.Samples(leader, start+at+1030*us, start+at+1400*us, 3, compute, event.Whole)
		sc.Off(recordtest.Off{
			TID: leader, TS: start + at + 1500*us, Dur: 2500 * us, Blocked: 2500 * us, Call: sysRead, Stack: wait,
			Flags: flags, By: by,
		})
	}
	return sc
}

// TestFunctionsThatWait: a function that is not called waits for nothing. Whether one that is faster waits for less is
// not known, and its interval holds both.
func TestFunctionsThatWait(t *testing.T) {
	s := fetching(event.FromIRQ, [2]uint32{}).study(t)
	if p := s.Predict(edit(t, Without, "fetch")); p.Speedup < 3.7 {
		t.Errorf("%+v", p)
	}
	p := s.Predict(edit(t, Faster, "fetch=1000000"))
	if p.Speedup > 1.2 || p.High < 3.7 || p.Because != ofWaits {
		t.Errorf("%+v", p)
	}
}

// TestWaitsWithoutWakers: a thread that waits for nobody knows whom may wait for one whose work an edit makes faster.
// Where every wait is known, or there is none, the edit brings nothing for sure.
func TestWaitsWithoutWakers(t *testing.T) {
	for _, waits := range []bool{true, false} {
		sc := newScene()
		encode := sc.Stack(recordtest.Python("encode", "/app/infer.py", 7))
		sc.Samples(helper, start, start+steps*period, 1000, encode, event.Whole)
		for i := range uint64(steps) {
			at := i * period
			sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
			sc.wait(at+5*us, at+1020*us)
			if waits {
				sc.Off(recordtest.Off{
					TID: leader, TS: start + at + 1500*us, Dur: 2500 * us, Blocked: 2500 * us, Call: sysFutex,
				})
			}
		}
		p := sc.study(t).Predict(edit(t, Faster, "encode=2"))
		if waits && (p.Speedup > 1.1 || p.High < 1.6 || p.Because != ofWakers) {
			t.Errorf("waits: %+v", p)
		}
		if !waits && (p.Speedup != 1 || p.High != 1 || p.Because != ofUnawaited) {
			t.Errorf("never waits: %+v", p)
		}
	}
}

// TestStepsLongerThanASamplePeriod: each step computes for 1.5 sample periods, a third of it in each of three
// functions. Samples at the edges of a step come in pairs and those in its middle alone, and each counts as much.
func TestStepsLongerThanASamplePeriod(t *testing.T) {
	const step, computes, every = 1600 * us, 1500 * us, 1003 * us
	sc := newScene()
	var stacks []uint64
	for _, name := range []string{"load", "encode", "sample"} {
		stacks = append(stacks, sc.Stack(recordtest.Python(name, "/app/infer.py", 7)))
	}
	for i := range uint64(steps*period/step) - 1 {
		sc.run(event.Kernel, "cuLaunchKernel", 7, i*step, i*step+10*us, i*step+90*us, 0)
		sc.wait(i*step+5*us, i*step+100*us)
	}
	for at := uint64(0); at < steps*period; at += every {
		if in := at % step; in > step-computes {
			sc.Sample(leader, start+at, stacks[min(2, (in-(step-computes))*3/computes)], event.Whole)
		}
	}
	s := sc.study(t)
	for _, name := range []string{"load", "encode", "sample"} {
		const want = 1600.0 / 1100 // of load a little less: what follows the wait at once is launching
		if p := s.Predict(edit(t, Without, name)); p.Speedup < 0.92*want || p.Speedup > 1.05*want {
			t.Errorf("%s: %.3f, want %.3f", name, p.Speedup, want)
		}
	}
}

// TestFunctionsThatCall: a function whose time is in a call of CUDA, 2 of the 4 ms of each step, is found by samples in
// these calls, every fifth of which has one.
func TestFunctionsThatCall(t *testing.T) {
	sc := newScene()
	stack := sc.Stack(recordtest.Native("cuMemAlloc_v2", "libcuda.so.1"),
		recordtest.Python("grow_pool", "/app/pool.py", 7))
	for i := range uint64(steps) {
		sc.run(event.Kernel, "cuLaunchKernel", 7, i*period, i*period+10*us, i*period+1010*us, 0)
		sc.wait(i*period+5*us, i*period+1020*us)
		at := i*period + 1300*us
		sc.call("cuMemAlloc_v2", at, 2*ms)
		if i%5 == 0 {
			sc.Sample(leader, start+at+ms, stack, event.Whole)
		}
	}
	predicts(t, sc.study(t).Predict(edit(t, Without, "grow_pool")), 2)
}

// TestWhoWaitsInACall: log_loss waits for the GPU in each step, and is sampled at it. save synchronizes after it and
// returns at once: without log_loss it waits.
func TestWhoWaitsInACall(t *testing.T) {
	sc := newScene()
	stack := sc.Stack(recordtest.Native("cuStreamSynchronize", "libcuda.so.1"),
		recordtest.Python("log_loss", "/app/train.py", 7))
	for i := range uint64(steps) {
		at := i * period
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+3010*us, 0)
		sc.wait(at+20*us, at+3020*us)
		sc.Sample(leader, start+at+1500*us, stack, event.Whole)
		sc.wait(at+3030*us, at+3040*us)
	}
	if p := sc.study(t).Predict(edit(t, Without, "log_loss")); p.Speedup > 1.02 {
		t.Errorf("%+v", p)
	}
}

// TestNamesThatNothingHas: a function that no sample shows brings no more than the edit says, and a kernel that does
// not run brings nothing.
func TestNamesThatNothingHas(t *testing.T) {
	s := stepwise().study(t)
	if p := s.Predict(edit(t, Faster, "typo=1.1")); !p.Empty() || p.High > 1.101 {
		t.Errorf("%+v", p)
	}
	if p := s.Predict(edit(t, Without, "typo")); !p.Empty() || p.High < 1.2 {
		t.Errorf("%+v", p)
	}
	if p := s.Predict(edit(t, Kernels, "typo=2")); !p.Empty() || p.High > 1.01 {
		t.Errorf("%+v", p)
	}
	if p := workers().study(t).Predict(edit(t, Overlap, "load")); p.Empty() || p.Speedup > 1.01 {
		t.Errorf("beside already: %+v", p)
	}
}
