package gpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/clock"
	"github.com/inferscope/inferscope/internal/cudasim"
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/gate"
	"github.com/inferscope/inferscope/internal/probe"
	"github.com/inferscope/inferscope/internal/target"
)

// gates makes gates as the daemon does, also as it would before Linux 5.17.
func gates(t *testing.T, walks bool) func(p *target.Process, kind gate.Kind, words uint64) (*gate.Gate, error) {
	t.Helper()
	mode, err := probe.Detect()
	if err != nil {
		t.Fatal(err)
	}
	return gate.Options{Mode: mode, Walks: walks}.Open
}

// inBothWays runs a test as on this kernel, and as before Linux 5.17.
func inBothWays(t *testing.T, test func(t *testing.T, walks bool)) {
	t.Helper()
	if !gate.Detect() {
		t.Run("loop", func(t *testing.T) { test(t, false) })
	}
	t.Run("walks", func(t *testing.T) { test(t, true) })
}

// waitingCall is a call that can wait, and launches no graph.
func waitingCall(pid, tid uint32) event.Event {
	return event.Event{TS: clock.Monotonic(), Kind: event.Call, Flags: event.Timed, PID: pid, TID: tid, Func: 1<<16 - 1}
}

// keptOut is what a gate of p's session has done; false where there is none.
func keptOut(t *testing.T, s *Source, p *target.Process, kind gate.Kind) (gate.Count, bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.sessions[p.ID()]
	if q == nil || q.gates[kind].gate == nil {
		return gate.Count{}, false
	}
	c, err := q.gates[kind].gate.Count()
	if err != nil {
		t.Fatal(err)
	}
	return c, true
}

// TestGate: while an agent waits to be let in, each thread is held at its next call, once in each try; when it is in nobody is.
func TestGate(t *testing.T) { inBothWays(t, holds) }

func holds(t *testing.T, walks bool) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 150*time.Millisecond, gates(t, walks)
	slow := cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=2500000000", "CUDASIM_KERNEL_SLOTS=8"}}
	const threads = 3
	v := cudasim.Start(t, slow, "thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 300us } }; until { sleep 50ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	s.Observe([]event.Event{waitingCall(p.PID, p.PID), waitingCall(p.PID, secondThread(t, p.PID))}) // two threads make calls
	var got collector
	drain(t, s, &got, "threads that are held", func() bool { c, _ := keptOut(t, s, p, gate.Calls); return c.Held > 0 })
	drain(t, s, &got, "two windows", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 2 })
	first, _ := keptOut(t, s, p, gate.Calls)
	// 2.5 s are 8 tries in the first 0.64 s, and two after that.
	if first.Held > threads*11 || first.Longest > first.Sum || first.Sum == 0 {
		t.Errorf("%+v; want each of %d threads at most 11 times", first, threads)
	}
	before := v.Truth().Count("cuStreamSynchronize")
	drain(t, s, &got, "calls after it", func() bool { return v.Truth().Count("cuStreamSynchronize") > before+100 })
	if c, there := keptOut(t, s, p, gate.Calls); !there || c != first {
		t.Errorf("%+v, and %+v later: threads are held though nobody waits", first, c)
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// pin keeps all threads of p on one CPU.
func pin(t *testing.T, p *target.Process, cpu int) {
	t.Helper()
	set := unix.CPUSet{}
	set.Set(cpu)
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		err = errors.Join(err, unix.SchedSetaffinity(tid, &set))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wakeups lets a real-time thread sleep for 500 us at a time on a CPU. The function that it returns ends that and says how often it
// slept, and how often for 3 ms more than it wanted.
func wakeups(t *testing.T, cpu int) func() (all, late int) {
	t.Helper()
	stop, done, started := make(chan struct{}), make(chan [2]int), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		set := unix.CPUSet{}
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		if err == nil {
			err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		}
		started <- err
		const nap = 500 * time.Microsecond
		for n := [2]int{}; ; n[0]++ {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			began, ts := time.Now(), unix.NsecToTimespec(nap.Nanoseconds())
			_ = unix.Nanosleep(&ts, nil)
			if time.Since(began) > nap+3*time.Millisecond {
				n[1]++
			}
		}
	}()
	if err := <-started; err != nil {
		t.Skipf("no real-time thread: %v", err)
	}
	return func() (int, int) {
		close(stop)
		n := <-done
		return n[0], n[1]
	}
}

// TestGateGivesWay: a real-time thread, as the one that stops others is, does not wait for a CPU on which a thread is held for up to 8 ms.
func TestGateGivesWay(t *testing.T) { inBothWays(t, givesWay) }

func givesWay(t *testing.T, walks bool) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 150*time.Millisecond, gates(t, walks)
	slow := cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=2500000000", "CUDASIM_KERNEL_SLOTS=8"}}
	v := cudasim.Start(t, slow, "thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 300us } }; until { sleep 50ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	pin(t, p, 0)
	s.Observe([]event.Event{waitingCall(p.PID, p.PID), waitingCall(p.PID, secondThread(t, p.PID))}) // two threads make calls
	ended := wakeups(t, 0)
	var got collector
	drain(t, s, &got, "a window", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 1 })
	all, late := ended()
	held, _ := keptOut(t, s, p, gate.Calls)
	t.Logf("%d naps, %d of them too long; %+v", all, late, held)
	// A kernel that preempts itself lets it run, and the hold go on; in a virtual machine naps are too long by themselves.
	if n := int(held.Held); n < 3 || (late > n/3 && held.Sum > time.Duration(n)*2*time.Millisecond) {
		t.Errorf("of %d naps %d were too long, while threads were held: %+v", all, late, held)
	}
}

// TestNoGateForOneThread: one thread leaves the driver between its calls, so nothing is put in its way, however long CUPTI takes.
func TestNoGateForOneThread(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period = 50*time.Millisecond, 150*time.Millisecond
	put := gates(t, gate.Detect())
	opts.Gate = func(p *target.Process, kind gate.Kind, words uint64) (*gate.Gate, error) {
		if kind == gate.Calls {
			t.Error("a gate for all calls is asked for")
		}
		return put(p, kind, words)
	}
	v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=1500000000"}}, "until { launch 3 kernel=k_us5; sync; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	s.Observe([]event.Event{waitingCall(p.PID, p.PID)})
	var got collector
	drain(t, s, &got, "two windows", func() bool { a := s.Agents(); return len(a) > 0 && a[0].Windows >= 2 })
}

// TestNoWindowWithoutAGate: where launches of graphs cannot be held, CUPTI is not let in.
func TestNoWindowWithoutAGate(t *testing.T) {
	pr := startProducer(t)
	image, err := target.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	none := func(*target.Process, gate.Kind, uint64) (*gate.Gate, error) {
		return nil, errors.New("the verifier does not like it")
	}
	s := newTestSource(t, Options{Inject: pr, Slots: 1024, Mode: Continuous, Watch: 50 * time.Millisecond, Gate: none})
	s.begin(pr.p, image)
	eventually(t, "word of it", func() bool { return strings.Contains(detailOf(s, pr.p.PID), "the verifier does not like it") })
	if st := stateOf(s, pr.p.PID); st != string(refused) {
		t.Errorf("it is %s", st)
	}
	time.Sleep(200 * time.Millisecond) // of which the first 50 ms would be enough
	if mode, _ := modeIn(pr); mode != modeOff {
		t.Errorf("mode %d, want %d", mode, modeOff)
	}
}

// TestRingAddress: the words that a gate reads lie where the target has mapped the agent's ring.
func TestRingAddress(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024})
	join(t, s, pr)
	s.mu.Lock()
	inode := s.sessions[pr.p.ID()].ring.inode
	s.mu.Unlock()
	at, err := ringAddress(pr.p, inode)
	if err != nil {
		t.Fatal(err)
	}
	magic := make([]byte, 4)
	if _, err := unix.ProcessVMReadv(int(pr.p.PID), []unix.Iovec{{Base: &magic[0], Len: 4}}, []unix.RemoteIovec{{Base: uintptr(at), Len: 4}}, 0); err != nil {
		t.Fatal(err)
	}
	if string(magic) != "INSA" {
		t.Errorf("at %#x is %q", at, magic)
	}
	if _, err := ringAddress(pr.p, inode+1); err == nil {
		t.Error("a ring that is not mapped has an address")
	}
}

// TestLaunchesAreHeld: threads that nobody has seen before launch graphs all of the time. While CUPTI is taken out they are held: the
// simulated target dies of a launch then, as the real one does.
func TestLaunchesAreHeld(t *testing.T) { inBothWays(t, holdsLaunches) }

func holdsLaunches(t *testing.T, walks bool) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate, opts.Watch = 20*time.Millisecond, 60*time.Millisecond, gates(t, walks), 300*time.Millisecond
	v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_FINALIZE_NS=5000000"}}, "stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"thread 2 nowait { repeat 100000000 { launch 1 kernel=k_us5; sync; sleep 1ms } }", "until { thread 1 { graph-launch stream=1; ssync stream=1 }; sleep 1ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "launches that are held", func() bool { c, _ := keptOut(t, s, p, gate.Launches); return c.Held > 2 })
	windows := s.Agents()[0].Windows
	drain(t, s, &got, "windows after them", func() bool { return s.Agents()[0].Windows > windows+5 })
	if n := v.Truth().FailedCount("cuLaunchKernel") + v.Truth().FailedCount("cuGraphLaunch"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}
