package gpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// gates makes gates as the daemon does.
func gates(t *testing.T) func(p *proc.Process, kind quiesce.Kind) (*quiesce.Gate, error) {
	t.Helper()
	mode, err := uprobe.Detect()
	if err != nil {
		t.Fatal(err)
	}
	return quiesce.Options{Mode: mode}.Open
}

// waitingCall is a call that can wait, and launches no graph.
func waitingCall(pid, tid uint32) event.Event {
	return event.Event{TS: clock.Monotonic(), Kind: event.Call, Flags: event.Timed, PID: pid, TID: tid, Func: 1<<16 - 1}
}

// holdings are what the agent's handler says of the threads that it held.
type holdings struct {
	threads   [holds]uint32 // by time: up to 1, 2, 5, 10 ms, and longer
	n         uint32
	sum, most time.Duration
}

// heldIn returns how threads of p were held so far.
func heldIn(s *Source, p *proc.Process) (h holdings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.sessions[p.ID()]
	if q == nil || q.ring == nil {
		return h
	}
	for i := range h.threads {
		h.threads[i] = q.ring.load32(ringHolds + 4*i)
		h.n += h.threads[i]
	}
	h.sum, h.most = time.Duration(q.ring.load64(ringHoldNS)), time.Duration(q.ring.load64(ringHoldLongest))
	return h
}

// TestGate: while an agent waits to enter CUPTI, each thread is held at its next calls, for 7 ms together. When it is
// in nobody is.
func TestGate(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 150*time.Millisecond, gates(t)
	slow := cudasim.Options{
		Level: "counts",
		Env:   []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=150000000", "CUDASIM_KERNEL_SLOTS=8"},
	}
	const threads = 3
	v := cudasim.Start(
		t,
		slow,
		"thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; "+
			"sleep 300us } }; until { sleep 50ms }",
	)
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	s.Observe(
		[]event.Event{waitingCall(p.PID, p.PID), waitingCall(p.PID, secondThread(t, p.PID))},
	) // two threads make calls
	var got collector
	drain(t, s, &got, "threads that are held", func() bool { return heldIn(s, p).n > 0 })
	drain(t, s, &got, "two windows", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 2 })
	h, windows := heldIn(s, p), s.Agents()[0].Windows+1
	t.Logf("%+v in %d windows", h, windows)
	if uint64(h.n) > 2*3*threads*windows || h.sum == 0 {
		t.Errorf("%+v; want each of %d threads at most 3 times in each of %d waits", h, threads, 2*windows)
	}
	before := v.Truth().Count("cuStreamSynchronize")
	drain(t, s, &got, "calls after it", func() bool { return v.Truth().Count("cuStreamSynchronize") > before+100 })
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestCallsHaveProbesInWindowsOnly: the calls of a program have the gate's probes while its threads are held, and none
// between windows, when launches of graphs alone are probed.
func TestCallsHaveProbesInWindowsOnly(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 200*time.Millisecond, 600*time.Millisecond, gates(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"},
		"thread 2 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; "+
			"sleep 300us } }; until { sleep 50ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	probed := func() int { return cudasim.ChangedText(t, v.PID, "libcuda.so") }
	var got collector
	for range 2 {
		drain(t, s, &got, "probes on calls in a window", func() bool {
			r := ringOf(s, p)
			return r != nil && r.load32(ringArmed) != 0 && probed() > 20
		})
		drain(t, s, &got, "calls without probes", func() bool { n := probed(); return n > 0 && n < 8 })
	}
}

// TestOneThreadIsNotHeldOnTheWayIn: one thread leaves the driver between its calls, so nothing is put in its way,
// however long CUPTI takes to let the agent in.
func TestOneThreadIsNotHeldOnTheWayIn(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 150*time.Millisecond, gates(t)
	v := cudasim.Start(t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=1500000000"}},
		"until { launch 3 kernel=k_us5; sync; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	s.Observe([]event.Event{waitingCall(p.PID, p.PID)})
	var got collector
	drain(t, s, &got, "two windows", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 2 })
	if h := heldIn(s, p); h.sum > 500*time.Millisecond {
		t.Errorf("held for %v of more than 3 s in which CUPTI was waited for", h.sum)
	}
}

// TestNoWindowWithoutAGate: where launches of graphs cannot be held, CUPTI is not let in.
func TestNoWindowWithoutAGate(t *testing.T) {
	pr := startProducer(t)
	image, err := proc.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	none := func(*proc.Process, quiesce.Kind) (*quiesce.Gate, error) {
		return nil, errors.New("the verifier does not like it")
	}
	s := newTestSource(t, Options{Inject: pr, Slots: 1024, Mode: Continuous, Watch: 50 * time.Millisecond, Gate: none})
	s.begin(pr.p, image)
	eventually(t, "word of it",
		func() bool { return strings.Contains(detailOf(s, pr.p.PID), "the verifier does not like it") })
	if st := stateOf(s, pr.p.PID); st != string(refused) {
		t.Errorf("it is %s", st)
	}
	time.Sleep(200 * time.Millisecond) // of which the first 50 ms would be enough
	if mode, _ := modeIn(pr); mode != modeOff {
		t.Errorf("mode %d, want %d", mode, modeOff)
	}
}

// TestLaunchesAreHeld: threads that nobody has seen before launch graphs all of the time. While CUPTI is taken out they
// are held: the simulated target dies of a launch then, as the real one does.
func TestLaunchesAreHeld(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate, opts.Watch = 20*time.Millisecond,
		60*time.Millisecond,
		gates(t),
		300*time.Millisecond
	v := cudasim.Start(t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_FINALIZE_NS=5000000"}},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 2 nowait { repeat 100000000 { launch 1 kernel=k_us5; sync; sleep 1ms } }",
		"until { thread 1 { graph-launch stream=1; ssync stream=1 }; sleep 20ms }")
	s := newTestSource(t, opts)
	s.paces.most = 1 << 30
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "launches that are held", func() bool { return heldIn(s, p).n > 2 })
	windows := s.Agents()[0].Windows
	drain(t, s, &got, "windows after them", func() bool { return s.Agents()[0].Windows > windows+5 })
	if n := v.Truth().FailedCount("cuLaunchKernel") + v.Truth().FailedCount("cuGraphLaunch"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestFlushHoldsWhoLaunchesGraphs: a flush in the midst of a recording holds the thread that launches graphs, which
// nothing holds where it is to finalize itself. The simulated CUPTI kills a thread that is in the midst of its work
// then, as the real one does, and each call has 3 ms of it in one of 32.
func TestFlushHoldsWhoLaunchesGraphs(t *testing.T) {
	opts := simOptions(t, Continuous)
	opts.Gate = gates(t)
	v := cudasim.Start(
		t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_WORK_NS=3000000"}},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 2 nowait { stream-new nonblocking; repeat 1000000000 { launch 3 kernel=k_us5 stream=1; ssync "+
			"stream=1; spin 30us } }",
		"until { graph-launch stream=1; ssync stream=1; spin 50us }",
	)
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "a window",
		func() bool { r := ringOf(s, p); return r != nil && r.load32(ringState) == stateOpen })
	r := ringOf(s, p)
	for range 20 {
		number := r.flush()
		drain(t, s, &got, "a flush, or a death", func() bool { return !p.Alive() || r.answered(number) })
	}
	before := v.Truth().Count("cuGraphLaunch")
	drain(t, s, &got, "graphs after it, or a death",
		func() bool { return !p.Alive() || v.Truth().Count("cuGraphLaunch") > before+100 })
	if !p.Alive() {
		t.Errorf("the target died after %+v", heldIn(s, p))
	}
}

// naps lets a thread sleep for 500 us at a time on a CPU until stop is closed, and returns by how much later than that
// it woke up, on average and at most.
func naps(t *testing.T, cpu int, stop chan struct{}) func() (mean, most time.Duration) {
	t.Helper()
	type lateness struct {
		n         int
		sum, most time.Duration
	}
	done := make(chan lateness)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		set := unix.CPUSet{}
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		var l lateness
		for {
			select {
			case <-stop:
				done <- l
				return
			default:
			}
			const nap = 500 * time.Microsecond
			began, ts := time.Now(), unix.NsecToTimespec(nap.Nanoseconds())
			_ = unix.Nanosleep(&ts, nil)
			late := time.Since(began) - nap
			l.n, l.sum, l.most = l.n+1, l.sum+late, max(l.most, late)
		}
	}()
	return func() (time.Duration, time.Duration) {
		l := <-done
		return l.sum / time.Duration(max(1, l.n)), l.most
	}
}

// TestRingStallsNobody: whatever a target writes into its own ring, its launches of graphs hold up no other task. With
// gates that believed the ring, and held a thread by spinning in the kernel, a task on the same CPU woke up 150 ms late
// on average.
func TestRingStallsNobody(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 20*time.Millisecond, 60*time.Millisecond, gates(t)
	v := cudasim.Start(
		t,
		cudasim.Options{Level: "counts"},
		"stream-new nonblocking; graph 1 stream=1 kernel=n_us1",
		"thread 2 nowait { stream-new nonblocking; repeat 1000000000 { graph-launch stream=1 } }; until { "+
			"graph-launch stream=1 }",
	)
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "an agent", func() bool { return stateOf(s, p.PID) != string(waiting) && ringOf(s, p) != nil })
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		set := unix.CPUSet{}
		set.Set(0)
		if err := errors.Join(
			unix.SchedSetaffinity(tid, &set), unix.Setpriority(unix.PRIO_PROCESS, tid, 19),
		); err != nil {
			t.Fatal(err)
		}
	}
	r, stop := ringOf(s, p), make(chan struct{})
	late := naps(t, 0, stop)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		now := clock.Monotonic()
		for i, at := range []int{ringOpening, ringLeaving, ringFinalizing} {
			r.store64(at, now-uint64(i)*1e6)
		}
		r.store32(ringAsked, askOut)
		r.store32(ringAsk, r.load32(ringAsk)+1)
		s.Feed(0, got.emit)
		time.Sleep(time.Millisecond)
	}
	close(stop)
	mean, most := late()
	t.Logf("a task on that CPU woke up %v late on average, %v at most", mean, most)
	if mean > 20*time.Millisecond {
		t.Errorf("a task on that CPU woke up %v late on average", mean)
	}
}

func ringOf(s *Source, p *proc.Process) *ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.sessions[p.ID()]; q != nil {
		return q.ring
	}
	return nil
}

// hasGates reports whether a session has an agent and both gates. The caller holds the source's lock.
func hasGates(q *session) bool {
	return q != nil && q.ring != nil && q.gates[quiesce.Launches].gate != nil && q.gates[quiesce.Calls].gate != nil
}

// TestGatesOfAnAgentLeftBehind: an agent that another daemon has left may ask for gates before it is told which signals
// hold threads. No gate is armed before they are chosen, and the agent is told of none.
func TestGatesOfAnAgentLeftBehind(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.Gate, opts.Watch = gates(t), time.Hour
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "until { launch 5 kernel=k_us5; sync; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "gates that hold threads", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		q := s.sessions[p.ID()]
		if !hasGates(q) {
			return false
		}
		q.arming.launches, q.arming.calls = 0, 0
		q.ring.ungated()
		q.ring.store32(ringAsked, askAll)
		q.ring.store32(ringAsk, 5)
		s.serve(q, clock.Monotonic())
		gated := q.ring.load32(ringGated) != 0
		if gated && q.arming.calls == 0 {
			t.Error("the agent is told that gates hold threads, and they send no signal")
		}
		return gated
	})
}

// TestGatesStayForAFinalize: gates that are to go stay while an agent relies on them, and it hears that they go.
func TestGatesStayForAFinalize(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.Gate, opts.Watch = gates(t), time.Hour
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "until { launch 5 kernel=k_us5; sync; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "gates", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return hasGates(s.sessions[p.ID()])
	})
	s.mu.Lock()
	q := s.sessions[p.ID()]
	q.ring.store64(ringFinalizing, clock.Monotonic()) // no window is open: the agent itself writes nothing there
	q.ring.store32(ringArmed, 7)
	s.dropGates(q)
	if armed := q.ring.load32(ringArmed); armed != 0 {
		t.Errorf("the agent is told that ask %d is armed", armed)
	}
	s.mu.Unlock()
	var over atomic.Bool
	go func() {
		time.Sleep(100 * time.Millisecond) // in which they could go
		over.Store(true)
		s.mu.Lock()
		defer s.mu.Unlock()
		q.ring.store64(ringFinalizing, 0)
	}()
	s.gates.Wait()
	if !over.Load() {
		t.Error("the gates have gone while the agent relied on them")
	}
}
