package gpu

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// notedLaunches remembers what it is told.
type notedLaunches struct {
	mu    sync.Mutex
	modes []cudaapi.LaunchMode
}

func (n *notedLaunches) SetLaunches(_ proc.ID, mode cudaapi.LaunchMode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.modes = append(n.modes, mode)
}

func (n *notedLaunches) LaunchWindows(pid uint32, from, _ uint64) []recording.GPUWindow {
	return []recording.GPUWindow{{PID: pid, From: from, To: from + 1, Calls: true, End: "detached"}}
}

func (n *notedLaunches) last() cudaapi.LaunchMode {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.modes) == 0 {
		return "none"
	}
	return n.modes[len(n.modes)-1]
}

func (n *notedLaunches) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.modes)
}

// newTestSource makes a source that is closed and read to its end when the test ends.
func newTestSource(t *testing.T, opts Options) *Source {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.Feed(0, func([]event.Event) {})
	})
	return s
}

// join begins a session with pr's process, which maps no libcuda, and waits for its agent.
func join(t *testing.T, s *Source, pr *producer) {
	t.Helper()
	image, err := proc.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	s.begin(pr.p, image)
	eventually(t, "the agent runs", func() bool { return stateOf(s, pr.p.PID) == string(running) })
}

func stateOf(s *Source, pid uint32) string {
	for _, a := range s.Agents() {
		if a.PID == pid {
			return a.State
		}
	}
	return "none"
}

// modeIn asks the producer what it is told to do, and how long ago the daemon was heard.
func modeIn(pr *producer) (mode, age uint32) {
	pr.t.Helper()
	pr.send("mode")
	if _, err := fmt.Sscanf(pr.until("mode"), "mode %d %d", &mode, &age); err != nil {
		pr.t.Fatal(err)
	}
	pr.until("done")
	return mode, age
}

// TestAgentThatIsLateWithItsAnswer: what an agent hands over only at its second try belongs to the recording, and an
// answer that nobody awaits any more belongs to the next one.
func TestAgentThatIsLateWithItsAnswer(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	var got collector
	covered := func(what string) {
		t.Helper()
		kernels := got.of(event.Kernel)
		last := kernels[len(kernels)-1].End()
		g, _, _ := s.GPU(pr.p.Root, []uint32{pr.p.PID}, pr.p.Born, clock.Monotonic(), nil, nil)
		i := slices.IndexFunc(g.Windows, func(w recording.GPUWindow) bool { return w.Activity })
		if i < 0 || g.Windows[i].To < last {
			t.Errorf("%s: the windows are %+v, the last kernel ended at %d", what, g.Windows, last)
		}
	}
	pr.do("name 2 0 _Z4gemmv", "open", "late 1200", "kernels 1 10 2")
	s.Flush(t.Context(), []uint32{pr.p.PID})
	s.Feed(0, got.emit)
	covered("an answer at the second try")

	over, cancel := context.WithCancel(t.Context())
	cancel()
	pr.do("late 50", "kernels 1 10 2")
	s.Feed(0, got.emit)
	s.Flush(over, []uint32{pr.p.PID})
	ring := s.latest()[0].ring
	eventually(t, "the answer", func() bool { return ring.answered(uint32(ring.load64(ringFlush))) })
	s.Flush(over, []uint32{pr.p.PID})
	covered("an answer that came later")
	if !ring.answered(1) {
		t.Error("the answer to a later question does not count for the first one")
	}
}

func TestSessionFromStartToEnd(t *testing.T) {
	pr := startProducer(t)
	launches := &notedLaunches{}
	s := newTestSource(t, Options{Inject: pr, Launches: launches, Slots: 1024})
	join(t, s, pr)
	if launches.last() != cudaapi.LaunchesOff {
		t.Errorf("launches are probed beside an agent: %v", launches.modes)
	}
	if launches.modes[0] != cudaapi.LaunchesWindows {
		t.Errorf("launches were not probed before the agent came: %v", launches.modes)
	}
	pr.do("name 1 2 H200", "name 2 0 _Z4gemmv", "device", "open", "kernels 2 100 2")
	var got collector
	s.Flush(context.Background(), []uint32{pr.p.PID})
	s.Feed(0, got.emit)
	kernels := got.of(event.Kernel)
	if len(kernels) != 200 {
		t.Fatalf("%d kernels, want 200", len(kernels))
	}
	from, now := pr.p.Born, clock.Monotonic()
	g, at, _ := s.GPU(pr.p.Root, []uint32{pr.p.PID}, from, now, []int32{kernels[0].Ret}, nil)
	if g.Mode != "windows" || len(g.Agents) != 1 || g.Agents[0].State != "running" || g.Agents[0].Stopped != 123_000 ||
		g.Agents[0].CUPTI != "/usr/lib/libcupti.so.13" ||
		g.Agents[0].Version != 130001 {
		t.Errorf("agents are %+v in mode %s", g.Agents, g.Mode)
	}
	if len(g.Kernels) != 1 || g.Kernels[0].Name != "gemm()" || at[kernels[0].Ret] != 1 {
		t.Errorf("kernels are %+v at %v", g.Kernels, at)
	}
	if len(g.Devices) != 1 || g.Devices[0].Name != "H200" || g.Devices[0].SMs != 132 || g.Devices[0].Major != 9 ||
		g.Devices[0].Minor != 0 {
		t.Errorf("devices are %+v", g.Devices)
	}
	open := g.Windows[slices.IndexFunc(g.Windows, func(w recording.GPUWindow) bool { return w.Activity })]
	if open.End != "open" || open.To < kernels[199].End() || open.To > now || !open.Calls {
		t.Errorf("the open window is %+v, the last kernel ended at %d", open, kernels[199].End())
	}
	pr.do("window 1", "window 2")
	s.Feed(0, got.emit)
	g, _, _ = s.GPU(pr.p.Root, []uint32{pr.p.PID}, from, clock.Monotonic(), nil, nil)
	var ends []string
	for _, w := range g.Windows {
		ends = append(ends, w.End)
	}
	slices.Sort(ends)
	if !slices.Equal(ends, []string{"detached", "disabled", "finalized"}) {
		t.Errorf("windows ended %v", ends)
	}
	if g.Agents[0].Dropped != 6 {
		t.Errorf("%d dropped, want 6", g.Agents[0].Dropped)
	}
	eventually(t, "the slower graphs are told of", func() bool { return s.Agents()[0].Slower != "" })
}

// TestHeartbeatsSurviveSlowDrain: while Feed hangs in its consumer, agents go on hearing the daemon.
func TestHeartbeatsSurviveSlowDrain(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	pr.do("sync")
	hang, hanging := make(chan struct{}), make(chan struct{})
	go s.Feed(0, func([]event.Event) { close(hanging); <-hang })
	<-hanging
	time.Sleep(2 * time.Second)
	_, age := modeIn(pr)
	close(hang)
	if age >= 1500 {
		t.Errorf("the agent heard of the daemon %d ms ago", age)
	}
	if st := stateOf(s, pr.p.PID); st != "running" {
		t.Errorf("the agent is %s", st)
	}
}

func TestContinuousForAStretch(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	if mode, _ := modeIn(pr); mode != modeWindows {
		t.Fatalf("mode %d, want windows", mode)
	}
	pr.do("open")
	end1, err := s.Continuous(t.Context(), pr.p.Root)
	if err != nil {
		t.Fatal(err)
	}
	end2, _ := s.Continuous(t.Context(), pr.p.Root)
	if mode, _ := modeIn(pr); mode != modeContinuous {
		t.Errorf("mode %d, want continuous", mode)
	}
	end1()
	if mode, _ := modeIn(pr); mode != modeContinuous {
		t.Errorf("mode %d although somebody else still records", mode)
	}
	end2()
	if mode, _ := modeIn(pr); mode != modeWindows {
		t.Errorf("mode %d after the end, want windows", mode)
	}
	off, _ := New(Options{Mode: Off})
	if _, err := off.Continuous(t.Context(), 1); err == nil {
		t.Error("a daemon with GPU activity off records it")
	}
	_ = off.Close()
}

// TestCloseEndsAgents: the agent is told to quit, waited for, and what it wrote last comes out.
func TestCloseEndsAgents(t *testing.T) {
	pr := startProducer(t)
	s, err := New(Options{Inject: pr, Slots: 1024})
	if err != nil {
		t.Fatal(err)
	}
	join(t, s, pr)
	pr.do("sync")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if mode, _ := modeIn(pr); mode != modeQuit {
		t.Errorf("mode %d, want quit", mode)
	}
	if left := s.remaining(); len(left) != 0 {
		t.Errorf("agents stayed in %v", left)
	}
	var got collector
	s.Feed(0, got.emit)
	if len(got.events) != 1 {
		t.Errorf("%d events after the end, want 1", len(got.events))
	}
}

// TestEndOfProcess: what a process wrote before it ended is read, and still served.
func TestEndOfProcess(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	pr.do("name 1 0 gemm", "kernels 1 50 1", "window 1", "stuck")
	pr.send("die")
	_ = pr.cmd.Wait()
	s.Forget(pr.p)
	var got collector
	s.Feed(0, got.emit)
	if n := len(got.of(event.Kernel)); n != 50 {
		t.Errorf("%d kernels of a process that has ended, want 50", n)
	}
	g, _, _ := s.GPU(pr.p.Root, []uint32{pr.p.PID}, pr.p.Born, clock.Monotonic(), []int32{1}, nil)
	if len(g.Agents) != 1 || g.Agents[0].State != "gone" || len(g.Windows) != 1 || len(g.Kernels) != 1 {
		t.Errorf("served afterwards: %+v", g)
	}
	if len(s.retired) != 0 || len(s.sessions) != 0 {
		t.Error("its ring is still held")
	}
}

// TestTakesOverWhatIsThere: the next daemon uses the agent that the last one left, and goes
// on where that one stopped reading.
func TestTakesOverWhatIsThere(t *testing.T) {
	pr := startProducer(t)
	pr.ring(1024, "")
	pr.do("closefd", "sync")
	launches := &notedLaunches{}
	s := newTestSource(t, Options{Inject: noInjector{t}, Launches: launches})
	join(t, s, pr)
	var got collector
	s.Feed(0, got.emit)
	if len(got.events) != 1 {
		t.Errorf("%d events, want the one that was not read yet", len(got.events))
	}
	// A second daemon hears the first one beat, and leaves the agent alone.
	other := newTestSource(t, Options{Inject: noInjector{t}})
	image, _ := proc.Image(pr.p)
	other.begin(pr.p, image)
	eventually(t, "the second daemon refuses", func() bool { return stateOf(other, pr.p.PID) == string(refused) })
	if d := other.Agents()[0].Detail; !strings.Contains(d, "another daemon") {
		t.Errorf("it says %q", d)
	}
}

// noInjector fails the test where something is injected.
type noInjector struct{ t *testing.T }

func (n noInjector) Inject(context.Context, *proc.Process, start) (Entered, error) {
	n.t.Error("an agent is injected although one is there")
	return Entered{}, errRefused
}

// Wait has nothing to wait for.
func (n noInjector) Wait() error { return nil }

// failing is an injector that always fails alike.
type failing struct {
	err   error
	mu    sync.Mutex
	calls int
}

func (f *failing) Inject(ctx context.Context, _ *proc.Process, _ start) (Entered, error) {
	f.mu.Lock()
	f.calls++
	calls := f.calls
	f.mu.Unlock()
	if calls > 2 {
		<-ctx.Done()
	}
	return Entered{}, f.err
}

// Wait has nothing to wait for.
func (f *failing) Wait() error { return nil }

func TestRefusedAndIdle(t *testing.T) {
	pr := startProducer(t)
	image, _ := proc.Image(pr.p)
	launches := &notedLaunches{}
	no := &failing{err: fmt.Errorf("%w: a seccomp filter forbids memfd_create", errRefused)}
	s := newTestSource(t, Options{Inject: no, Launches: launches})
	s.begin(pr.p, image)
	eventually(t, "it is refused", func() bool { return stateOf(s, pr.p.PID) == string(refused) })
	if no.calls != 1 || launches.last() != cudaapi.LaunchesWindows ||
		!strings.Contains(s.Agents()[0].Detail, "seccomp") {
		t.Errorf("%d tries, launches %q, says %q", no.calls, launches.last(), s.Agents()[0].Detail)
	}
	if st := s.State(); st.State != "unavailable" {
		t.Errorf("state is %+v", st)
	}
	if l := s.Losses(); len(l) != 1 || l[0].Reason != "agent_refused" {
		t.Errorf("losses are %+v", l)
	}
	idle := &failing{err: errIdle}
	s2 := newTestSource(t, Options{Inject: idle, Mode: Continuous, Launches: launches})
	s2.begin(pr.p, image)
	eventually(t, "it is tried again", func() bool { idle.mu.Lock(); defer idle.mu.Unlock(); return idle.calls >= 2 })
	if st := stateOf(s2, pr.p.PID); st != string(waiting) || launches.last() != cudaapi.LaunchesOn {
		t.Errorf("an idle process is %s, launches %q", st, launches.last())
	}
}

// TestProfilerTakesCUPTI: launches are probed while the agent cannot use CUPTI.
func TestProfilerTakesCUPTI(t *testing.T) {
	pr := startProducer(t)
	launches := &notedLaunches{}
	s := newTestSource(t, Options{Inject: pr, Launches: launches, Slots: 1024})
	join(t, s, pr)
	pr.do("refuse")
	eventually(t, "it is refused", func() bool { return stateOf(s, pr.p.PID) == string(refused) })
	if launches.last() != cudaapi.LaunchesWindows || !strings.Contains(s.Agents()[0].Detail, "another profiler") {
		t.Errorf("launches %q, says %q", launches.last(), s.Agents()[0].Detail)
	}
}

// TestExecBeginsANewSession: the program's agent is gone with it, its counts are not.
func TestExecBeginsANewSession(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	pr.do("kernels 1 20 1")
	pr.send("exec now")
	pr.until("hello")
	if err := s.Follow(pr.p); err != nil {
		t.Fatal(err)
	}
	var got collector
	s.Feed(0, got.emit)
	if n := len(got.of(event.Kernel)); n != 20 {
		t.Errorf("%d kernels of the first program, want 20", n)
	}
	join(t, s, pr)
	pr.do("kernels 1 30 1")
	s.Feed(0, got.emit)
	if a := s.Agents(); len(a) != 1 || a[0].Kernels != 50 {
		t.Errorf("agents are %+v, want one that saw 50 kernels", a)
	}
}

// TestBeginsWithLibcuda only: a process without it is let alone.
func TestProcessWithoutCUDAIsLetAlone(t *testing.T) {
	pr := startProducer(t)
	launches := &notedLaunches{}
	s := newTestSource(t, Options{Inject: noInjector{t}, Launches: launches})
	if err := s.Follow(pr.p); err != nil {
		t.Fatal(err)
	}
	if st := stateOf(s, pr.p.PID); st != "none" || launches.count() != 0 {
		t.Errorf("its agent is %s, launches were told %d times", st, launches.count())
	}
}
