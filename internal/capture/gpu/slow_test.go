package gpu

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestSlowSubscription: while CUPTI does not let the agent in, the daemon says so; from then on windows come at their
// period, and it says why nobody else gets in. When it stops, CUPTI is free again.
func TestSlowSubscription(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period = 50*time.Millisecond, 150*time.Millisecond
	slow := cudasim.Options{Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=2500000000"}}
	v := cudasim.Start(t, slow, "until { launch 3 kernel=k_us5; sync; sleep 10ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	detail := func() string {
		if a := s.Agents(); len(a) > 0 {
			return a[0].Detail
		}
		return ""
	}
	drain(t, s, &got, "word of the wait", func() bool { return strings.Contains(detail(), "waits in cuptiSubscribe") })
	drain(t, s, &got, "six kept windows", func() bool { return s.Agents()[0].Kept >= 6 })
	drain(t, s, &got, "word of the subscription", func() bool { return strings.Contains(detail(), "stays subscribed") })
	if a := s.Agents()[0]; a.Kept != a.Windows || a.Dropped != 0 || a.State != string(running) {
		t.Errorf("the agent is %+v", a)
	}
	compareKernels(t, s, p, v, got.of(event.Kernel))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.Feed(0, got.emit)
	if left := s.remaining(); len(left) != 0 {
		t.Errorf("the agent stays in %v", left)
	}
	if a := s.Agents()[0]; a.Windows != a.Kept+1 || a.Disabled != 0 {
		t.Errorf("on the way out the agent is %+v; want one more window, and that finalized", a)
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestSlowWayOut: while CUPTI does not let the agent out the daemon says so. Threads are held for that long once: CUPTI
// then stays between windows, with everything off.
func TestSlowWayOut(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 150*time.Millisecond, gates(t)
	slow := cudasim.Options{
		Level: "counts",
		Env:   []string{"CUDASIM_CUPTI_FINALIZE_NS=2500000000", "CUDASIM_KERNEL_SLOTS=8"},
	}
	v := cudasim.Start(t, slow, "stream-new nonblocking",
		"thread 2 { repeat 1000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 1ms } }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	agent := func() recording.AgentStatus {
		if a := s.Agents(); len(a) > 0 {
			return a[0]
		}
		return recording.AgentStatus{}
	}
	drain(t, s, &got, "word of the wait",
		func() bool { return strings.Contains(agent().Detail, "waits in cuptiFinalize") })
	drain(t, s, &got, "three kept windows", func() bool { return agent().Kept >= 3 })
	before := v.Truth().Count("cuLaunchKernel")
	drain(t, s, &got, "launches", func() bool { return v.Truth().Count("cuLaunchKernel") > before+100 })
	if a := agent(); a.Windows != a.Kept+1 || a.Disabled != 0 || stateOf(s, p.PID) != string(running) {
		t.Errorf("the agent is %+v; want one window that was finalized, and then kept ones", a)
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestLogSaysWhatIsRecorded: when an agent comes the log reports whether it records, and when.
func TestLogSaysWhatIsRecorded(t *testing.T) {
	for _, c := range []struct {
		want string
		opts Options
	}{
		{"nothing yet: the first window opens when", Options{Watch: time.Hour}},
		{"windows of 200ms every 2s", Options{}},
		{"all the time", Options{Mode: Continuous}},
	} {
		core, logs := observer.New(zapcore.InfoLevel)
		pr := startProducer(t)
		c.opts.Inject, c.opts.Slots, c.opts.Log = pr, 1024, zap.New(core)
		s := newTestSource(t, c.opts)
		image, err := proc.Image(pr.p)
		if err != nil {
			t.Fatal(err)
		}
		s.begin(pr.p, image)
		said := func() []observer.LoggedEntry { return logs.FilterMessage("an agent is in the process").All() }
		eventually(t, "an agent", func() bool { return len(said()) == 1 })
		if records, _ := said()[0].ContextMap()["records"].(string); !strings.HasPrefix(records, c.want) {
			t.Errorf("it records %q, want %q", records, c.want)
		}
	}
}

// TestKeptOutByCUPTI: launches are probed while the agent waits long to enter CUPTI, and no more once it is in.
func TestKeptOutByCUPTI(t *testing.T) {
	pr := startProducer(t)
	launches := &notedLaunches{}
	s := newTestSource(t, Options{Inject: pr, Launches: launches, Slots: 1024})
	join(t, s, pr)
	pr.do("open -60000") // what lies ahead has not begun
	eventually(t, "a short wait is none", func() bool { return agentStateOf(s, pr) == stateOpening })
	if launches.last() != cudaapi.LaunchesOff {
		t.Errorf("launches %q of an agent that has just begun to wait, want %q", launches.last(), cudaapi.LaunchesOff)
	}
	pr.do("open 19000")
	eventually(t, "launches are probed", func() bool { return launches.last() == cudaapi.LaunchesWindows })
	if a := s.Agents()[0]; a.State != string(waiting) ||
		!strings.Contains(a.Detail, " s so far; until it is in, launches are probed") {
		t.Errorf("the agent is %s and says %q", a.State, a.Detail)
	}
	pr.do("open 0")
	eventually(t, "they are not any more", func() bool { return launches.last() == cudaapi.LaunchesOff })
	if a := s.Agents()[0]; a.State != string(running) || a.Detail != "" {
		t.Errorf("the agent is %s and says %q", a.State, a.Detail)
	}
}

// agentStateOf returns what pr's agent has last said of itself.
func agentStateOf(s *Source, pr *producer) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[pr.p.ID()].agent.state
}
