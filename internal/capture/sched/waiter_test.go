package sched_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// waiter is a running program of testdata/waiters.
type waiter struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      io.Writer // its standard input
	pid     uint32
	threads map[string]uint32 // by name
}

// waiters builds the programs and returns where they are. What is built already
// is not built again.
func waiters(t testing.TB) string {
	t.Helper()
	needs.Tool(t, "gcc")
	must.Run(t, exec.Command(
		"make", "-s", "-C", "../../../testdata/waiters", "CC=gcc",
	))
	return "../../../build/waiters"
}

// run starts a command and reads what it says until it is ready.
func run(t testing.TB, cmd *exec.Cmd) *waiter {
	t.Helper()
	w := &waiter{t: t, cmd: cmd, threads: map[string]uint32{}}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	// PR_SET_PDEATHSIG counts the thread that forks, so that one must live.
	runtime.LockOSThread()
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	w.pid, w.in = uint32(cmd.Process.Pid), in
	w.read(out)
	return w
}

// beforeOthers gives the threads a real-time priority, where that is allowed: what they wait for is then what they make
// each other wait for, whatever else the machine runs. A thread that nobody gives a CPU waits for that most of the
// time.
func (w *waiter) beforeOthers() {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	for _, tid := range append(slices.Collect(maps.Values(w.threads)), w.pid) {
		if err := unix.SchedSetAttr(int(tid), &attr, 0); err != nil {
			w.t.Logf("the victim keeps its priority, so that a loaded machine disturbs it: %v", err)
			return
		}
	}
}

func (w *waiter) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		var name string
		var tid uint32
		if _, err := fmt.Sscanf(lines.Text(), "thread %s %d", &name, &tid); err != nil {
			w.t.Fatalf("the waiter says %q: %v", lines.Text(), err)
		}
		w.threads[name] = tid
	}
	if lines.Text() != "ready" {
		w.t.Fatalf("the waiter is not ready: %v", lines.Err())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
}

func behave(t testing.TB, args ...string) *waiter {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(waiters(t), "waiter"))
	must.NoError(t, err)
	return run(t, exec.Command(program, args...))
}

// watch is a source that follows processes, and the events that it has sent.
type watch struct {
	t      testing.TB
	rings  *ring.Rings
	source *sched.Source
	from   uint64
	events []event.Event
	procs  []*proc.Process
}

func newWatch(t testing.TB, opts sched.Options, pids ...uint32) *watch {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	rings, err := ring.New(ring.Options{Bytes: 8 << 20})
	must.NoError(t, err)
	t.Cleanup(func() { _ = rings.Close() })
	source, err := sched.New(rings, opts)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &watch{t: t, rings: rings, source: source}
	for _, pid := range pids {
		w.follow(pid)
	}
	w.from = now()
	return w
}

func (w *watch) follow(pid uint32) {
	w.t.Helper()
	p, err := proc.Describe(int(pid))
	must.NoError(w.t, err)
	w.t.Cleanup(func() { _ = p.Close() })
	must.NoError(w.t, w.source.Follow(p))
	w.procs = append(w.procs, p)
}

// last drains for so long.
func (w *watch) last(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		w.drain()
	}
}

// waited drains until so many waits have ended, of whichever thread: where CPUs are rare that may
// take long.
func (w *watch) waited(n int) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; w.last(10 * time.Millisecond) {
		ended := 0
		for i := range w.events {
			if e := &w.events[i]; e.Kind == event.OffCPU && e.Flags&(event.Mark|event.Preempted) == 0 {
				ended++
			}
		}
		if ended >= n {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d waits ended in a minute, want %d", ended, n)
		}
	}
}

func (w *watch) drain() {
	w.rings.Drain(func(batch []event.Event) {
		w.source.Observe(batch)
		w.events = append(w.events, batch...)
	})
}

// recording is what the daemon would make of it now.
func (w *watch) recording() *recording.Recording {
	w.t.Helper()
	to := now()
	rows := w.source.Complete(to)
	w.drain()
	rec := &recording.Recording{Meta: recording.Meta{
		From: w.from, To: to, Host: recording.Host{Arch: runtime.GOARCH}, Objects: w.source.Objects(),
		OtherThreads: w.source.OtherThreads(),
	}}
	for _, p := range w.procs {
		rec.Meta.Processes = append(rec.Meta.Processes, recording.Process{PID: p.PID, Born: p.Born})
	}
	rec.Events = slices.DeleteFunc(append(slices.Clone(w.events), rows...),
		func(e event.Event) bool { return e.TS > to || e.End() < w.from })
	slices.SortStableFunc(rec.Events, func(a, b event.Event) int { return cmp.Compare(a.TS, b.TS) })
	losses, err := w.rings.Losses()
	if err != nil || len(losses) > 0 {
		w.t.Errorf("losses %v, error %v", losses, err)
	}
	return rec
}

// seen is a recording with its threads.
type seen struct {
	t       testing.TB
	rec     *recording.Recording
	threads []threads.Thread
	waits   *threads.Waits
}

func (w *watch) look() *seen {
	w.t.Helper()
	rec := w.recording()
	s := &seen{t: w.t, rec: rec, threads: threads.Build(rec), waits: threads.NewWaits(rec)}
	for i := range s.threads {
		s.whole(&s.threads[i])
	}
	return s
}

// whole checks that a thread's intervals and totals are a partition of the window.
func (s *seen) whole(th *threads.Thread) {
	s.t.Helper()
	window, at, sum := s.rec.Meta.To-s.rec.Meta.From, s.rec.Meta.From, uint64(0)
	for _, iv := range th.Intervals {
		if iv.From != at || iv.To <= iv.From {
			s.t.Errorf("thread %d: the interval [%d, %d] does not follow %d", th.TID, iv.From, iv.To, at)
		}
		at = iv.To
	}
	for _, ns := range th.Totals {
		sum += ns
	}
	if at != s.rec.Meta.To || sum != window {
		s.t.Errorf("thread %d: intervals end at %d of %d, totals are %d of %d ns",
			th.TID, at, s.rec.Meta.To, sum, window)
	}
}

func (s *seen) thread(tid uint32) *threads.Thread {
	s.t.Helper()
	for i := range s.threads {
		if s.threads[i].TID == tid {
			return &s.threads[i]
		}
	}
	s.t.Fatalf("thread %d is not there; there are %d", tid, len(s.threads))
	return nil
}

// of returns the waits of a thread with this reason that ended in the window, and their time.
func (s *seen) of(th *threads.Thread, why threads.Reason) (waits []threads.Wait, ns uint64) {
	for _, iv := range th.Intervals {
		if wait, ok := s.waits.Of(iv); ok && iv.State == threads.Blocked && iv.Reason == why {
			ns += iv.Dur()
			if !wait.Open {
				waits = append(waits, wait)
			}
		}
	}
	return waits, ns
}

func (s *seen) share(ns uint64) float64 { return float64(ns) / float64(s.rec.Meta.To-s.rec.Meta.From) }

// mostly checks that a thread was blocked for this reason for at least so much of the
// window, and returns the waits.
func (s *seen) mostly(tid uint32, why threads.Reason, least float64) []threads.Wait {
	s.t.Helper()
	th := s.thread(tid)
	waits, ns := s.of(th, why)
	// On a busy machine it waits for a CPU after each wait: that time proves nothing.
	free := 1 - s.share(th.Totals[threads.Runnable])
	if s.share(ns) < least*free {
		s.t.Errorf(
			"thread %d was blocked in %q for %.1f%% of the window, want %.0f%% of what it was not ready: %s",
			tid,
			why,
			100*s.share(ns),
			100*least,
			s.describe(th),
		)
	}
	return waits
}

func (s *seen) describe(th *threads.Thread) string {
	var b strings.Builder
	for state, ns := range th.Totals {
		fmt.Fprintf(&b, "%v %.1f%% ", threads.State(state), 100*s.share(ns))
	}
	for why, ns := range th.Reasons {
		fmt.Fprintf(&b, "[%v %.1f%%] ", why, 100*s.share(ns))
	}
	return b.String()
}

// wokenBy checks that nearly all waits were ended by this thread. A few are not: the
// sleeper may be woken before it sleeps, which no tracepoint tells.
func (s *seen) wokenBy(waits []threads.Wait, tid uint32) {
	s.t.Helper()
	right := 0
	var wrong threads.Wait
	for _, w := range waits {
		if w.By.TID == tid && !w.By.Interrupt && !w.By.Unknown {
			right++
		} else {
			wrong = w
		}
	}
	if len(waits) < 5 || right*100 < 95*len(waits) {
		s.t.Errorf("%d of %d waits were ended by thread %d; another: %+v", right, len(waits), tid, wrong)
	}
}

func now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}
