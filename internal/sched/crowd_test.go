package sched_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/sched"
	"github.com/inferscope/inferscope/internal/threads"
)

// pin lets a process run on one CPU only.
func pin(t *testing.T, pid uint32, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(int(pid), &set); err != nil {
		t.Fatal(err)
	}
}

// One CPU for three: the victim is seen to be starved, and by whom.
func TestStarvedByTwoHogs(t *testing.T) {
	needRoot(t)
	victim, hogs := behave(t, "busy"), []*waiter{behave(t, "busy"), behave(t, "busy")}
	for _, p := range append(hogs, victim) {
		pin(t, p.pid, 0)
		// Among themselves they are equal; what else the machine does matters little then.
		if err := unix.Setpriority(unix.PRIO_PROCESS, int(p.pid), -10); err != nil {
			t.Skip("needs to raise priorities: ", err)
		}
	}
	w := newWatch(t, sched.Options{}, victim.pid)
	w.last(2 * window)
	s := w.look()
	th := s.thread(victim.pid)
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
			if !wait.By.Stranger || wait.By.Name != "waiter" {
				t.Errorf("a hog is called %q", wait.By.Name)
			}
		}
	}
	return taken
}

// quota makes a cgroup that has a tenth of a CPU, and returns its file for processes.
func quota(t *testing.T) string {
	t.Helper()
	name := "inferscope-test-" + strconv.Itoa(os.Getpid())
	for _, try := range []struct {
		root  string
		files map[string]string
	}{
		{"/sys/fs/cgroup/cpu", map[string]string{"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "5000"}},
		{"/sys/fs/cgroup", map[string]string{"cpu.max": "5000 50000"}},
	} {
		dir := filepath.Join(try.root, name)
		if _, err := os.Stat(filepath.Join(try.root, "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		ok := true
		for file, value := range try.files {
			ok = ok && os.WriteFile(filepath.Join(dir, file), []byte(value), 0) == nil
		}
		if ok {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Skip("needs a cgroup with the cpu controller")
	return ""
}

func TestThrottledByACgroup(t *testing.T) {
	needRoot(t)
	procs := quota(t) // before the waiter: it is removed after the waiter has ended
	v := behave(t, "busy")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(int(v.pid))), 0); err != nil {
		t.Skip("cannot move a process: ", err)
	}
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(2 * window)
	s := w.look()
	th := s.thread(v.pid)
	if s.share(th.Totals[threads.Running]) > 0.3 || s.share(th.Totals[threads.Runnable]) < 0.7 || th.Totals[threads.Blocked] != 0 {
		t.Errorf("with a tenth of a CPU: %s", s.describe(th))
	}
}

// Two threads of CPython that compute: each waits for the other to let go of the interpreter.
func TestGILFight(t *testing.T) {
	needRoot(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	v := run(t, exec.Command(python, "../../testdata/waiters/gil.py"))
	// "main" introduces itself after "ready": it is the process's first thread.
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(2 * window)
	s := w.look()
	for tid, other := range map[uint32]uint32{v.pid: v.threads["rival"], v.threads["rival"]: v.pid} {
		waits := s.mostly(tid, threads.Futex, 0.15)
		woken := 0
		for _, wait := range waits {
			if wait.By.TID == other && !wait.By.Interrupt {
				woken++
			}
		}
		// The rest are time-outs, after which it asks for the interpreter again.
		if woken < 5 {
			t.Errorf("thread %d was let in by thread %d in %d of %d waits", tid, other, woken, len(waits))
		}
	}
}
