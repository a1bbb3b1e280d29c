package diagnose_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// iterate calls step for each iteration with the time at which it begins, in µs.
func iterate(n, period uint64, step func(i, at uint64)) {
	for i := range n {
		step(i, i*period)
	}
}

// do makes a call of 10 µs at a time in µs.
func do(s *scene, name string, at uint64, args ...uint64) {
	s.Do(name, int64(at*us), 10*us, args...)
}

// iterations is a program, and what of it is found to come back, and how long that takes.
type iterations struct {
	name   string
	make   func(s *scene)
	source string // "": none
	count  uint64
	p50    uint64 // µs
}

// evenIterations come back at equal times.
func evenIterations() []iterations {
	return []iterations{
		{"one sync in each", func(s *scene) {
			iterate(20, 5000, func(_, at uint64) {
				do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
				do(s, "cuStreamSynchronize", at+4000, 4)
			})
		}, "period of cuStreamSynchronize in python (1234)", 19, 5000},
		{"a token and a request", func(s *scene) {
			iterate(8, 50_000, func(_, at uint64) {
				do(s, "cuMemcpyHtoD_v2", at, 1, 2, 3)
				for k := range uint64(10) {
					do(s, "cuMemcpyDtoH_v2", at+k*4000+3000, 1, 2, 3)
				}
			})
		}, "period of cuMemcpyHtoD in python (1234)", 7, 50_000},
		{"three waits in each", func(s *scene) {
			iterate(20, 10_000, func(_, at uint64) {
				do(s, "cuStreamSynchronize", at, 4)
				do(s, "cuStreamSynchronize", at+500, 4)
				do(s, "cuStreamSynchronize", at+1000, 4)
			})
		}, "period of 3 calls of cuStreamSynchronize in python (1234)", 19, 10_000},
		{"a wait for each copy", func(s *scene) {
			iterate(20, 10_000, func(_, at uint64) {
				for k := range uint64(3) {
					do(s, "cuMemcpyHtoDAsync_v2", at+k*100, 1, 2, 3, 4)
					do(s, "cuStreamSynchronize", at+k*100+50, 4)
				}
				do(s, "cuLaunchKernel", at+1000, 7)
				do(s, "cuMemcpyHtoDAsync_v2", at+8000, 1, 2, 3, 4)
				do(s, "cuStreamSynchronize", at+9000, 4)
			})
		}, "period of 4 calls of cuStreamSynchronize in python (1234)", 19, 10_000},
		{"many in each", func(s *scene) {
			iterate(8, 50_000, func(_, at uint64) {
				for k := range uint64(12) {
					do(s, "cuStreamSynchronize", at+k*100, 4)
				}
			})
		}, "period of 12 calls of cuStreamSynchronize in python (1234)", 6, 50_000},
	}
}

// otherIterations are told by something else than waits.
func otherIterations() []iterations {
	return []iterations{
		{"graphs", func(s *scene) {
			iterate(50, 2000, func(_, at uint64) { do(s, "cuGraphLaunch", at, 0x77, 4) })
		}, "period of cuGraphLaunch in python (1234)", 49, 2000},
		{"named", func(s *scene) {
			s.Meta.GPU.Ranges = []string{"layer", "decode", "once"}
			iterate(20, 5000, func(_, at uint64) {
				for k := range uint64(4) {
					named(s, 1, at+k*1000, 900)
				}
				named(s, 2, at, 4500)
			})
			named(s, 3, 0, 900_000)
		}, `ranges named "decode"`, 20, 4500},
		// Two bursts of requests: the step after the last request of the first has nothing to go on with. Another
		// engine makes fewer steps, and messages without output are none.
		{"steps of an engine", func(s *scene) {
			iterate(12, 3000, func(i, at uint64) {
				do(s, "cuStreamSynchronize", at, 4)
				do(s, "cuStreamSynchronize", at+100, 4)
				finished := uint32(0)
				if i == 5 {
					finished = 2
				}
				ts := start + at*us
				s.Meta.Steps = append(s.Meta.Steps,
					recording.Step{TS: ts, PID: 1234, Requests: 2, Tokens: 2, Finished: finished})
				s.Meta.Steps = append(s.Meta.Steps, recording.Step{TS: ts + 1000, PID: 1234, Stats: true})
				if i%2 == 0 {
					s.Meta.Steps = append(s.Meta.Steps,
						recording.Step{TS: ts + 2000, PID: 1234, Engine: 1, Requests: 1, Tokens: 1})
				}
			})
		}, "steps of the engine in python (1234)", 10, 3000},
	}
}

// unevenIterations come back, and not at equal times.
func unevenIterations() []iterations {
	return []iterations{
		{"uneven, with two waits in each", func(s *scene) {
			at := uint64(0)
			for i := range uint64(30) {
				do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
				do(s, "cuStreamSynchronize", at+50, 4)
				do(s, "cuLaunchKernel", at+100, 7)
				do(s, "cuMemcpyHtoDAsync_v2", at+1000, 1, 2, 3, 4)
				do(s, "cuStreamSynchronize", at+2000, 4)
				at += 8000 + i*7919%9000
			}
		}, "period of 2 calls of cuStreamSynchronize in python (1234)", 29, 13_028},
		{"two workers, of which one is late", func(s *scene) {
			for i := range uint64(40) {
				at := i/2*10_000 + i%2*1500
				do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
				do(s, "cuLaunchKernel", at+100, 7)
				do(s, "cuStreamSynchronize", at+1000, 4)
			}
		}, "period of cuStreamSynchronize in python (1234)", 39, 1500},
		{"no CPU after each sixth", func(s *scene) {
			at := uint64(0)
			for i := range uint64(80) {
				for k := range uint64(4) {
					do(s, "cuLaunchKernel", at+k*20, 7)
				}
				do(s, "cuStreamSynchronize", at+1000, 4)
				if at += 3000; i%6 == 5 {
					preempted(s, at, 60_000)
					at += 60_000
				}
			}
		}, "period of cuStreamSynchronize in python (1234)", 77, 3000},
	}
}

// noIterations are programs in which nothing is found to come back.
func noIterations() []iterations {
	return []iterations{
		{"nothing", func(*scene) {}, "", 0, 0},
		{"now and then", func(s *scene) {
			at := uint64(0)
			for i := range uint64(30) {
				at += 1000 + (i*i*7919)%40_000
				do(s, "cuStreamSynchronize", at, 4)
			}
		}, "", 0, 0},
		{"without order", func(s *scene) {
			at, names := uint64(0), []string{"cuMemcpyHtoD_v2", "cuStreamSynchronize", "cuMemcpyDtoH_v2"}
			for i := range uint64(60) {
				at += 1000 + (i*i*7919)%10_000
				do(s, names[(i*i*31+i/7)%3], at, 4)
			}
		}, "", 0, 0},
		{"too few", func(s *scene) {
			iterate(4, 5000, func(_, at uint64) { do(s, "cuStreamSynchronize", at, 4) })
		}, "", 0, 0},
	}
}

// TestIterations holds what is found to come back, and how long it takes.
func TestIterations(t *testing.T) {
	for _, c := range slices.Concat(evenIterations(), otherIterations(), unevenIterations(), noIterations()) {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.kernel(900, 950)
			c.make(s)
			it := s.diagnose().Iterations
			if it == nil {
				it = &diagnose.Iteration{}
			}
			if it.Source != c.source || it.Count != c.count || it.P50 != c.p50*us {
				t.Errorf("%+v, want %d of %q with a median of %d µs", it, c.count, c.source, c.p50)
			}
			if it.Named != strings.HasPrefix(c.source, "ranges") || it.Max < it.P99 || it.P99 < it.P50 {
				t.Errorf("%+v", it)
			}
		})
	}
}

// TestIterationsAmongOthers: shares of the time are none of an iteration where another process uses the GPUs too,
// unless the two communicate.
func TestIterationsAmongOthers(t *testing.T) {
	const other = recordtest.PID + 500
	for _, c := range []struct {
		kernel string
		shared bool
		tiles  bool
	}{{"gemm", false, true}, {"gemm", true, false}, {"ncclDevKernel_AllReduce_Sum_f32_RING_LL", true, true}} {
		s := newScene(t)
		gpu := s.Meta.GPU
		gpu.Kernels[1].Name = c.kernel
		gpu.Devices = append(gpu.Devices, recording.Device{PID: other, Name: "NVIDIA Test", SMs: 100})
		gpu.Windows = append(gpu.Windows, gpu.Windows[0])
		gpu.Windows[1].PID = other
		for i := range uint64(50) {
			s.kernel(i*20, i*20+10)
			do(s, "cuStreamSynchronize", i*20_000+9_900, 200)
			if c.shared {
				s.Event(event.Event{
					TS: start + (i*20+10)*ms, Dur: 5 * ms, PID: other, TID: 7, Func: 1 << 8, Kind: event.Kernel,
					Flags: event.Timed, Ret: 2, Args: [4]uint64{0, 0, grid(400), 256},
				})
			}
		}
		it := s.diagnose().Iterations
		if it == nil || it.Tiles() != c.tiles {
			t.Errorf("%s, shared %v: %+v", c.kernel, c.shared, it)
		}
	}
}

// TestTurns: where one wait is like the other and each so many of them are parted by a pause, the report says how many,
// and how long they take together.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name  string
		turns uint64
		waits func(turn uint64) uint64             // in a turn
		gap   func(turn, wait, last uint64) uint64 // µs from one to the next; last says which of the turn's is followed by the pause
		p50   uint64                               // of an iteration, µs; 0: none is found
		of    uint64                               // iterations in a turn; 0: none
		whole uint64                               // a turn's time, µs
	}{
		{"all alike", 20, same(20), func(_, _, _ uint64) uint64 { return 400 }, 400, 0, 0},
		{"a pause after each twentieth", 20, same(20), func(_, k, last uint64) uint64 { return 400 + 1600*(k/last) }, 400, 20, 9600},
		{"waits that differ a little", 20, same(20), func(n, k, last uint64) uint64 { return 350 + (n*31+k*17)%101 + 1600*(k/last) }, 400, 20, 9600},
		{"a long pause", 20, same(20), func(_, k, last uint64) uint64 { return 400 + 30_000*(k/last) }, 38_000, 0, 0},
		{"as many as it takes", 40, func(n uint64) uint64 { return 10 + n*n*7%23 }, func(_, k, last uint64) uint64 { return 400 + 1600*(k/last) }, 400, 0, 0},
		{"pauses at random", 40, same(10), func(n, k, _ uint64) uint64 { return 400 + 1600*((n*10+k)*(n*10+k)%97/94) }, 400, 0, 0},
		{"no hole between times", 20, same(20), func(n, k, _ uint64) uint64 { return 400 + (n*20+k)*7919%250 }, 525, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.kernel(900, 950)
			at := uint64(0)
			for n := range c.turns {
				last := c.waits(n) - 1
				for k := range last + 1 {
					do(s, "cuStreamSynchronize", at, 4)
					at += c.gap(n, k, last)
				}
			}
			it := s.diagnose().Iterations
			if it == nil {
				t.Fatal("no iterations")
			}
			if it.P50 < c.p50*us*9/10 || it.P50 > c.p50*us*11/10 {
				t.Errorf("an iteration takes %d µs, want %d", it.P50/us, c.p50)
			}
			switch {
			case c.of == 0 && it.Turn != nil:
				t.Errorf("a turn of %+v", *it.Turn)
			case c.of > 0 && (it.Turn == nil || it.Turn.Of != c.of || it.Turn.P50 < c.whole*us*9/10 || it.Turn.P50 > c.whole*us*11/10):
				t.Errorf("turns of %+v, want %d in %d µs", it.Turn, c.of, c.whole)
			}
		})
	}
}

// TestPausesOfOthers: a program that others stop after each twentieth iteration has no turns of twenty.
func TestPausesOfOthers(t *testing.T) {
	for stopped, want := range map[bool]uint64{true: 0, false: 20} {
		s := newScene(t)
		s.kernel(900, 950)
		iterate(20, 40_000, func(_, at uint64) {
			for k := range uint64(20) {
				do(s, "cuStreamSynchronize", at+k*1900, 4)
			}
			if stopped {
				preempted(s, at+19*1900+20, 3000)
			}
		})
		it, got := s.diagnose().Iterations, uint64(0)
		if it != nil && it.Turn != nil {
			got = it.Turn.Of
		}
		if it == nil || got != want {
			t.Errorf("stopped %v: turns of %d iterations, want %d (%+v)", stopped, got, want, it)
		}
	}
}

// preempted takes the CPU from the main thread, µs.
func preempted(s *scene, at, dur uint64) {
	s.Off(recordtest.Off{
		TID:   recordtest.PID,
		TS:    start + at*us,
		Dur:   dur * us,
		Call:  event.NoSyscall,
		Flags: event.Preempted,
	})
}

func same(n uint64) func(uint64) uint64 { return func(uint64) uint64 { return n } }

// named adds a range of the main thread, µs.
func named(s *scene, name int32, at, dur uint64) {
	s.Event(event.Event{
		TS:    start + at*us,
		Dur:   dur * us,
		PID:   recordtest.PID,
		TID:   recordtest.PID,
		Kind:  event.Range,
		Flags: event.Timed,
		Ret:   name,
	})
}

// TestIterationsOfKernels holds that kernels show the period where no call does, and that times across windows do not
// count.
func TestIterationsOfKernels(t *testing.T) {
	s := timelinetest.New(timelinetest.Config{
		Agent:   true,
		Windows: []timelinetest.Span{timelinetest.Between(0, 200*ms), timelinetest.Between(600*ms, 800*ms)},
	})
	st := s.Stream(0x10, 13)
	th := s.Spawn(recordtest.PID)
	layers := timelinetest.Layers(4)
	for range 700 {
		th.Then(func(t *timelinetest.Thread) {
			t.Launch(
				st,
				timelinetest.Kernel{
					Name:   "embedding",
					Handle: 9,
					Grid:   [3]uint32{1, 1, 1},
					Block:  [3]uint32{64, 1, 1},
					Dur:    3000,
				},
				10*us,
			)
		})
		for _, k := range layers {
			th.Then(func(t *timelinetest.Thread) { t.Launch(st, k, 30*us) })
		}
	}
	rec := s.Run()
	tl := timeline.Build(rec)
	it := diagnose.New(tl, gap.Build(tl), gpu.Summarize(tl), cpu.Summarize(rec), nil).Iterations
	period := uint64(len(layers))*30*us + 10*us
	if it == nil || it.Source != "period of the kernel embedding" || it.P50 < period*95/100 ||
		it.P50 > period*105/100 ||
		it.Max > 2*period {
		t.Errorf("%+v, want a period of %d µs", it, period/us)
	}
	if it != nil && (it.Count < 200 || it.Count > 260) { // 400 ms of 1.57 ms each
		t.Errorf("%d iterations", it.Count)
	}
}

// TestKernelsInARow: a kernel that follows itself without a pause is no iteration; what comes after each eight of them
// makes one.
func TestKernelsInARow(t *testing.T) {
	for others, want := range map[int]uint64{0: 0, 2: 10 * 50 * us} {
		s := timelinetest.New(
			timelinetest.Config{Agent: true, Windows: []timelinetest.Span{timelinetest.Between(0, 200*ms)}},
		)
		st := s.Stream(0x10, 13)
		th := s.Spawn(recordtest.PID)
		launch := func(name string, handle uint64) {
			k := timelinetest.Kernel{
				Name: name, Handle: handle, Grid: [3]uint32{400, 1, 1}, Block: [3]uint32{256, 1, 1}, Dur: 50 * us,
			}
			th.Then(func(t *timelinetest.Thread) { t.Launch(st, k, 40*us) })
		}
		for range 200 {
			for range 8 {
				launch("gemm", 9)
			}
			for range others {
				launch("norm", 10)
			}
		}
		rec := s.Run()
		tl := timeline.Build(rec)
		it := diagnose.New(tl, gap.Build(tl), gpu.Summarize(tl), cpu.Summarize(rec), nil).Iterations
		switch {
		case want == 0 && it != nil:
			t.Errorf("of one kernel: %s of %d µs", it.Source, it.P50/us)
		case want > 0 && (it == nil || it.P50 < want*9/10 || it.P50 > want*11/10):
			t.Errorf("with %d others: %+v, want %d µs", others, it, want/us)
		}
	}
}

// TestIterationsOfOptimizer: from one step of the optimizer to the next passes an iteration, however long each takes.
func TestIterationsOfOptimizer(t *testing.T) {
	s := newScene(t)
	s.Meta.GPU.Ranges = []string{"Optimizer.step#SGD.step"}
	for _, at := range []uint64{50, 150, 250, 350, 750} {
		s.kernel(at-40, at-10)
		s.Event(event.Event{
			TS: start + at*ms, Dur: 5 * ms, PID: recordtest.PID,
			TID: recordtest.PID, Kind: event.Range, Func: event.NVTXRange,
			Ret: 1, Flags: event.Timed,
		})
	}
	if it := s.diagnose().Iterations; it == nil || it.Count != 4 || it.P50 != 100*ms || it.Max != 400*ms {
		t.Errorf("iterations %+v", it)
	}
}

// TestKernelsWithinStep: a kernel that comes some times in a row within one step tells nothing of a latency.
func TestKernelsWithinStep(t *testing.T) {
	others := func(s *scene) {
		for i := range uint64(40) {
			s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{Name: fmt.Sprintf("layer%d", i)})
			s.work(event.Kernel, int32(i)+3, 10+i*10+i*7%3, 14+i*10+i*7%3, grid(400), 256)
		}
	}
	row := func(s *scene, each uint64) {
		for i := range uint64(12) {
			s.kernel(500+i*each, 500+i*each+1)
		}
	}
	s := newScene(t)
	row(s, 2)
	if it := s.diagnose().Iterations; it == nil || it.P50 != 2*ms {
		t.Fatalf("alone it is one: %+v", it)
	}
	s = newScene(t)
	others(s)
	row(s, 2)
	if it := s.diagnose().Iterations; it != nil {
		t.Errorf("iterations %+v", it)
	}
}

// TestAmountsOfIterations: tokens and batches are those that scopes of the iteration say; other attributes, those of
// NVTX ranges, which have none, and numbers that name no attributes are left out.
func TestAmountsOfIterations(t *testing.T) {
	s := newScene(t)
	s.kernel(900, 950)
	g := s.Meta.GPU
	g.Ranges = []string{"step"}
	g.Attributes = []string{
		`{"batch": 8, "tokens": 100, "max_tokens": 4096, "layer": 3}`, `{"batch": 4, "tokens": "many"}`, `[1`,
	}
	use := []uint64{1, 2, 1, 3, 99, 0}
	iterate(30, 10_000, func(i, at uint64) {
		do(s, "cuLaunchKernel", at+10, 7)
		s.Event(event.Event{
			TS: start + at*us, Dur: 9000 * us, PID: recordtest.PID, TID: recordtest.PID, Kind: event.Range,
			Func: event.ScopeRange, Flags: event.Timed, Ret: 1, Args: [4]uint64{3: use[i%6]},
		})
	})
	it := s.diagnose().Iterations
	if it == nil || len(it.Amounts) != 2 {
		t.Fatalf("iterations %+v", it)
	}
	const seconds = 0.299 // from the first to the last
	for i, want := range []struct {
		name      string
		mean, sum float64
	}{{"batch", 20.0 / 3, 100}, {"tokens", 100, 1000}} {
		got := it.Amounts[i]
		if got.Name != want.name || math.Abs(got.Mean-want.mean) > 1e-9 || math.Abs(got.PerSec-want.sum/seconds) > 1e-6 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
