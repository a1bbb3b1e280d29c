package sched_test

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// pin lets a process run on one CPU only.
func pin(t *testing.T, pid uint32, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	must.NoError(t, unix.SchedSetaffinity(int(pid), &set))
}

// One CPU for three: the victim is seen to be starved, and by whom.
func TestStarvedByTwoHogs(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	victim, hogs := behave(t, "busy"), []*waiter{behave(t, "busy"), behave(t, "busy")}
	for _, p := range append(hogs, victim) {
		pin(t, p.pid, 0)
		// Among themselves they are equal; what else the machine does matters little then.
		if err := unix.Setpriority(unix.PRIO_PROCESS, int(p.pid), -10); err != nil {
			t.Skip("needs to raise priorities: ", err)
		}
	}
	outer := accounted(t, victim.pid, victim.pid)
	w := newWatch(t, sched.Options{}, victim.pid)
	inner := accounted(t, victim.pid, victim.pid)
	w.last(2 * window)
	inner = accounted(t, victim.pid, victim.pid) - inner
	s := w.look()
	outer = accounted(t, victim.pid, victim.pid) - outer
	th := s.thread(victim.pid)
	s.ranBetween(th, inner, outer)
	if s.share(th.Totals[threads.Runnable]) < 0.4 || th.Totals[threads.Blocked] != 0 || th.Switches.Involuntary < 5 {
		t.Errorf("%d involuntary switches, %s", th.Switches.Involuntary, s.describe(th))
	}
	// Who took the CPU is who came next. With three in a circle it is always the same hog,
	// and where the machine is busy a kernel thread comes in between every time: then again.
	for range 4 {
		if taken := takenBy(t, s, th, hogs); taken > 0 {
			return
		}
		w.last(2 * window)
		s = w.look()
		th = s.thread(victim.pid)
	}
	t.Error("the hogs never took the CPU")
}

// takenBy returns for how long, in ns, the thread was ready because one of the hogs had
// taken its CPU.
func takenBy(t *testing.T, s *seen, th *threads.Thread, hogs []*waiter) uint64 {
	t.Helper()
	taken := uint64(0)
	for _, iv := range th.Intervals {
		wait, ok := s.waits.Of(iv)
		if !ok || !wait.Preempted || iv.State != threads.Runnable {
			continue
		}
		if wait.By.TID == hogs[0].pid || wait.By.TID == hogs[1].pid {
			taken += iv.Dur()
			if !wait.By.OtherThread || wait.By.Name != "waiter" {
				t.Errorf("a hog is called %q", wait.By.Name)
			}
		}
	}
	return taken
}

// A process counts as gone before its threads have left their CPUs for good: nothing of them stays.
func TestForgottenBeforeItsThreadsEnd(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "crowd", "20")
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window / 4)
	w.source.Forget(w.procs[0])
	if n, err := sched.Known(w.source); n != 21 || err != nil {
		t.Errorf("%d threads are known (%v), want all of them as long as they live", n, err)
	}
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
	for range 100 {
		if n, _ := sched.Known(w.source); n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("threads are known after their end")
}

// Threads whose numbers share a place in the programs' array are all followed, and forgotten.
func TestThreadsThatShareAPlace(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	w := newWatch(t, sched.Options{})
	v := behave(t, "twin", strconv.Itoa(int(sched.Room(w.source))))
	twin := v.threads["twin"]
	if twin == 0 {
		t.Skip("needs to choose a pid")
	}
	w.follow(v.pid)
	w.follow(twin)
	w.from = now()
	w.last(window)
	w.waited(40)
	s := w.look()
	for _, tid := range []uint32{v.pid, twin} {
		if waits := s.mostly(tid, threads.Sleep, 0.5); len(waits) < 5 {
			t.Errorf("%d sleeps of thread %d", len(waits), tid)
		}
	}
	if n, err := sched.Known(w.source); n != 2 || err != nil {
		t.Errorf("%d threads are known (%v), want both", n, err)
	}
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
	for range 100 { // the twin is killed for its parent's death
		if n, _ := sched.Known(w.source); n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("threads are known after their end")
}
