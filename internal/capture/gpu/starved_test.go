package gpu

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// startLooking starts a program in which nearly always a thread is inside of CUPTI, so that an agent that looks for a
// moment without one looks for as long as it may. It returns when there is an agent.
func startLooking(t *testing.T, got *collector) (*Source, *proc.Process, *cudasim.Victim, int) {
	t.Helper()
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 10*time.Millisecond, 20*time.Millisecond, gates(t)
	v := cudasim.Start(
		t,
		cudasim.Options{
			Level: "counts",
			Env:   []string{"CUDASIM_CUPTI_WORK_NS=200000000", "CUDASIM_KERNEL_SLOTS=8"},
		},
		"thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync "+
			"stream=1; sleep 300us } }; until { sleep 50ms }",
	)
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	tid := 0
	drain(t, s, got, "an agent's thread", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q := s.sessions[p.ID()]; q != nil && q.ring != nil {
			tid = int(q.agentThread())
		}
		return tid != 0
	})
	return s, p, v, tid
}

// stopAt stops a thread at its first system call at which when is true, closes stopped, and lets it go on once goOn is
// closed. Until then the thread gets its signals.
func stopAt(tid int, when func() bool, stopped chan<- struct{}, goOn <-chan struct{}) error {
	runtime.LockOSThread() // who traces is a thread
	defer runtime.UnlockOSThread()
	err := errors.Join(unix.PtraceSeize(tid), unix.PtraceInterrupt(tid))
	for err == nil {
		var status unix.WaitStatus
		if _, err = unix.Wait4(tid, &status, unix.WALL, nil); err != nil || status.Exited() {
			break
		}
		signal := status.StopSignal()
		if signal == unix.SIGTRAP { // it is at a system call, or seized
			if signal = 0; when() {
				break
			}
		}
		err = unix.PtraceSyscall(tid, int(signal))
	}
	close(stopped)
	<-goOn
	return errors.Join(err, unix.PtraceDetach(tid))
}

// TestHeldWhileTheAgentStarves: the agent's thread gets no CPU while it looks whether all threads are outside of CUPTI.
// Those that it holds meanwhile go on all the same.
func TestHeldWhileTheAgentStarves(t *testing.T) {
	var got collector
	s, p, v, tid := startLooking(t, &got)
	r := ringOf(s, p)
	stopped, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var before holdings
	go func() {
		ended <- stopAt(tid, func() bool {
			before = heldIn(s, p)
			return r.load64(ringFinalizing) != 0 || !p.Alive()
		}, stopped, goOn)
	}()
	drain(t, s, &got, "an agent that looks", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	drain(t, s, &got, "a held thread that goes on", func() bool { return heldIn(s, p).n > before.n })
	h, windows := heldIn(s, p), r.load32(ringWindows)
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	t.Logf("held before: %+v; after: %+v", before, h)
	if h.most > longestUse/2 {
		t.Errorf("a thread was held for %v, by an agent that did nothing", h.most)
	}
	drain(t, s, &got, "more windows", func() bool { return r.load32(ringWindows) > windows+2 })
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 || !p.Alive() {
		t.Errorf("%d launches failed; alive: %v", n, p.Alive())
	}
}

// sleepsAtGate reports whether a thread that is stopped is about to sleep at a gate: in a handler of signals, on a
// futex that is not of one process, as an agent's are.
func sleepsAtGate(pid uint32, tid int) bool {
	dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	call, err1 := os.ReadFile(dir + "syscall")
	status, err2 := os.ReadFile(dir + "status")
	blocked := regexp.MustCompile(`SigBlk:\s(\w+)`).FindSubmatch(status)
	if err1 != nil || err2 != nil || blocked == nil {
		return false
	}
	mask, _ := strconv.ParseUint(string(blocked[1]), 16, 64)
	return mask>>(unix.SIGWINCH-1)&1 != 0 &&
		regexp.MustCompile(fmt.Sprintf(`^%d 0x[0-9a-f]+ 0x0 `, unix.SYS_FUTEX)).Match(call)
}

// TestHeldWithoutCPU: a thread that is held gets no CPU before the gate has opened, closed and opened again. It counts
// as held for as long as it could not have gone on.
func TestHeldWithoutCPU(t *testing.T) {
	var got collector
	s, p, v, _ := startLooking(t, &got)
	r := ringOf(s, p)
	tid := int(secondThread(t, p.PID))
	stopped, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	letGo := sync.OnceFunc(func() { close(goOn) })
	defer letGo() // a process with a thread that is stopped does not end
	go func() {
		ended <- stopAt(tid, func() bool {
			return r.load64(ringFinalizing) != 0 && sleepsAtGate(p.PID, tid) || !p.Alive()
		}, stopped, goOn)
	}()
	drain(t, s, &got, "a thread at a gate", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	began := time.Now()
	for range 3 {
		drain(t, s, &got, "a gate that is open", func() bool { return r.load64(ringFinalizing) == 0 })
		drain(t, s, &got, "a gate that is shut", func() bool { return r.load64(ringFinalizing) != 0 })
	}
	for time.Since(began) < time.Second {
		drain(t, s, &got, "a gate that is open", func() bool { return r.load64(ringFinalizing) == 0 })
	}
	before, without := heldIn(s, p), time.Since(began)
	letGo()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	drain(t, s, &got, "threads that were held", func() bool {
		return heldIn(s, p).n > before.n && time.Since(gone) > time.Second/4
	})
	h := heldIn(s, p)
	t.Logf("for %v without a CPU; held before: %+v; after: %+v", without, before, h)
	if h.most > without/4 {
		t.Errorf("a thread counts as held for %v, most of which the gate was open", h.most)
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 || !p.Alive() {
		t.Errorf("%d launches failed; alive: %v", n, p.Alive())
	}
}

// TestAgentsThreadIsInFront: while threads are held for it the agent's thread goes before others, and no longer: not
// when the gates are gone either.
func TestAgentsThreadIsInFront(t *testing.T) {
	var got collector
	s, _, _, tid := startLooking(t, &got)
	nice := func(of int32, flags uint64) func() bool {
		return func() bool {
			a, err := unix.SchedGetAttr(tid, 0)
			if err != nil {
				t.Fatal(err)
			}
			return a.Nice == of && a.Flags&unix.SCHED_FLAG_RESET_ON_FORK == flags
		}
	}
	before, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		drain(t, s, &got, "a thread that is in front", nice(hasteNice, unix.SCHED_FLAG_RESET_ON_FORK))
		drain(t, s, &got, "a thread as it was", nice(before.Nice, 0))
	}
	drain(t, s, &got, "a thread that is in front", nice(hasteNice, unix.SCHED_FLAG_RESET_ON_FORK))
	s.shutGates()
	if !nice(before.Nice, 0)() {
		t.Error("the thread is in front although there are no gates any more")
	}
}
