package gpu

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// releasing is a source that has released a process whose agent takes its time, and the ring of that.
func releasing(t *testing.T, opts Options) (*Source, *producer, *ring) {
	t.Helper()
	pr := startProducer(t)
	opts.Inject, opts.Slots, opts.Index = pr, 1024, graphIndex
	s := newTestSource(t, opts)
	join(t, s, pr)
	pr.do("name 1 0 gemm", "stay")
	s.Observe([]event.Event{graphCall(pr.p.PID, pr.p.PID, clock.Monotonic())})
	s.mu.Lock()
	r := s.sessions[pr.p.ID()].ring
	s.mu.Unlock()
	s.Forget(pr.p)
	return s, pr, r
}

// shutdownBy is how many agents are on their way out.
func shutdownBy(s *Source) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.retired)
}

func detailOf(s *Source, pid uint32) string {
	for _, a := range s.Agents() {
		if a.PID == pid {
			return a.Detail
		}
	}
	return ""
}

// TestReleased: an agent that was told to leave a process that lives on hears of its daemon, and is read, until it has
// gone.
func TestReleased(t *testing.T) {
	s, pr, r := releasing(t, Options{})
	var got collector
	s.Feed(0, got.emit)
	if mode, _ := modeIn(pr); mode != modeQuit {
		t.Errorf("mode %d, want quit", mode)
	}
	if shutdownBy(s) != 1 || stateOf(s, pr.p.PID) != string(gone) ||
		!strings.Contains(detailOf(s, pr.p.PID), "is leaving") {
		t.Fatalf("%d agents leave, and it is said %+v", shutdownBy(s), s.Agents())
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Departed(over, []uint32{pr.p.PID}) || !s.Departed(over, []uint32{pr.p.PID + 1}) {
		t.Error("it has departed, or one that never was has not")
	}
	last := r.load64(ringHeartbeat)
	eventually(t, "another heartbeat", func() bool { return r.load64(ringHeartbeat) != last })
	if r.load32(ringGraphThread) != pr.p.NSPID {
		t.Error("it does not know any more who launches graphs")
	}
	pr.do("kernels 1 20 1")
	s.Feed(0, got.emit)
	pr.do("kernels 1 30 1", "leave")
	eventually(t, "it has gone", func() bool { s.Feed(0, got.emit); return shutdownBy(s) == 0 })
	if !s.Departed(over, []uint32{pr.p.PID}) {
		t.Error("it has not departed")
	}
	if n := len(got.of(event.Kernel)); n != 50 {
		t.Errorf("%d kernels came while it left, want 50", n)
	}
	if d := detailOf(s, pr.p.PID); d != "" {
		t.Errorf("of an agent that has gone it is said %q", d)
	}
}

// TestWatchedAgainMeanwhile: a process that is watched again while its agent leaves gets another one after that, and
// what is known of its threads stays known.
func TestWatchedAgainMeanwhile(t *testing.T) {
	s, pr, _ := releasing(t, Options{})
	image, err := proc.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	s.begin(pr.p, image)
	eventually(t, "word of the first", func() bool { return strings.Contains(detailOf(s, pr.p.PID), "on its way out") })
	if st := stateOf(s, pr.p.PID); st != string(waiting) {
		t.Errorf("the second agent is %s", st)
	}
	pr.do("kernels 1 20 1", "leave")
	var got collector
	eventually(t, "the second agent",
		func() bool { s.Feed(0, got.emit); return stateOf(s, pr.p.PID) == string(running) })
	pr.do("kernels 1 30 1")
	s.Feed(0, got.emit)
	if n := len(got.of(event.Kernel)); n != 50 {
		t.Errorf("%d kernels of both agents, want 50", n)
	}
	s.mu.Lock()
	told := s.sessions[pr.p.ID()].ring.load32(ringGraphThread)
	s.mu.Unlock()
	if told != pr.p.NSPID {
		t.Errorf("the second agent is told that thread %d launches graphs, want %d", told, pr.p.NSPID)
	}
}

// slowInjector brings an agent in when it is let, whoever wants it no more.
type slowInjector struct {
	*producer
	begun, let chan struct{}
}

func (i *slowInjector) Inject(ctx context.Context, p *proc.Process, start start) (Entered, error) {
	i.begun <- struct{}{}
	<-i.let
	return i.producer.Inject(ctx, p, start)
}

// TestReleasedWhileAnAgentComes: one that comes when its process has just been released leaves again, which is awaited,
// and no other is injected at the same time.
func TestReleasedWhileAnAgentComes(t *testing.T) {
	pr := startProducer(t)
	in := &slowInjector{pr, make(chan struct{}, 2), make(chan struct{})} // a third one would hang
	s := newTestSource(t, Options{Inject: in, Slots: 1024})
	image, err := proc.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	s.begin(pr.p, image)
	<-in.begun
	s.Forget(pr.p)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Departed(over, []uint32{pr.p.PID}) {
		t.Error("it has departed before it came")
	}
	s.begin(pr.p, image)
	eventually(t, "word of the first", func() bool { return strings.Contains(detailOf(s, pr.p.PID), "on its way out") })
	if len(in.begun) != 0 {
		t.Error("two are injected at the same time")
	}
	in.let <- struct{}{}
	var got collector
	drainUntil := func(what string, ok func() bool) {
		t.Helper()
		eventually(t, what, func() bool { s.Feed(0, got.emit); return ok() })
	}
	drainUntil("the end of the first", func() bool { return len(in.begun) == 1 })
	if mode, _ := modeIn(pr); mode != modeQuit {
		t.Errorf("mode %d of the first, want quit", mode)
	}
	in.let <- struct{}{}
	drainUntil("the second", func() bool { return stateOf(s, pr.p.PID) == string(running) })
}

// TestNotAwaitedForEver: an agent that does not leave in time is said to be there still, and taken over where its
// process is watched again.
func TestNotAwaitedForEver(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	s, pr, _ := releasing(t, Options{Log: zap.New(core)})
	s.mu.Lock()
	s.retired[0].shutdown.by = 1 // long ago
	s.mu.Unlock()
	var got collector
	s.Feed(0, got.emit)
	if shutdownBy(s) != 0 || logs.FilterMessageSnippet("did not end in time").Len() != 1 ||
		!strings.Contains(detailOf(s, pr.p.PID), "had not left") {
		t.Errorf("%d agents leave; it is said %+v and %v", shutdownBy(s), s.Agents(), logs.All())
	}
	s.opts.Inject = noInjector{t}
	join(t, s, pr)
	if mode, _ := modeIn(pr); mode != modeWindows {
		t.Errorf("mode %d, want windows", mode)
	}
	pr.do("leave")
}

// TestCloseAwaitsThoseReleased: an agent that leaves already is waited for, too.
func TestCloseAwaitsThoseReleased(t *testing.T) {
	s, pr, _ := releasing(t, Options{Deadline: time.Hour})
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	pr.do("kernels 1 20 1")
	select {
	case err := <-closed:
		t.Fatal("it is not waited for: ", err)
	default:
	}
	pr.do("leave")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	var got collector
	s.Feed(0, got.emit)
	if n := len(got.of(event.Kernel)); n != 20 || len(s.remaining()) != 0 {
		t.Errorf("%d kernels, want 20; agents stay in %v", n, s.remaining())
	}
}

// TestProgramEndsWhileItsAgentLeaves: nobody waits for an agent whose program is no more.
func TestProgramEndsWhileItsAgentLeaves(t *testing.T) {
	for _, how := range []string{"exec now", "die"} {
		s, pr, _ := releasing(t, Options{})
		pr.do("kernels 1 20 1")
		pr.send(how)
		if how == "die" {
			_ = pr.cmd.Wait()
		} else {
			pr.until("hello")
		}
		s.Forget(pr.p)
		var got collector
		s.Feed(0, got.emit)
		if n := len(got.of(event.Kernel)); n != 20 || shutdownBy(s) != 0 || len(s.remaining()) != 0 {
			t.Errorf("%s: %d kernels, want 20; %d agents leave, %v stay", how, n, shutdownBy(s), s.remaining())
		}
	}
}

// TestReleasedThreadsThatAreAlwaysInside: they are kept out of the driver until the agent has gone, and its last window
// ends well.
func TestReleasedThreadsThatAreAlwaysInside(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	opts := simOptions(t, Continuous)
	opts.Gate, opts.Log = gates(t), zap.New(core)
	v := cudasim.Start(
		t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_LOCK=1", "CUDASIM_KERNEL_SLOTS=8"}},

		"thread 4 nowait { stream-new nonblocking; repeat 100000000 { launch 1 kernel=k_us1000 stream=1; ssync "+
			"stream=1 } }; until { sleep 50ms }",
	)
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	s.Observe([]event.Event{waitingCall(p.PID, p.PID), waitingCall(p.PID, secondThread(t, p.PID))})
	var got collector
	drain(t, s, &got, "kernels", func() bool { return len(got.of(event.Kernel)) > 0 })
	s.Forget(p)
	drain(t, s, &got, "an agent that has gone", func() bool { return shutdownBy(s) == 0 })
	said := logs.FilterMessage("an agent is done with").All()
	if len(said) != 1 || said[0].ContextMap()["gone"] != true || said[0].ContextMap()["end"] != "finalized" {
		t.Errorf("want an agent that has gone after a window that ended well: %+v", said)
	}
	eventually(t, "the end of its thread", func() bool { return !hasThread(t, v.PID, "inferscope") })
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}
