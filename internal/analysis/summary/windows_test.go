package summary_test

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestLaunchesInWindows holds that launches that are recorded in windows are counted as that and never scaled
// up, that their time stays out of the time in calls, and that what probe and agent both saw counts once.
func TestLaunchesInWindows(t *testing.T) {
	const ms = calltest.Millisecond
	s := timelinetest.New(timelinetest.Config{
		Agent:   true,
		Both:    true,
		Windows: []timelinetest.Span{timelinetest.Between(0, 100*ms), timelinetest.Between(500*ms, 600*ms)},
	})
	st := s.Stream(0x10, 13)
	th := s.Spawn(recordtest.PID)
	for range 1000 {
		th.Then(func(t *timelinetest.Thread) {
			for range 4 {
				t.Launch(st, timelinetest.Layers(1)[0], 10_000)
			}
			t.Graph(st, 0x99, timelinetest.Layers(1)[:2], 20_000)
			t.Pause(ms - 60_000)
		})
	}
	got := summary.Summarize(timeline.Build(s.Run()))
	w := got.Windows
	if w == nil || w.Time != 200*ms || w.Count != 2 || math.Abs(w.Share-0.2) > 1e-9 {
		t.Fatalf("windows %+v, want 2 of 200 ms together", w)
	}
	if w.Launches != 800 || got.Launches.Kernels != 800 || got.Launches.Graphs != 1000 {
		t.Errorf("%d launches in windows, %d kernels and %d graphs, want 800, 800 and 1000",
			w.Launches, got.Launches.Kernels, got.Launches.Graphs)
	}
	if math.Abs(w.PerSecond-4000) > 1e-6 || math.Abs(got.Launches.PerSecond-5000) > 1 {
		t.Errorf("%f launches and %f in all per second, want 4000 and 5000", w.PerSecond, got.Launches.PerSecond)
	}
	if got.Operations != 1800 || got.Inner != 0 {
		t.Errorf(
			"%d operations and %d inside others, want 1800 and none: the agent's view of a graph launch is no call "+
				"of its own",
			got.Operations,
			got.Inner,
		)
	}
	if got.CallTime != 1000*20_000 {
		t.Errorf("%d ns in calls, want that of the graph launches alone", got.CallTime)
	}
	for _, f := range got.Functions {
		if f.Name == "cuLaunchKernel" &&
			(!f.Timed || f.Count != 800 || f.Seen != 200*ms || f.Untimed != 0 || f.Time != 800*10_000 ||
				math.Abs(f.Share-0.04) > 1e-9) {
			t.Errorf("%+v", f)
		}
	}
}
