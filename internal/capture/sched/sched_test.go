package sched_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const window = 400 * time.Millisecond

// observe runs a waiter and looks at it for a while, and until so many waits have ended.
func observe(t *testing.T, waits int, args ...string) (*waiter, *seen) {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	v := behave(t, args...)
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window)
	w.waited(waits)
	return v, w.look()
}

func TestBusyIsNeverBlocked(t *testing.T) {
	v, s := observe(t, 0, "busy")
	th := s.thread(v.threads["main"])
	if th.Totals[threads.Blocked] != 0 || th.Totals[threads.Absent] != 0 || th.Totals[threads.Running] == 0 {
		t.Error(s.describe(th))
	}
	if th.Switches.Voluntary != 0 {
		t.Errorf("%d voluntary switches of a thread that never waits", th.Switches.Voluntary)
	}
}

func TestPipe(t *testing.T) {
	v, s := observe(t, 20, "pipe")
	waits := s.mostly(v.threads["main"], threads.Pipe, 0.5)
	s.wokenBy(waits, v.threads["partner"])
	for _, w := range waits {
		if !strings.HasPrefix(w.Text, "read of pipe:[") {
			t.Fatalf("text %q, want a read of a pipe by name", w.Text)
		}
	}
}

func TestSleepIsEndedByTheTimer(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "sleep")
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window)
	w.waited(20)
	s := w.look()
	waits := s.mostly(v.threads["main"], threads.Sleep, 0.5)
	if len(waits) < 5 {
		t.Fatalf("%d sleeps", len(waits))
	}
	unseen := uint64(0)
	for _, w := range waits[1:] { // the first began before the attach
		if w.By.Unknown {
			unseen++
		} else if !w.By.Interrupt {
			t.Errorf("a sleep was ended by %+v, want an interrupt", w.By)
		}
		if slept := w.Woken - w.From; slept < 9_000_000 {
			t.Errorf("a sleep of 10 ms took %d ns", slept)
		}
	}
	if missed := sched.Missed(w.source); unseen > missed {
		t.Errorf("nobody is known to have ended %d of %d sleeps, and %d wake-ups were counted as not seen",
			unseen, len(waits), missed)
	}
}

func TestPipeFromAnotherProcess(t *testing.T) {
	v, s := observe(t, 20, "child")
	waits := s.mostly(v.threads["main"], threads.Pipe, 0.5)
	for _, w := range waits {
		if w.By.PID == v.pid {
			t.Errorf("woken by %+v, want the child", w.By)
		}
	}
	// The child was there before: nobody follows it, so it is another thread, with a name.
	if len(waits) < 5 || !waits[0].By.OtherThread || waits[0].By.Name != "waiter" {
		t.Errorf("%d waits, the first ended by %+v", len(waits), waits[0].By)
	}
}

// What is read by calls of helpers on older kernels is the same.
func TestAsBeforeLinux62(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	pipe, sleep := behave(t, "pipe"), behave(t, "sleep")
	w := newWatch(t, sched.AsBefore62(sched.Options{}), pipe.pid, sleep.pid)
	w.last(window)
	w.waited(80)
	s := w.look()
	waits := s.mostly(pipe.pid, threads.Pipe, 0.5)
	s.wokenBy(waits, pipe.threads["partner"])
	if !strings.HasPrefix(waits[0].Text, "read of pipe:[") {
		t.Errorf("text %q, want the pipe by name", waits[0].Text)
	}
	byTimer := 0
	sleeps := s.mostly(sleep.pid, threads.Sleep, 0.5)
	for _, one := range sleeps {
		if one.By.Interrupt {
			byTimer++
		}
	}
	if byTimer*10 < 9*len(sleeps) {
		t.Errorf("%d of %d sleeps were ended by an interrupt", byTimer, len(sleeps))
	}
}

func TestSocket(t *testing.T) {
	v, s := observe(t, 20, "socket")
	waits := s.mostly(v.threads["main"], threads.Socket, 0.5)
	s.wokenBy(waits, v.threads["partner"])
	if !strings.HasPrefix(waits[0].Text, "recvfrom of socket:[") {
		t.Errorf("text %q, want the socket by name", waits[0].Text)
	}
}

func TestFutexPingPong(t *testing.T) {
	v, s := observe(t, 20, "futex")
	s.wokenBy(s.mostly(v.threads["main"], threads.Futex, 0.25), v.threads["partner"])
	s.wokenBy(s.mostly(v.threads["partner"], threads.Futex, 0.25), v.threads["main"])
}

func TestPoll(t *testing.T) {
	v, s := observe(t, 20, "poll")
	s.wokenBy(s.mostly(v.threads["main"], threads.Poll, 0.5), v.threads["partner"])
}

// onDisk returns a path for a file that is really on a disk, or skips the test.
func onDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "disk")
	if err != nil {
		t.Skip("needs a directory to write to: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, err := filepath.Abs(filepath.Join(dir, "data"))
	must.NoError(t, err)
	return path
}

func TestDisk(t *testing.T) {
	path := onDisk(t)
	v, s := observe(t, 20, "disk", path)
	waits := s.mostly(v.threads["main"], threads.Disk, 0.1)
	if len(waits) == 0 || waits[0].Text != "pread64 of "+path {
		t.Errorf("%d waits, the first: %+v", len(waits), waits)
	}
}

// How long the disk takes is its own affair: each wait outside of a system call is for it. Of a
// fault there is one, or a second for where the file lies.
func TestMajorFault(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "major", onDisk(t))
	before := majorFaults(t, v.pid)
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window)
	w.waited(20)
	s := w.look()
	after := majorFaults(t, v.pid)
	th := s.thread(v.threads["main"])
	waits, ns := s.of(th, threads.MajorFault)
	if n := len(waits); n < 5 || n > 2*(after-before) {
		t.Errorf("%d waits for the disk, and %d faults: %s", n, after-before, s.describe(th))
	}
	if other := th.Reasons[threads.MinorFault] + th.Reasons[threads.Unexplained]; other > ns/100 {
		t.Errorf("%d ns of waits are not put down to the disk: %s", other, s.describe(th))
	}
}

// majorFaults returns how many of a process's page faults waited for a disk so far.
func majorFaults(t *testing.T, pid uint32) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if n, err = strconv.Atoi(fields[9]); err != nil { // proc(5): majflt is the 12th, and the 3rd comes first here
		t.Fatal(err)
	}
	return n
}

func TestMinorFault(t *testing.T) {
	v, s := observe(t, 20, "minor")
	waits := s.mostly(v.threads["main"], threads.MinorFault, 0.5)
	s.wokenBy(waits, v.threads["partner"])
}

// What waits before the attach and all the time after it has its reason from the start.
func TestStuckAllTheTime(t *testing.T) {
	v, s := observe(t, 0, "stuck")
	for name, why := range map[string]threads.Reason{"main": threads.Signal, "locked": threads.Futex} {
		th := s.thread(v.threads[name])
		if len(th.Intervals) > 2 || s.share(th.Reasons[why]) < 0.999 {
			t.Errorf("%s: %d intervals, %s", name, len(th.Intervals), s.describe(th))
		}
		last := th.Intervals[len(th.Intervals)-1]
		if w, ok := s.waits.Of(last); !ok || !w.Open || !w.By.Unknown {
			t.Errorf("%s: the last wait is %+v, want an open one that nobody ended", name, w)
		}
	}
}

// Each of the threads sleeps once, for 5 ms from some moment after its birth on.
func TestShortLivedThreads(t *testing.T) {
	v, s := observe(t, 60, "threads")
	short := 0
	for i := range s.threads {
		th := &s.threads[i]
		if th.TID == v.pid || len(th.Intervals) < 3 {
			continue
		}
		first, last := th.Intervals[0], th.Intervals[len(th.Intervals)-1]
		if first.State != threads.Absent || last.State != threads.Absent {
			continue // at an edge of the window
		}
		short++
		sleeps, _ := s.of(th, threads.Sleep)
		if len(sleeps) != 1 {
			t.Errorf("thread %d slept %d times, want once: %+v", th.TID, len(sleeps), th.Intervals)
			continue
		}
		// A sleep is timed from before it leaves its CPU, which may take a while.
		if since := sleeps[0].Woken - first.To; since < 5_000_000 || sleeps[0].Woken > last.From {
			t.Errorf("thread %d was woken %d ns after its birth and died %d ns after it, want 5 ms: %+v",
				th.TID, since, last.From-first.To, th.Intervals)
		}
	}
	if short < 10 {
		t.Errorf("%d short threads were seen from birth to end, want 10 or more", short)
	}
}

func TestChildrenAreFollowedFromBirth(t *testing.T) {
	v, s := observe(t, 20, "fork")
	waits := s.mostly(v.threads["main"], threads.Child, 0.3)
	children := 0
	for i := range s.threads {
		th := &s.threads[i]
		if th.PID != v.pid && th.Reasons[threads.Sleep] >= 18_000_000 && th.Intervals[0].State == threads.Absent {
			children++
		}
	}
	if children < 3 || len(waits) < 3 {
		t.Errorf("%d children slept 20 ms, and the parent waited %d times", children, len(waits))
	}
	if w := waits[0]; w.By.PID == v.pid || w.By.PID == 0 {
		t.Errorf("waitpid was ended by %+v, want the child", w.By)
	}
}

// commandLine is of the program that a process runs.
func commandLine(t *testing.T, pid uint32) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	must.NoError(t, err)
	return string(b)
}

// A thread that replaces the program takes over the number of the first thread.
func TestExecOfAnotherThread(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "exec")
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window / 2)
	before := commandLine(t, v.pid)
	if _, err := v.in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); commandLine(t, v.pid) == before && time.Now().Before(end); {
		w.last(10 * time.Millisecond)
	}
	w.last(window / 2)
	w.waited(10)
	s := w.look()
	other := s.thread(v.threads["other"])
	if end := other.Intervals[len(other.Intervals)-1]; end.State != threads.Absent {
		t.Errorf("after the exec the thread is %v, want absent", end.State)
	}
	main := s.thread(v.pid)
	if main.Reasons[threads.Signal] == 0 || main.Reasons[threads.Sleep] == 0 {
		t.Errorf("the first thread paused, and the new program sleeps: %s", s.describe(main))
	}
}

func TestStopped(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "busy")
	w := newWatch(t, sched.Options{}, v.pid)
	must.Run(t, exec.Command("kill", "-STOP", fmt.Sprint(v.pid)))
	w.last(window)
	s := w.look()
	s.mostly(v.pid, threads.Stop, 0.5)
}

func TestNothingOfOthers(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v, other := behave(t, "sleep"), behave(t, "sleep")
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(window)
	rec := w.recording()
	for _, e := range rec.Events {
		if e.PID != v.pid {
			t.Fatalf("an event of another process: %+v (the other sleeper is %d)", e, other.pid)
		}
	}
}

func TestSwitchedOff(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "sleep")
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(100 * time.Millisecond)
	must.NoError(t, w.source.Switch(false))
	w.drain()
	before, off := len(w.events), now()
	w.last(100 * time.Millisecond)
	if state := w.source.State().State; state != "off" || len(w.events) != before {
		t.Errorf("off: state %s, %d events more", state, len(w.events)-before)
	}
	for _, e := range w.source.Complete(math.MaxUint64) {
		if e.End() > off {
			t.Errorf("off: a row reaches %d ns into the time in which nothing was recorded", e.End()-off)
		}
	}
	must.NoError(t, w.source.Switch(true))
	w.from = now()
	w.last(window)
	s := w.look()
	s.mostly(v.pid, threads.Sleep, 0.5)
}

// What waits for all of the time is blocked before a pause and after it, and not known meanwhile; it never runs.
func TestWaitsOutlastPauses(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "stuck")
	w := newWatch(t, sched.Options{}, v.pid)
	var pauses []recording.Pause
	for range 3 {
		w.last(50 * time.Millisecond)
		paused := recording.Pause{From: now()}
		must.NoError(t, w.source.Switch(false))
		w.last(20 * time.Millisecond)
		must.NoError(t, w.source.Switch(true))
		paused.To = now()
		pauses = append(pauses, paused)
	}
	w.last(50 * time.Millisecond)
	w.drain()
	rec := w.recording()
	rec.Meta.Overhead = &recording.Overhead{
		Sources: []recording.OverheadSource{{Name: recording.SchedulingSource, Paused: pauses}},
	}
	paused := uint64(0)
	for _, p := range pauses {
		paused += p.To - p.From
	}
	found := 0
	for _, th := range threads.Build(rec) {
		if th.TID != v.threads["main"] && th.TID != v.threads["locked"] {
			continue
		}
		found++
		if ran := th.Totals[threads.Running]; ran > uint64(time.Millisecond) {
			t.Errorf("thread %d, which waits, ran for %v", th.TID, time.Duration(ran))
		}
		if unknown := th.Totals[threads.Absent]; unknown > paused {
			t.Errorf("thread %d is not known for %d ns, of %d in pauses", th.TID, unknown, paused)
		}
	}
	if found != 2 {
		t.Errorf("%d of 2 threads that wait are in the recording", found)
	}
}
