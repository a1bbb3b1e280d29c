package diagnose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// runs lets the GPU run a kernel, times in µs.
func runs(s *scene, kernel int32, at, dur uint64, grid uint64) {
	s.id++
	s.Event(event.Event{
		TS: start + at*us, Dur: dur * us, PID: recordtest.PID, TID: 7,
		Func: 1 << 8, Kind: event.Kernel, Flags: event.Timed, Ret: kernel,
		Args: [4]uint64{uint64(s.id), 0, grid, 256},
	})
}

// decode is a step of 5 ms that is one graph launch and 12 launches; the GPU works for 4 ms of it.
func decode(s *scene, at uint64) uint64 {
	do(s, "cuGraphLaunch", at+200, 77)
	for k := range uint64(12) {
		do(s, "cuLaunchKernel", at+300+k*20, 7)
	}
	runs(s, 1, at+500, 4000, grid(400))
	do(s, "cuStreamSynchronize", at+4980, 4)
	return at + 5000
}

// prefill is a step of 12 ms that launches 219 kernels; the GPU works for 3 ms of it.
func prefill(s *scene, at uint64) uint64 {
	for k := range uint64(219) {
		do(s, "cuLaunchKernel", at+100+k*50, 7)
		if k%3 == 0 {
			runs(s, 2, at+120+k*50, 41, grid(300+k))
		}
	}
	do(s, "cuStreamSynchronize", at+11_980, 4)
	return at + 12_000
}

// serving is a scene of decode steps, of which some are followed by a prefill, as requests come: 27 in all.
func serving(t *testing.T) *scene {
	s := newScene(t)
	s.Meta.GPU.Kernels = []recording.Kernel{{Name: "decode"}, {Name: "prefill"}}
	at, left := uint64(0), 5
	for i := 0; at < 960_000; i++ {
		at = decode(s, at)
		if left--; left == 0 {
			left = 4 + i*i%9
			s.step(at/1000, at/1000+12, cause.LaunchOverhead)
			at = prefill(s, at)
		}
	}
	return s
}

// TestKindsOfSteps: a server decodes by a graph, and prefills without one.
func TestKindsOfSteps(t *testing.T) {
	d := serving(t).diagnose()
	if d.Iterations == nil || len(d.Iterations.Kinds) != 2 {
		t.Fatalf("iterations %+v, want two kinds", d.Iterations)
	}
	dec, pre := d.Iterations.Kinds[0], d.Iterations.Kinds[1]
	if dec.Name != "1 graph launch and 12 launches" || dec.P50 != 5000*us || dec.P99 != 5000*us || dec.Outside ||
		dec.GPU == nil ||
		*dec.GPU < 0.79 ||
		*dec.GPU > 0.81 {
		t.Errorf("decode is %+v", dec)
	}
	if pre.Name != "219 launches and no graph" || pre.P50 != 12_000*us || !pre.Outside || pre.Launches != 219 ||
		pre.Graphs != 0 ||
		pre.Count != 27 {
		t.Errorf("prefill is %+v", pre)
	}
	if pre.GPU == nil || *pre.GPU < 0.24 || *pre.GPU > 0.26 || pre.Share < 0.33 || pre.Share > 0.35 {
		t.Errorf("prefill takes %v, GPU %v; want 34%%, 25%%", pre.Share, *pre.GPU)
	}
	if dec.Share+pre.Share != 1 || dec.Count+pre.Count != d.Iterations.Count {
		t.Errorf("%d and %d of %d steps", dec.Count, pre.Count, d.Iterations.Count)
	}
	if len(d.Findings) == 0 || d.Findings[0].Cause != "launch-overhead" {
		t.Fatalf("findings %q", causes(d))
	}
	f := &d.Findings[0]
	if want := "Steps fall out of the CUDA graphs: 219 launches, 12.0 ms each, 33.8% of the time"; f.Title != want {
		t.Errorf("title %q, want %q", f.Title, want)
	}
	if !strings.Contains(
		text(f),
		"of it lies in the steps of 219 launches and no graph, which take 33.8% of the time.",
	) {
		t.Errorf("evidence:\n%s", text(f))
	}
	if c := f.Changes[0]; !strings.HasPrefix(c.Text, "Let the steps of 219 launches and no graph run as graphs, too") {
		t.Errorf("to change first: %s", c.Text)
	}
}

// TestOneKindOfSteps: a number of launches that varies, and a step that is different once or twice.
func TestOneKindOfSteps(t *testing.T) {
	eager := func(launches uint64) func(s *scene, at uint64) uint64 {
		return func(s *scene, at uint64) uint64 {
			for k := range launches {
				do(s, "cuLaunchKernel", at+100+k*20, 7)
			}
			runs(s, 1, at+200, 3000, grid(400))
			do(s, "cuStreamSynchronize", at+7980, 4)
			return at + 8000
		}
	}
	for name, step := range map[string]func(i int) func(s *scene, at uint64) uint64{
		"varies": func(i int) func(s *scene, at uint64) uint64 { return eager(100 + uint64(i*7%60)) },
		"twice": func(i int) func(s *scene, at uint64) uint64 {
			if i == 40 || i == 80 {
				return prefill
			}
			return decode
		},
		"all alike": func(int) func(s *scene, at uint64) uint64 { return eager(150) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			at := uint64(0)
			for i := 0; at < 960_000; i++ {
				at = step(i)(s, at)
			}
			d := s.diagnose()
			if d.Iterations == nil || len(d.Iterations.Kinds) != 0 {
				t.Errorf("iterations %+v, want one kind", d.Iterations)
			}
		})
	}
}

// TestKindsByKernels: as many launches of other kernels, which take another time, are another kind; of a similar time
// they are not.
func TestKindsByKernels(t *testing.T) {
	for _, c := range []struct{ dur, kinds uint64 }{{9000, 2}, {4000, 0}} {
		s := newScene(t)
		for i := range int32(40) {
			s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{Name: fmt.Sprintf("k%d", i)})
		}
		at := uint64(0)
		for i := 0; at < 960_000; i++ {
			first, dur := int32(1), uint64(3000)
			if i%5 == 4 {
				first, dur = 21, c.dur
			}
			for k := range int32(20) {
				do(s, "cuLaunchKernel", at+50+uint64(k)*40, 7)
				runs(s, first+k, at+100+uint64(k)*dur/20, dur/25, grid(400))
			}
			at += dur + 1000
			do(s, "cuStreamSynchronize", at-20, 4)
		}
		d := s.diagnose()
		if d.Iterations == nil || uint64(len(d.Iterations.Kinds)) != c.kinds {
			t.Fatalf("%d µs: iterations %+v, want %d kinds", c.dur, d.Iterations, c.kinds)
		}
		if c.kinds > 0 &&
			(d.Iterations.Kinds[0].Name == d.Iterations.Kinds[1].Name || !strings.Contains(d.Iterations.Kinds[0].Name, "of other kernels")) {
			t.Errorf("names %q and %q", d.Iterations.Kinds[0].Name, d.Iterations.Kinds[1].Name)
		}
	}
}

// TestKindsInWindows: outside of windows only graph launches are recorded, which tell decode and prefill apart as well.
func TestKindsInWindows(t *testing.T) {
	s := serving(t)
	w := &s.Meta.GPU.Windows[0]
	w.To, w.End = start+300*ms, "closed"
	d := s.diagnose()
	if d.Iterations == nil || len(d.Iterations.Kinds) != 2 {
		t.Fatalf("iterations %+v, want two kinds", d.Iterations)
	}
	if dec, pre := d.Iterations.Kinds[0], d.Iterations.Kinds[1]; dec.Count+pre.Count != d.Iterations.Count ||
		pre.Count != 27 ||
		pre.Launches != 219 {
		t.Errorf("%+v and %+v of %d steps", dec, pre, d.Iterations.Count)
	}
}

// TestChangingShapes: a step whose kernels have other sizes each time is told to make them alike before it is recorded.
func TestChangingShapes(t *testing.T) {
	for _, changing := range []bool{true, false} {
		s := newScene(t)
		for i := range uint64(90) {
			at, g := i*10_000, grid(100)
			if changing {
				g = grid(100 + i)
			}
			for k := range uint64(20) {
				do(s, "cuLaunchKernel", at+50+k*300, 7)
				runs(s, 1, at+70+k*300, 20, g)
			}
			s.step(at/1000+1, at/1000+9, cause.LaunchOverhead)
			do(s, "cuStreamSynchronize", at+9900, 4)
		}
		d := s.diagnose()
		if len(d.Findings) == 0 || d.Findings[0].Cause != "launch-overhead" {
			t.Fatalf("findings %q", causes(d))
		}
		if got := d.Findings[0].Changes[0].Text; strings.Contains(got, "shapes of the step alike") != changing {
			t.Errorf("changing %v: to change first: %s", changing, got)
		}
	}
}
