package sched_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Beyond the budget intervals are summed; the sums keep the totals right.
func TestStormIsSummed(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "futex")
	w := newWatch(t, sched.Options{Budget: 20}, v.pid)
	w.last(2 * window)
	s := w.look()
	th := s.thread(v.threads["main"])
	if th.Summed.Count < 20 || s.share(th.Totals[threads.Blocked]) < 0.7 {
		t.Errorf("%d waits were summed (%d ns blocked): %s", th.Summed.Count, th.Summed.Blocked, s.describe(th))
	}
	if n := s.single(); n > 4*20 {
		t.Errorf("%d intervals were sent one by one with a budget of 20 per second", n)
	}
	w.tellsOfStorm(20)
}

// single counts the intervals that were sent one by one.
func (s *seen) single() int {
	n := 0
	for _, e := range s.rec.Events {
		if e.Kind == event.OffCPU && e.Flags&(event.Mark|event.Open) == 0 {
			n++
		}
	}
	return n
}

// tellsOfStorm checks that the losses and the state of the source say that switches were summed.
func (w *watch) tellsOfStorm(budget int) {
	w.t.Helper()
	limit := fmt.Sprintf("more than %d ", budget)
	said := slices.ContainsFunc(w.source.Losses(), func(l loss.Loss) bool {
		return l.Reason == loss.SwitchesSummed && l.Count >= 20 && strings.Contains(l.Detail, limit)
	})
	if !said {
		w.t.Errorf("losses %+v: none tells of the switches that were summed", w.source.Losses())
	}
	if d := w.source.State().Detail; !strings.Contains(d, "storm") || !strings.Contains(d, limit) {
		w.t.Errorf("the state says %q", d)
	}
}

// Two threads that do nothing but hand the CPU to each other: more than any budget. What is
// sent stays in it, and how long the threads ran is still what the kernel itself counted.
func TestStormOfHundredsOfThousands(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "storm")
	const budget = 2000
	w := newWatch(t, sched.Options{Budget: budget}, v.pid)
	both := []uint32{v.pid, v.threads["partner"]}
	account := func() map[uint32]uint64 {
		out := map[uint32]uint64{}
		for _, tid := range both {
			out[tid] = accounted(t, v.pid, tid)
		}
		return out
	}
	outer := account()
	w.from = now()
	inner := account()
	w.last(2 * window)
	innerEnd := account()
	s := w.look()
	outerEnd := account()
	seconds := float64(s.rec.Meta.To-s.rec.Meta.From) / 1e9
	for _, tid := range both {
		th := s.thread(tid)
		s.ranBetween(th, innerEnd[tid]-inner[tid], outerEnd[tid]-outer[tid])
		if float64(th.Summed.Count) < 5*budget*seconds {
			t.Errorf("thread %d: %d waits were summed in %.1f s; this is no storm", tid, th.Summed.Count, seconds)
		}
	}
	if n := s.single(); float64(n) > 3.5*budget*(seconds+0.2) {
		t.Errorf("%d intervals were sent one by one in %.1f s with a budget of %d per second", n, seconds, budget)
	}
	w.tellsOfStorm(budget)
}

// ranBetween checks how long a thread ran against the kernel's own account, read within the
// window and around it. The kernel brings it up to date with each tick, and a tenth of the
// window is for interrupts, whose time one counts and the other does not.
func (s *seen) ranBetween(th *threads.Thread, inner, outer uint64) {
	s.t.Helper()
	slack := (s.rec.Meta.To - s.rec.Meta.From) / 10
	if got := th.Totals[threads.Running]; got+slack < inner || got > outer+slack {
		s.t.Errorf("thread %d ran for %d to %d ns by the kernel's account, and %d by ours: %s",
			th.TID, inner, outer, got, s.describe(th))
	}
}

// accounted returns for how many ns a thread ran so far, by the kernel's own account.
func accounted(t *testing.T, pid, tid uint32) (ran uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	if err != nil {
		t.Skip("needs schedstat: ", err)
	}
	if _, err := fmt.Sscan(string(text), &ran); err != nil {
		t.Fatal(err)
	}
	return ran
}

// Thousands of threads: each is followed, and the partition of each is whole.
func TestThousandsOfThreads(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "crowd", "3000")
	w := newWatch(t, sched.Options{Budget: 5000}, v.pid)
	w.last(2 * window)
	s := w.look()
	if len(s.threads) != 3001 {
		t.Fatalf("%d threads, want 3,001", len(s.threads))
	}
	// Sent are at most three budgets of intervals, as many sums in front of them, and one of old sums.
	sent, seconds := len(w.events), float64(now()-w.from)/1e9
	if limit := 7*5000*(seconds+0.2) + 2*3001; float64(sent) > limit {
		t.Errorf("%d events in %.1f s, want at most %.0f", sent, seconds, limit)
	}
	sleeping := 0
	for i := range s.threads {
		th := &s.threads[i]
		if th.Totals[threads.Absent] != 0 {
			t.Fatalf("thread %d was away: %s", th.TID, s.describe(th))
		}
		if s.share(th.Totals[threads.Blocked]) > 0.1 {
			sleeping++
		}
	}
	if sleeping < 2900 {
		t.Errorf("%d of 3,001 threads sleep", sleeping)
	}
	for _, l := range w.source.Losses() {
		if l.Reason == loss.ThreadsMissed {
			t.Errorf("lost: %+v", l)
		}
	}
	w.tellsOfStorm(5000)
}
