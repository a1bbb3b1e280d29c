package sched_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// spins is for how long a spinner runs, in ns.
const spins = 200_000_000

// A spinner waits for a line, says when it has it, and runs.
const spinner = `
import sys, time
while sys.stdin.readline():
    now = time.monotonic_ns()
    print(now, flush=True)
    while time.monotonic_ns() < now + 200_000_000: pass
`

// followedSpinner is a spinner that is followed.
type followedSpinner struct {
	*child.Child
	*watch
	pid uint32
}

func newFollowedSpinner(t *testing.T) *followedSpinner {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	python := needs.Tool(t, "python3")
	c := child.Start(t, exec.Command(python, "-c", spinner))
	pid := uint32(c.PID)
	// Nobody may take its CPU while nothing is seen: that would be another wait.
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(int(pid), &attr, 0); err != nil {
		t.Skip("needs real-time scheduling: ", err)
	}
	v := &followedSpinner{Child: c, pid: pid}
	v.spin(t) // it is there
	v.watch = newWatch(t, sched.Options{}, pid)
	v.await(t, "switches that tell the kernel's clock", func() bool {
		samples, err := sched.ClockSamples(v.source)
		must.NoError(t, err)
		return samples >= 16 // CLOCK_SAMPLES of bpf/sched_unseen.h
	})
	return v
}

// await drains until done is true.
func (v *followedSpinner) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !done(); v.last(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no ", what)
		}
	}
}

// spin lets it run. It was woken between from and to, and had a CPU at ran at the latest.
func (v *followedSpinner) spin(t *testing.T) (from, to, ran uint64) {
	t.Helper()
	from = now()
	fmt.Fprintln(v.In)
	to = now()
	ran, err := strconv.ParseUint(v.Line(), 10, 64)
	must.NoError(t, err)
	return from, to, ran
}

// waitUntil blocks until the thread is in the state of /proc/PID/stat.
func (v *followedSpinner) waitUntil(t *testing.T, state string) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.pid))
		must.NoError(t, err)
		if strings.Contains(string(stat), ") "+state+" ") {
			return
		}
		runtime.Gosched()
		v.last(1)
	}
	t.Fatalf("the spinner does not get into state %s", state)
}

// arrivals returns how often the thread was put on a CPU so far, as the kernel says.
func (v *followedSpinner) arrivals(t *testing.T) (n uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", v.pid))
	if err != nil {
		t.Skip("needs a kernel that counts arrivals: ", err)
	}
	var ran, waited uint64
	if _, err := fmt.Sscan(string(text), &ran, &waited, &n); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return n
}

// unseen lets it run once while no program does, and returns what spin returns.
func (v *followedSpinner) unseen(t *testing.T) (from, to, ran uint64) {
	t.Helper()
	for range 10 {
		v.waitUntil(t, "S")
		before := v.arrivals(t)
		see, err := sched.Detach(v.source)
		must.NoError(t, err)
		from, to, ran = v.spin(t)
		err = see()
		must.NoError(t, err)
		if v.arrivals(t) == before+1 && now() < ran+spins/2 {
			return from, to, ran
		}
	}
	t.Skip("the machine is too busy: the thread always left its CPU unseen as well")
	return
}

// slack is how far the kernel's clock may be taken wrong, in ns.
const slack = 100_000

// check looks for the wait that ended unseen, and what the thread did after it. The kernel
// says when it was queued, which on another CPU is a while after it was woken.
func (v *followedSpinner) check(t *testing.T, from, ran uint64) error {
	t.Helper()
	s := v.look()
	th := s.thread(v.pid)
	for i, iv := range th.Intervals {
		w, ok := s.waits.Of(iv)
		if !ok || iv.State != threads.Blocked || w.To < from || w.From > from {
			continue
		}
		if w.Woken+slack < from || w.To > ran+slack || w.Reason != threads.Pipe || !w.By.Unknown || w.Open {
			return fmt.Errorf(
				"the wait is %+v, want one for the pipe, that was ended after %d by nobody known, and a CPU by %d",
				w,
				from,
				ran,
			)
		}
		for i < len(th.Intervals)-1 && th.Intervals[i].State != threads.Running {
			i++
		}
		if next := th.Intervals[i]; next.State != threads.Running || next.From != w.To {
			return fmt.Errorf("after it the thread is %v from %d on, want running from %d on",
				next.State, next.From, w.To)
		}
		return nil
	}
	return fmt.Errorf("no wait that was ended at %d: %+v", from, th.Intervals)
}

// A thread that is woken, and takes a CPU, while no program runs: its sleep is found while it runs, and once it has
// left its CPU.
func TestUnseenWakeUp(t *testing.T) {
	v := newFollowedSpinner(t)
	from, _, ran := v.unseen(t)
	problem := v.check(t, from, ran) // while it runs
	v.waitUntil(t, "S")              // which it is a moment before it leaves its CPU
	v.await(t, "switch that is counted as not seen", func() bool { return sched.Missed(v.source) > 0 })
	if problem = errors.Join(problem, v.check(t, from, ran)); problem != nil { // as it is sent
		t.Error(problem)
	}
}

// account is what the kernel says of a thread: for how long it ran, and waited for a CPU, in ns.
func account(t *testing.T, pid, tid uint32) (ran, waited uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	if err != nil {
		t.Skip("needs a kernel that accounts for waits: ", err)
	}
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return ran, waited
}

// Two threads that wake each other share a CPU with a hog, which has more of a right to it: what
// they wait for the CPU is as in the kernel's own account, whether their wake-ups are seen or not.
func TestAsTheKernelAccounts(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			needs.Root(t, "it loads BPF programs")
			v, hog := behave(t, "futex"), behave(t, "busy")
			for _, tid := range []uint32{v.threads["main"], v.threads["partner"], hog.pid} {
				pin(t, tid, 0)
				must.NoError(t, unix.Setpriority(
					unix.PRIO_PROCESS, int(tid), map[bool]int{true: 0, false: 10}[tid == hog.pid],
				))
			}
			w := newWatch(t, sched.Options{}, v.pid)
			w.last(window / 2) // the clocks are compared
			if deaf {
				must.NoError(t, sched.Deaf(w.source))
			}
			compareAccounts(t, w, v)
			if missed := sched.Missed(w.source); deaf && missed == 0 {
				t.Error("no wake-up is counted as not seen")
			}
		})
	}
}

// ready returns for how long a thread waited for a CPU: of the waits that lie within the
// window, and of all that reach into it, with all their time.
func (s *seen) ready(th *threads.Thread) (least, most uint64) {
	total := th.Totals[threads.Runnable]
	least, most = total, total
	if first := th.Intervals[0]; first.State == threads.Runnable {
		least -= first.Dur()
		if w, ok := s.waits.Of(first); ok {
			most += first.From - min(first.From, w.Woken)
		}
	}
	if last := th.Intervals[len(th.Intervals)-1]; last.State == threads.Runnable && len(th.Intervals) > 1 {
		least -= last.Dur()
	}
	return least, most
}

// compareAccounts looks at the threads for a while, as the kernel does.
func compareAccounts(t *testing.T, w *watch, v *waiter) {
	t.Helper()
	read := func() map[uint32][2]uint64 {
		all := map[uint32][2]uint64{}
		for _, tid := range v.threads {
			ran, waited := account(t, v.pid, tid)
			all[tid] = [2]uint64{ran, waited}
		}
		return all
	}
	outer := read()
	w.from = now()
	inner := read()
	w.last(2 * window)
	innerEnd := read()
	s := w.look()
	outerEnd := read()
	for name, tid := range v.threads {
		th := s.thread(tid)
		least, most := s.ready(th)
		// The kernel reads its clock a little earlier or later than the programs do, at each switch.
		slack := 100_000 + 25_000*uint64(th.Switches.Voluntary+th.Switches.Involuntary)
		for i, ours := range [][2]uint64{{th.Totals[threads.Running], th.Totals[threads.Running]}, {least, most}} {
			within, around := innerEnd[tid][i]-inner[tid][i], outerEnd[tid][i]-outer[tid][i]
			t.Logf("%s: the kernel says %s for %d to %d ns, we say for %d to %d",
				name, []string{"running", "ready"}[i], within, around, ours[0], ours[1])
			if within > ours[1]+slack || around+slack < ours[0] {
				t.Errorf("%s: %s", name, s.describe(th))
			}
		}
	}
}
