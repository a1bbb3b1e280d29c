package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// allocating is a step of 20 ms that launches for most of it, and allocates and frees in it: before its last launch,
// which is recorded of some steps, or after its wait.
func allocating(t *testing.T, with bool, inside uint64) *scene {
	s := newScene(t)
	for i := range uint64(50) {
		at := i * 20
		s.kernel(at, at+2)
		waits := at + 1
		if inside > 0 {
			waits = at + 18
		}
		if i < inside {
			s.kernel(at+17, at+18)
		}
		s.step(at+2, at+14, cause.LaunchOverhead)
		s.step(at+14, at+20, cause.Allocation)
		if with {
			for k, name := range []string{"cuMemAlloc_v2", "cuMemFree_v2"} {
				s.Event(event.Event{
					TS: start + (at+15+uint64(k))*ms, Dur: ms / 2, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn(name), Kind: event.Call, Flags: event.Timed,
				})
			}
		}
		s.Event(event.Event{
			TS: start + waits*ms, Dur: ms, PID: recordtest.PID, TID: recordtest.PID,
			Func: s.Fn("cuStreamSynchronize"), Kind: event.Call, Flags: event.Timed, Args: [4]uint64{7},
		})
	}
	gains := map[cause.ID]diagnose.Gain{
		cause.LaunchOverhead: {Speedup: 2.2, Low: 2, High: 2.4},
		cause.Allocation:     {Speedup: 1.4, Low: 1.3, High: 1.5},
	}
	s.predict = func(id cause.ID) (diagnose.Gain, bool) { g, ok := gains[id]; return g, ok }
	return s
}

// TestGraphPreconditions: what prevents that a step is recorded as a graph comes before the advice to record it.
func TestGraphPreconditions(t *testing.T) {
	d := allocating(t, true, 50).diagnose()
	if causes(d) != "allocation launch-overhead" {
		t.Fatalf("findings %q", causes(d))
	}
	if got := d.Findings[1].Changes[0].Text; !strings.Contains(got, "cuMem") ||
		!strings.Contains(got, "2 in each iteration") {
		t.Errorf("to change first: %s", got)
	}
	if d = allocating(t, true, 0).diagnose(); causes(d) != "launch-overhead allocation" {
		t.Errorf("allocations between steps are not in the way, and the findings are %q", causes(d))
	}
	if got := d.Findings[0].Changes[1].Text; !strings.Contains(got, "allocated once") ||
		!strings.Contains(got, "cuMem") {
		t.Errorf("to change second: %s", got)
	}
	s := allocating(t, true, 10)
	s.Meta.GPU.Windows[0].Calls = false
	s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, recording.GPUWindow{
		PID: recordtest.PID, From: start, To: start + 200*ms, Calls: true, End: "open",
	})
	if d = s.diagnose(); causes(d) != "allocation launch-overhead" {
		t.Errorf("launches in windows: findings %q", causes(d))
	}
	if d = allocating(t, false, 0).diagnose(); causes(d) != "launch-overhead allocation" {
		t.Errorf("nothing is known to be in the way, and the findings are %q", causes(d))
	}
	if got := d.Findings[0].Changes[0].Text; strings.Contains(got, "First") {
		t.Errorf("to change first: %s", got)
	}
}

// TestWaitsSplitLaunches: a wait after every few launches comes before the advice to record a graph, which could hold no
// more than these; but not where it brings next to nothing.
func TestWaitsSplitLaunches(t *testing.T) {
	for _, c := range []struct {
		launches uint64
		gain     float64
		want     string
	}{
		{3, 1.2, "host-sync launch-overhead"},
		{18, 1.2, "launch-overhead host-sync"},
		{3, 1.03, "launch-overhead host-sync"},
	} {
		s := newScene(t)
		for i := range uint64(40) {
			at := i * 25
			for k := range c.launches {
				s.kernel(at+k, at+k+1)
			}
			s.Event(event.Event{
				TS: start + (at+c.launches)*ms - 100*us, Dur: 200 * us, PID: recordtest.PID, TID: recordtest.PID,
				Func: s.Fn("cuStreamSynchronize"), Kind: event.Call, Flags: event.Timed, Args: [4]uint64{7},
			})
			s.step(at+c.launches, at+c.launches+2, cause.HostSync)
			s.step(at+c.launches+2, at+25, cause.LaunchOverhead)
		}
		gains := map[cause.ID]diagnose.Gain{
			cause.LaunchOverhead: {Speedup: 1.5, Low: 1.4, High: 1.6},
			cause.HostSync:       {Speedup: c.gain, Low: c.gain - 0.02, High: c.gain + 0.02},
		}
		s.predict = func(id cause.ID) (diagnose.Gain, bool) { g, ok := gains[id]; return g, ok }
		if d := s.diagnose(); causes(d) != c.want {
			t.Errorf("%d launches, %v: findings %q", c.launches, c.gain, causes(d))
		} else if first := d.Findings[0]; (first.Before == "launch-overhead") != (first.Cause == "host-sync") {
			t.Errorf("%d launches, %v: %s stands before %q", c.launches, c.gain, first.Cause, first.Before)
		}
	}
}

// TestEagerEngine: vLLM that launches kernel by kernel is told how to record graphs, and not to write them by hand.
func TestEagerEngine(t *testing.T) {
	for _, runner := range []string{"gpu_model_runner.py", "gpu/model_runner.py"} {
		file := "/site-packages/vllm/v1/worker/" + runner
		s := allocating(t, false, 0)
		s.Stack(recordtest.Python("execute_model", file, 12))
		if got := s.diagnose().Findings[0].Changes[0].Text; !strings.Contains(got, "--enforce-eager") {
			t.Errorf("to change first: %s", got)
		}
		s = allocating(t, false, 0)
		s.Stack(recordtest.Python("execute_model", file, 12))
		s.Event(event.Event{
			TS: start + ms, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuGraphLaunch"), Kind: event.Call,
			Flags: event.Timed, Dur: 5 * us, Args: [4]uint64{7},
		})
		if got := s.diagnose().Findings[0].Changes[0].Text; strings.Contains(got, "--enforce-eager") {
			t.Errorf("it launches graphs; to change first: %s", got)
		}
	}
}

// TestLaunchesBesideGraphs: of 15 kernels of each step ten come out of a graph, and those beside it take the time.
func TestLaunchesBesideGraphs(t *testing.T) {
	s := newScene(t)
	for i := range uint64(50) {
		at := i * 20
		s.id++
		s.Event(event.Event{
			TS: start + at*ms, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuGraphLaunch"), Kind: event.Call,
			Flags: event.Correlated | event.Timed, Dur: 5 * us, Ret: int32(s.id), Args: [4]uint64{7},
		})
		for k := range uint64(10) {
			s.Event(event.Event{
				TS: start + at*ms + 10*us + k*100*us, Dur: 100 * us, PID: recordtest.PID, TID: 7, Func: 1 << 8,
				Kind: event.Kernel, Flags: event.Timed, Ret: 1,
				Args: [4]uint64{uint64(s.id) | (k+1)<<32, 0, grid(400), 256},
			})
		}
		for k := range uint64(5) {
			s.kernel(at+2+3*k, at+3+3*k)
			s.step(at+3+3*k, at+5+3*k, cause.LaunchOverhead)
		}
	}
	changes := s.diagnose().Findings[0].Changes
	want := "(66.7% of the kernels): take what is launched beside it (5 launches for each graph)"
	if got := changes[0].Text; !strings.Contains(got, want) {
		t.Errorf("to change first: %s", got)
	}
	for _, c := range changes[1:] {
		if strings.Contains(c.Text, "raph") {
			t.Errorf("to change: %s", c.Text)
		}
	}
}

// TestStepThatIsAGraph: nobody is told to use what is used already.
func TestStepThatIsAGraph(t *testing.T) {
	s := newScene(t)
	for i := range uint64(50) {
		at := i * 20
		s.id++
		s.Event(event.Event{
			TS: start + at*ms, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuGraphLaunch"), Kind: event.Call,
			Flags: event.Correlated | event.Timed, Dur: 5 * us, Ret: int32(s.id), Args: [4]uint64{7},
		})
		s.Event(event.Event{
			TS: start + at*ms + 10*us, Dur: 5 * ms, PID: recordtest.PID, TID: 7, Func: 1 << 8, Kind: event.Kernel, Flags: event.Timed, Ret: 1,
			Args: [4]uint64{uint64(s.id), 0, grid(400), 256},
		})
		s.step(at+5, at+20, cause.LaunchOverhead, func(x *gap.Step) { x.Op = int32(i) })
	}
	d := s.diagnose()
	if causes(d) != "launch-overhead" {
		t.Fatalf("findings %q", causes(d))
	}
	for _, c := range d.Findings[0].Changes {
		if strings.Contains(c.Text, "ecord") || strings.Contains(c.Example, "Capture") {
			t.Errorf("to change: %s", c.Text)
		}
	}
	if !strings.Contains(d.Findings[0].Changes[0].Text, "a CUDA graph already") {
		t.Errorf("to change first: %s", d.Findings[0].Changes[0].Text)
	}
}
