package gpu

import (
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestGuard: windows that leave 16 MB each in a real process end the agent for good, which says so; the process goes
// on.
func TestGuard(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period = 50*time.Millisecond, time.Second
	leaky := cudasim.Options{Env: []string{"CUDASIM_CUPTI_LEAK_BYTES=16000000"}}
	v := cudasim.Start(t, leaky, "until { launch 20 kernel=k_us5; sync; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	end := time.Now().Add(2 * time.Minute)
	for ; stateOf(s, p.PID) != string(dormant) && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s.Feed(0, got.emit)
	}
	drain(t, s, &got, "the agent to end", func() bool { return len(s.remaining()) == 0 })
	a := s.Agents()[0]
	t.Logf("after %d windows the agent is %s: %s", a.Windows, a.State, a.Detail)
	if a.State != string(dormant) || !strings.Contains(a.Detail, "more than the 64 MB that they may") ||
		a.Windows < fewestLeft {
		t.Errorf("the agent is %+v", a)
	}
	if l := s.Losses(); len(l) != 1 || l[0].Reason != loss.AgentRefused {
		t.Errorf("losses are %+v", l)
	}
	before := v.Truth().Counts()["cuLaunchKernel"]
	time.Sleep(1500 * time.Millisecond)
	s.Feed(0, got.emit)
	// A window may have been open when that was decided.
	if again := s.Agents()[0]; again.Windows > a.Windows+1 || again.State != string(dormant) {
		t.Errorf("1.5 s later it is %+v", again)
	}
	if after := v.Truth().Counts()["cuLaunchKernel"]; after <= before {
		t.Errorf("the process made %d launches before, and %d after: it does not go on", before, after)
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestLeakLimitIsReported: what thrift says is part of what an agent is told, and of what status says.
func TestLeakLimitIsReported(t *testing.T) {
	s := newTestSource(t, Options{Inject: noInjector{t}})
	q := newSession(&proc.Process{}, "", newFacts(1))
	q.windows.limiter.least[limitLeak] = time.Minute
	if got := s.times(q).period; got != uint64(time.Minute) {
		t.Errorf("windows are %v apart, want a minute", time.Duration(got))
	}
	q.windows.leak = leak{sure: 40e6, bytes: 41e6}
	if said := q.leaving(); !strings.Contains(said, "at least 1m0s apart") || !strings.Contains(said, "40 MB") {
		t.Errorf("it says %q", said)
	}
}
