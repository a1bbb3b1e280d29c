package gap

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// TestCaptureIsNoLaunching holds that what a thread does while it captures a graph is making the graph: the launches in
// it start nothing, and a graph is what they make.
func TestCaptureIsNoLaunching(t *testing.T) {
	s := frame()
	s.Do("cudaStreamBeginCapture", 1_000_000, 10_000, 0)
	for at := 1_020; at < 15_000; at += 20 {
		s.call("cudaLaunchKernel", uint64(at)*us, 5*us, 1, 0)
	}
	s.Do("cudaStreamEndCapture", 15_000_000, 100_000, 0)
	var captured uint64
	_, w := s.build(t)
	for _, st := range w.Steps {
		if from, to := max(st.From, start+1_010*us), min(st.To, start+15_000*us); from < to &&
			st.Cause == cause.Compilation {
			captured += to - from
		}
	}
	if want := 13_990 * us; captured != want {
		t.Errorf("%d ns of the capture are making a graph, want %d", captured, want)
	}
}
