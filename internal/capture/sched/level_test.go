package sched_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// At each level that sums waits, threads ran for as long as the kernel says; what is summed says why.
func TestLevelsKeepTheTotals(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "storm")
	both := []uint32{v.pid, v.threads["partner"]}
	for _, level := range []int{1, 2} {
		w := newWatch(t, sched.Options{Budget: 1 << 31}, v.pid)
		if err := w.source.SetLevel(level); err != nil || w.source.Level() != level {
			t.Fatalf("level %d: %v, it is %d", level, err, w.source.Level())
		}
		w.stormed(window, v.pid, both) // the first slice decides which threads are busy
		outer := [2]uint64{accounted(t, v.pid, both[0]), accounted(t, v.pid, both[1])}
		w.events, w.from = nil, now()
		inner := [2]uint64{accounted(t, v.pid, both[0]), accounted(t, v.pid, both[1])}
		w.stormed(2*window, v.pid, both)
		innerEnd := [2]uint64{accounted(t, v.pid, both[0]), accounted(t, v.pid, both[1])}
		s := w.look()
		outerEnd := [2]uint64{accounted(t, v.pid, both[0]), accounted(t, v.pid, both[1])}
		name := w.source.Levels()[level].Name
		for i, tid := range both {
			th := s.thread(tid)
			s.ranBetween(th, innerEnd[i]-inner[i], outerEnd[i]-outer[i])
			if th.Summed.Count < 1000 {
				t.Errorf("%s: thread %d: %d waits were summed: %s", name, tid, th.Summed.Count, s.describe(th))
			}
			known := uint64(0)
			for _, ns := range th.Summed.Reasons {
				known += ns
			}
			// A wait may be added while the sums are read: to the one already, and to the other not yet.
			apart := max(known, th.Summed.Blocked) - min(known, th.Summed.Blocked)
			if pipes := th.Summed.Reasons[threads.Pipe]; apart > known/100 || pipes < known/2 {
				t.Errorf("%s: thread %d: of %d ns blocked in sums %d are explained, %d as pipes",
					name, tid, th.Summed.Blocked, known, pipes)
			}
		}
		if n, all := s.single(), len(s.rec.Events); n > int(s.thread(both[0]).Summed.Count)/5 {
			t.Errorf("%s: %d waits are events of their own, of %d events", name, n, all)
		}
		if runs := w.source.Runs(0); runs.Count < 1000 || runs.NS < runs.Count ||
			w.source.Runs(v.pid).Count > 2*runs.Count {
			t.Errorf("%s: %+v for all, %+v for the process", name, runs, w.source.Runs(v.pid))
		}
		if err := w.source.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stormed drains for a while, and until each thread has waited 2,000 times by the kernel's own account: where CPUs are
// rare that takes longer.
func (w *watch) stormed(least time.Duration, pid uint32, tids []uint32) {
	w.t.Helper()
	began, limit := waits(w.t, pid, tids), time.Now().Add(time.Minute)
	for w.last(least); ; w.last(10 * time.Millisecond) {
		ended := waits(w.t, pid, tids)
		if ended[0] >= began[0]+2000 && ended[1] >= began[1]+2000 {
			return
		}
		if time.Now().After(limit) {
			w.t.Fatalf("threads %v have waited %v times, at first %v", tids, ended, began)
		}
	}
}

// waits returns how often two threads gave their CPUs up so far, by the kernel's own account.
func waits(t testing.TB, pid uint32, tids []uint32) (n [2]uint64) {
	t.Helper()
	for i := range n {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tids[i]))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		if _, err := fmt.Sscan(after, &n[i]); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// The last level records nothing, and what comes after it is whole again.
func TestLevelOff(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "pipe")
	w := newWatch(t, sched.Options{}, v.pid)
	off := len(w.source.Levels()) - 1
	for _, level := range []int{off, 2, off, 0} {
		must.NoError(t, w.source.SetLevel(level))
		w.last(window)
		before := w.source.Runs(0).Count
		w.last(window)
		if grew := w.source.Runs(0).Count > before; grew != (level != off) {
			t.Errorf("level %d: %d switches, then %d", level, before, w.source.Runs(0).Count)
		}
	}
	if err := w.source.SetLevel(off + 1); err == nil {
		t.Error("there is a level beyond the last")
	}
	w.events, w.from = nil, now()
	w.last(window)
	w.waited(20)
	s := w.look()
	s.wokenBy(s.mostly(v.threads["main"], threads.Pipe, 0.5), v.threads["partner"])
}

// Sums of several reasons stay apart, and a row of a sum that has come meanwhile is left out.
func TestShortOf(t *testing.T) {
	e := event.Event{
		Kind:  event.OffCPU,
		Flags: event.Mark | event.Timed,
		Func:  uint16(event.Short),
		Ret:   1<<30 | 1<<24 | int32(event.Uninterruptible)<<16 | 202,
	}
	one, others, known := event.ShortOf(&e)
	if !known || !others || one.Func != 202 || one.Flags&event.Uninterruptible == 0 || one.Flags&event.Mark != 0 {
		t.Errorf("%+v, %v, %v", one, others, known)
	}
	e.Ret = 0
	if _, _, known := event.ShortOf(&e); known {
		t.Error("a sum of several reasons is known to be of one")
	}
}
