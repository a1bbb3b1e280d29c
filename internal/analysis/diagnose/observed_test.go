package diagnose_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestWindowsAreLeftOut: a graph that runs for 6 ms is launched in 4 ms inside of windows and in 1 ms outside. What the
// windows add is not the program's: the GPU is busy for 6 of 7 ms and not for 6 of 10 (windows begin with a launch that
// is not in them).
func TestWindowsAreLeftOut(t *testing.T) {
	s := newScene(t)
	s.Meta.GPU.Mode, s.Meta.GPU.Windows = "windows", nil
	launch := func(at, dur uint64, seen bool) {
		s.id++
		s.Event(event.Event{
			TS: start + at*ms, Dur: dur * ms, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuGraphLaunch"),
			Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(s.id), Args: [4]uint64{5},
		})
		if seen {
			s.Event(event.Event{
				TS: start + (at+dur)*ms, Dur: 6 * ms, PID: recordtest.PID, TID: 7,
				Func: 1 << 8, Kind: event.Kernel, Flags: event.Timed, Ret: 1,
				Args: [4]uint64{uint64(s.id), 0, grid(400), 256},
			})
			n := int32(s.id - 1)
			s.step(at, at+dur, cause.LaunchOverhead, func(x *gap.Step) { x.Op = n })
		}
	}
	at := uint64(0)
	for range 3 {
		from := at
		for range 10 {
			launch(at, 4, true)
			at += 10
		}
		s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, recording.GPUWindow{
			PID: recordtest.PID, From: start + from*ms, To: start + at*ms,
			Activity: true, Calls: true, End: "finalized",
		})
		for range 28 {
			launch(at, 1, false)
			at += 7
		}
	}
	d := s.diagnose()
	if d.Observed == nil || d.Observed.Share < 0.27 || d.Observed.Share > 0.31 || d.Observed.Low > d.Observed.Share ||
		d.Observed.High < d.Observed.Share {
		t.Fatalf("observed %+v", d.Observed)
	}
	b := d.Breakdown
	if busy := float64(partOf(b, "compute")) / float64(b.Time); busy < 0.84 || busy > 0.90 {
		t.Errorf("busy for %.3f", busy)
	}
	if idle := float64(partOf(b, "launch-overhead")) / float64(b.Time); idle < 0.10 || idle > 0.16 {
		t.Errorf("launching for %.3f", idle)
	}
}
