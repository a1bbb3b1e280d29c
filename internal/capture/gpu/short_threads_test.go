package gpu

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestThreadsThatLiveBriefly: the agent comes in, and soon, though every thread that calls CUDA is gone after some
// milliseconds.
func TestThreadsThatLiveBriefly(t *testing.T) {
	opts := simOptions(t, Continuous)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"},
		"until { thread 64 { repeat 3 { launch 1 kernel=k_us1; sync; sleep 1ms } } }", "wait")
	s := newTestSource(t, opts)
	began := time.Now()
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "the agent records",
		func() bool { return stateOf(s, p.PID) == string(running) && len(got.of(event.Kernel)) > 0 })
	t.Logf("it recorded after %v, and stopped a thread for %v",
		time.Since(began).Round(time.Millisecond), s.sessions[p.ID()].entry.stopped)
}
