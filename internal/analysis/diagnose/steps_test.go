package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// within makes a call of the runtime, 10 µs long, and the driver's inside of it, at a time in µs.
func within(s *scene, runtime, driver string, at uint64, args ...uint64) {
	s.Do(runtime, int64(at*us), 10*us, args...)
	s.Do(driver, int64(at*us)+int64(us), 8*us, args...)
}

// TestProbedLater: the driver is probed some milliseconds before the runtime, and both calls are one.
func TestProbedLater(t *testing.T) {
	s := newScene(t)
	s.kernel(900, 950)
	for i := range uint64(400) {
		at := i * 2000
		if i < 7 {
			do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
			do(s, "cuMemcpyDtoHAsync_v2", at+1000, 1, 2, 3, 4)
			do(s, "cuStreamSynchronize", at+1500, 4)
			continue
		}
		within(s, "cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
		within(s, "cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2", at+1000, 1, 2, 3, 4)
		within(s, "cudaStreamSynchronize", "cuStreamSynchronize", at+1500, 4)
	}
	it := s.diagnose().Iterations
	if it == nil || it.Count != 399 || it.P50 != 2000*us ||
		it.Source != "period of cudaStreamSynchronize in python (1234)" {
		t.Errorf("not 399 of 2 ms")
	}
}

// TestCopiesNotRecorded: for a third of the time only waits are recorded, and these count.
func TestCopiesNotRecorded(t *testing.T) {
	s := newScene(t)
	s.kernel(990, 995)
	for i := range uint64(300) {
		at := i * 3000
		if i < 200 {
			do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
			do(s, "cuMemcpyDtoHAsync_v2", at+1000, 1, 2, 3, 4)
		}
		do(s, "cuLaunchKernel", at+1100, 7)
		do(s, "cuStreamSynchronize", at+1500, 4)
	}
	it := s.diagnose().Iterations
	if it == nil || it.Count != 299 || it.P50 != 3000*us {
		t.Errorf("not 299 of 3 ms")
	}
}

// TestAskedForAPart: iterations of the first quarter of a second are not what the rest of it is shared among.
func TestAskedForAPart(t *testing.T) {
	for _, c := range []struct {
		steps   uint64
		partial bool
	}{{steps: 125, partial: true}, {steps: 490}} {
		s := newScene(t)
		s.kernel(1, 2)
		s.kernel(990, 995)
		for i := range c.steps {
			at := i * 2000
			do(s, "cuMemcpyHtoDAsync_v2", at, 1, 2, 3, 4)
			do(s, "cuLaunchKernel", at+1100, 7)
			do(s, "cuStreamSynchronize", at+1500, 4)
		}
		d := s.diagnose()
		it := d.Iterations
		if it.P50 != 2000*us || it.Partial() != c.partial || it.Tiles() == c.partial {
			t.Fatalf("%d steps: P50 %d, outside %f", c.steps, it.P50, it.Outside)
		}
		for _, f := range d.Findings {
			for _, e := range f.Evidence {
				if c.partial && strings.Contains(e.Text, "of each iteration") {
					t.Errorf("%d steps: %s", c.steps, e.Text)
				}
			}
		}
	}
}

// TestStartOfTheSameCalls: loading weights is a hundred copies alike, and no iteration.
func TestStartOfTheSameCalls(t *testing.T) {
	s := newScene(t)
	s.kernel(990, 995)
	iterate(100, 4000, func(_, at uint64) { // two fifths of the time
		do(s, "cuMemAlloc_v2", at, 1, 2)
		do(s, "cuMemcpyHtoD_v2", at+100, 1, 2, 3)
	})
	for i := range uint64(14) {
		at := 420_000 + i*40_000
		for k := range uint64(10) {
			do(s, "cuLaunchKernel", at+k*20, 7)
		}
		do(s, "cuStreamSynchronize", at+30_000, 4)
	}
	it := s.diagnose().Iterations
	if it == nil || it.Count != 13 || it.P50 != 40_000*us {
		t.Errorf("%+v, want 13 of 40 ms", it)
	}
}

// TestSlowSteps: in a step of 230 ms something repeats each 2 ms; four steps are enough, for they make the same calls.
func TestSlowSteps(t *testing.T) {
	s := newScene(t)
	s.kernel(990, 995)
	for i := range uint64(4) {
		at := i * 230_000
		do(s, "cuMemcpyHtoD_v2", at, 1, 2, 3)
		for k := range uint64(100) {
			do(s, "cuLaunchKernel", at+1000+k*2000, 7)
			do(s, "cuStreamSynchronize", at+2000+k*2000, 4)
		}
	}
	it := s.diagnose().Iterations
	if it == nil || it.Count != 3 || it.P50 != 230_000*us {
		t.Errorf("%+v, want 3 of 230 ms", it)
	}
}

// TestManyIterations: there is no limit to how many are counted.
func TestManyIterations(t *testing.T) {
	s := newScene(t)
	s.kernel(990, 995)
	const n = 40_000
	for i := range uint64(n) {
		s.Do("cuMemcpyHtoDAsync_v2", int64(i*24*us), us, 1, 2, 3, 4)
		s.Do("cuLaunchKernel", int64(i*24*us+4*us), us, 7)
		s.Do("cuStreamSynchronize", int64(i*24*us+8*us), us, 4)
	}
	it := s.diagnose().Iterations
	if it == nil || it.Count != n-1 || it.P50 != 24*us || it.Max != 24*us || it.To-it.From != (n-1)*24*us {
		t.Errorf("not %d of 24 µs", n-1)
	}
}

// ranged names a range of the main thread, µs.
func ranged(s *scene, name string, at, dur uint64) {
	n := int32(0)
	for i, x := range s.Meta.GPU.Ranges {
		if x == name {
			n = int32(i) + 1
		}
	}
	if n == 0 {
		s.Meta.GPU.Ranges = append(s.Meta.GPU.Ranges, name)
		n = int32(len(s.Meta.GPU.Ranges))
	}
	named(s, n, at, dur)
}

// TestRangesThatAreNoSteps: of ranges only those are iterations that hold what a step launches.
func TestRangesThatAreNoSteps(t *testing.T) {
	for _, c := range []struct {
		name, source, few string
		steps             uint64
		make              func(s *scene, at uint64) // beside 20 launches in the first 5 ms of a step of 30 ms
	}{
		{"the loader takes most of the time", `ranges named "step"`, "", 20, func(s *scene, at uint64) {
			ranged(s, "fetch", at+6000, 23_000)
			ranged(s, "step", at, 5500)
		}},
		{"communication within", `ranges named "step"`, "", 20, func(s *scene, at uint64) {
			ranged(s, "nccl:all_to_all", at, 29_000)
			ranged(s, "step", at, 5500)
		}},
		{"parts of the optimizer", "period of cuStreamSynchronize in python (1234)", "", 20, func(s *scene, at uint64) {
			ranged(s, "Optimizer.zero_grad#SGD.zero_grad", at, 29_000)
			ranged(s, "layer", at, 2000)
		}},
		{"two steps", "", `2 ranges were named "step", and 3 are needed for a latency`, 2, func(s *scene, at uint64) {
			ranged(s, "step", at, 5500)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.kernel(900, 950)
			iterate(c.steps, 30_000, func(_, at uint64) {
				for k := range uint64(20) {
					do(s, "cuLaunchKernel", at+k*200, 7)
				}
				do(s, "cuStreamSynchronize", at+5000, 4)
				c.make(s, at)
			})
			d, source := s.diagnose(), ""
			if d.Iterations != nil {
				source = d.Iterations.Source
			}
			if source != c.source || d.Few != c.few {
				t.Errorf("iterations are %q, few %q; want %q, %q", source, d.Few, c.source, c.few)
			}
		})
	}
}

// TestIterationsInWindows: what is printed for each iteration is of those in the windows, which the window made longer.
func TestIterationsInWindows(t *testing.T) {
	s := newScene(t)
	s.Meta.GPU.Windows[0].To = start + 200*ms
	s.Meta.GPU.Windows[0].End = "closed"
	s.kernel(20, 60)
	at := uint64(0)
	for at < 900_000 {
		do(s, "cuLaunchKernel", at, 7)
		do(s, "cuStreamSynchronize", at+500, 4)
		if at < 200_000 {
			at += 1000
		}
		at += 1000
	}
	it := s.diagnose().Iterations
	if it == nil || it.Inside != 2000*us {
		t.Fatal("those in the window do not take 2 ms")
	}
	if it.P50 != 1000*us {
		t.Errorf("half of all take %d µs, want 1000", it.P50/us)
	}
}

// TestCallsOfSomeOfTheTime: where the budget ended the recording of calls, nobody knows when the last iteration ended.
func TestCallsOfSomeOfTheTime(t *testing.T) {
	for _, off := range []float64{0, 0.4} {
		s := newScene(t)
		s.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{
			{
				Name:   "cuda calls",
				Shares: []recording.LevelShare{{Level: "each call", Share: 1 - off}, {Level: "off", Share: off}},
			},
		}}
		s.kernel(5, 400)
		s.Meta.Processes[0].Died = start + 990*ms
		iterate(100, 5000, func(_, at uint64) {
			do(s, "cuLaunchKernel", at, 7)
			do(s, "cuStreamSynchronize", at+1000, 4)
		})
		d := s.diagnose()
		if d.Iterations == nil || d.Iterations.Missed != off || (d.End == nil) != (off > 0) {
			t.Errorf("off for %v: end %+v", off, d.End)
		}
	}
}
