package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// What the thousand attachments are made to, four processes of each at a time.
var cycled = map[string][]string{
	"launches": {
		"until { rate 2000 for 20ms; sync; sleep 1ms }",
	}, // asleep, a thread is seen to have left CUPTI; probes, which see its calls return, are not here
	"graphs older than any profiler": {
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"until { graph-launch stream=1; graph-update 8 stream=1 kernel=n_us2; launch 5 kernel=k_us1; ssync stream=1; " +
			"sync; sleep 1ms }",
	},
}

const (
	cycledEach  = 4 // processes
	cycledFirst = 9 // round after which a process holds what it holds for good
)

// rounds is how many attachments are made to each process: 1,000 to all, or 96 where tests are to be short.
func rounds() int {
	if testing.Short() {
		return 12
	}
	return 125
}

// TestAThousandAttachments attaches, records a window, detaches, again and again: each records kernels and loses
// nothing, a window ends in the good way, the process ends well, and nothing of an agent stays in it but its code.
func TestAThousandAttachments(t *testing.T) {
	in := realInjector(t)
	for name, script := range cycled {
		for i := range cycledEach {
			t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) {
				t.Parallel()
				cycle(t, in, cudasim.Start(t, cudasim.Options{Level: "counts"}, script...))
			})
		}
	}
}

func cycle(t *testing.T, in *AgentInjector, v *cudasim.Victim) {
	var early cudasim.Footprint
	n := rounds()
	for i := range n {
		s, got := attached(t, in, v)
		detached(t, s, got)
		if i == cycledFirst {
			early = footprintAlone(t, v)
		}
	}
	if late := footprintAlone(t, v); late.Grew(early, n) {
		t.Errorf("in %d attachments the process grew from %+v to %+v", n-cycledFirst-1, early, late)
	}
	v.Send("stop")
	v.Finish()
	for name := range v.Truth().Counts() {
		if n := v.Truth().FailedCount(name); n != 0 && name != "cuCtxSynchronize" { // the agent's own is refused
			t.Errorf("%s failed %d times", name, n)
		}
	}
}

// attached is a source whose agent has recorded a window in v, and what came of it.
func attached(t *testing.T, in *AgentInjector, v *cudasim.Victim) (*Source, *collector) {
	t.Helper()
	opts := Options{
		Mode: Windows, On: 20 * time.Millisecond, Period: 60 * time.Millisecond, Inject: in, Build: in.Build(),
		Index: func(string) (uint16, bool) { return 1, true },
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	watch(t, s, v)
	got := &collector{}
	// On a busy machine a thread may get no CPU for the 20 ms of a window, or for long inside CUPTI.
	drain(t, s, got, "a window with kernels, and one that ends in the good way", func() bool {
		a := s.Agents()
		return len(a) > 0 && a[0].Windows > a[0].Kept && len(got.of(event.Kernel)) > 0
	})
	return s, got
}

// detached ends a source, and hands over what it still has. No window may have been disabled, and only where one had
// to wait for a thread that got no CPU may CUPTI have dropped records.
func detached(t *testing.T, s *Source, got *collector) {
	t.Helper()
	agent := s.Agents()[0]
	if agent.Disabled != 0 {
		t.Errorf("the agent is %+v", agent)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := s.remaining(); len(left) != 0 {
		t.Fatalf("an agent stayed in %v", left)
	}
	s.Feed(0, got.emit)
	if len(got.of(event.Kernel)) == 0 {
		t.Error("no kernel was recorded")
	}
	for _, l := range s.Losses() {
		if agent.Kept == 0 || l.Reason != loss.GPURecordsDropped {
			t.Errorf("a loss is %+v", l)
		}
	}
}

// footprintAlone is what v holds once its only thread is left: one that ends is counted longer than it has a name.
func footprintAlone(t *testing.T, v *cudasim.Victim) (f cudasim.Footprint) {
	t.Helper()
	eventually(t, "the agent's thread is gone", func() bool {
		f = v.Footprint()
		return f.Threads == 1
	})
	return f
}
