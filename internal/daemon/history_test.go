package daemon

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording/loss"
)

// always is what a recorder needs that has never let go of anything.
func always() uint64 { return 0 }

func TestLossesBelongToTheirWindow(t *testing.T) {
	var now []loss.Loss
	h := newLossHistory(always, func() ([]loss.Loss, error) { return now, nil })
	refused := loss.Loss{Reason: loss.LibraryRefused, Count: 1, PID: 1, Where: "pid 1"}
	full := func(n uint64) loss.Loss {
		return loss.Loss{Reason: loss.RingFull, Count: n, CPU: loss.CPUOf(0), Where: "cpu 0"}
	}
	h.tick(10 * second)
	now = []loss.Loss{full(5)}
	h.tick(20 * second)
	now = []loss.Loss{full(5), refused}
	h.tick(30 * second)
	now = []loss.Loss{full(7), refused}
	h.tick(40 * second)
	for _, c := range []struct {
		name     string
		from, to uint64
		want     []loss.Loss
	}{
		{"everything", 0, 50, []loss.Loss{full(7), refused}},
		{"before the first", 5, 10, nil},
		{"around the first", 12, 25, []loss.Loss{full(5), refused}}, // a state that came up to a sample later
		{"between", 22, 28, []loss.Loss{refused}},
		{"around the second", 32, 45, []loss.Loss{full(2), refused}},
		{"after all", 41, 50, []loss.Loss{refused}},
	} {
		if d := cmp.Diff(c.want, h.within(50*second, c.from*second, c.to*second)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestStatesOfEndedProcesses(t *testing.T) {
	var now []loss.Loss
	h := newLossHistory(always, func() ([]loss.Loss, error) { return now, nil })
	dear := func(pid string) loss.Loss {
		return loss.Loss{Reason: loss.ExpensivePoint, Count: 3, Where: "pid " + pid}
	}
	h.tick(10 * second)
	now = []loss.Loss{dear("1"), dear("2")}
	h.tick(20 * second)
	now = []loss.Loss{dear("2")} // 1 is gone, and its source forgot it
	h.tick(30 * second)
	if d := cmp.Diff([]loss.Loss{dear("1"), dear("2")}, h.within(40*second, 15*second, 18*second)); d != "" {
		t.Errorf("while both ran (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]loss.Loss{dear("2")}, h.within(40*second, 31*second, 40*second)); d != "" {
		t.Errorf("afterwards (-want +got):\n%s", d)
	}
	want := []loss.Loss{dear("2"), {Reason: loss.ExpensivePoint, Count: 3, Where: "processes that are gone"}}
	if d := cmp.Diff(want, h.total(40*second)); d != "" {
		t.Errorf("in all (-want +got):\n%s", d)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	reads, n := 0, uint64(0)
	h := newLossHistory(always, func() ([]loss.Loss, error) {
		reads++
		return []loss.Loss{
			{Reason: loss.RingFull, Count: n},
			{Reason: loss.ProbeFailed, Count: 1, Where: fmt.Sprintf("pid %d", n)},
		}, nil
	})
	for i := range uint64(100) {
		h.tick(10*second + i*second/10)
	}
	if reads != 10 || len(h.changes) != 0 {
		t.Errorf("%d reads and %d changes in ten seconds, want 10 and none", reads, len(h.changes))
	}
	const more = 2 * maxLossChanges
	for range more {
		n++
		h.tick((100 + n) * second)
	}
	if len(h.changes) > maxLossChanges || len(h.ended) > maxEndedStates || len(h.states) != 1 {
		t.Errorf("%d changes and %d+%d states are kept", len(h.changes), len(h.states), len(h.ended))
	}
	end := (100 + n) * second
	if got := h.within(end, end-10*second, end); got[0].Count != 10 {
		t.Errorf("in the last ten seconds %+v, want 10", got[0])
	}
	if got := h.total(end); got[0].Count != more || got[len(got)-1].Count != more {
		t.Errorf("in all %+v, want %d of each", got, more)
	}
}

// TestHistoryOfEndedProcesses: however many processes lose something and end, what is kept is no more than windows
// reach back to, and the sums are right.
func TestHistoryOfEndedProcesses(t *testing.T) {
	const keep, processes = 60, 5000
	var now uint64
	h := newLossHistory(func() uint64 { return now - keep*second }, func() ([]loss.Loss, error) {
		pid := uint32(now / second)
		return []loss.Loss{
			{Reason: loss.SamplesPaused, Count: 2, PID: pid, Where: fmt.Sprintf("pid %d", pid)},
			{Reason: loss.AgentRefused, Count: 1, PID: pid, Where: fmt.Sprintf("pid %d", pid)},
			{Reason: loss.StackLeaf, Count: now / second},
		}, nil
	})
	for i := range uint64(processes) {
		now = (1000 + i) * second
		h.tick(now)
		kept := len(h.changes)/2 + len(h.ended) // each process is one of each, and one more of all
		if kept > 2*(keep*4/3+2) || len(h.states) != 1 || len(h.counted) != 2 {
			t.Fatalf("after %d processes: %d changes and %d ended states are kept, %d states, %d counters",
				i, len(h.changes), len(h.ended), len(h.states), len(h.counted))
		}
	}
	sums := map[loss.Reason]uint64{}
	for _, l := range h.within(now, now-keep*second, now) {
		sums[l.Reason] += l.Count
	}
	want := map[loss.Reason]uint64{loss.SamplesPaused: 2 * keep, loss.AgentRefused: keep + 1, loss.StackLeaf: keep}
	if d := cmp.Diff(want, sums); d != "" {
		t.Errorf("in the longest window (-want +got):\n%s", d)
	}
}

// TestCountersOfEndedProcesses: a pid that is used again loses anew, and counters of processes that are gone do not
// pile up.
func TestCountersOfEndedProcesses(t *testing.T) {
	var losses []loss.Loss
	var failed error
	h := newLossHistory(always, func() ([]loss.Loss, error) { return losses, failed })
	at := func(s uint64, n uint64) {
		losses = []loss.Loss{{Reason: loss.SamplesPaused, Count: n, PID: 7, Where: "pid 7"}}
		h.tick(s * second)
	}
	at(10, 100)
	at(11, 30) // another process
	if got := h.within(11*second, 10*second, 11*second); len(got) != 1 || got[0].Count != 30 {
		t.Errorf("of a pid that is used again: %+v, want 30", got)
	}
	losses = nil
	h.tick(12 * second)
	at(13, 5) // and one more, after a while
	if got := h.within(13*second, 12*second, 13*second); len(got) != 1 || got[0].Count != 5 {
		t.Errorf("of a pid that is used again later: %+v, want 5", got)
	}
	failed, losses = errors.New("bad file descriptor"), nil
	h.tick(14 * second)
	failed = nil
	at(15, 5)
	if got := h.within(15*second, 14*second, 15*second); len(got) != 0 {
		t.Errorf("what could not be read once is counted again: %+v", got)
	}
	sum := uint64(0)
	for _, l := range h.total(15 * second) {
		sum += l.Count
	}
	if sum != 135 {
		t.Errorf("in all %d, want 135", sum)
	}
	for pid := range uint64(10_000) {
		losses = []loss.Loss{{Reason: loss.SamplesPaused, Count: 1, Where: fmt.Sprintf("pid %d", 100+pid)}}
		h.tick((100 + pid) * second)
	}
	if len(h.counted) != 1 {
		t.Errorf("%d counters are kept of processes that are gone, want 1", len(h.counted))
	}
}

func TestLossesThatCannotBeReadAreALoss(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	w.rings.mu.Lock()
	w.rings.err = errors.New("bad file descriptor")
	w.rings.mu.Unlock()
	got := d.Status().Losses
	if len(got) != 1 || got[0].Reason != loss.RingFull || got[0].Detail == "" {
		t.Errorf("losses = %+v: nothing known must not look like nothing lost", got)
	}
}

func TestOrderOfLosses(t *testing.T) {
	got := ordered([]loss.Loss{
		{Reason: "from the future"},
		{Reason: loss.Overwritten},
		{Reason: loss.RingFull, CPU: loss.CPUOf(10), Where: "cpu 10"},
		{Reason: loss.RingFull, CPU: loss.CPUOf(9), Where: "cpu 9"},
		{Reason: loss.RingFull},
	})
	want := []loss.Loss{
		{Reason: loss.RingFull},
		{Reason: loss.RingFull, CPU: loss.CPUOf(9), Where: "cpu 9"},
		{Reason: loss.RingFull, CPU: loss.CPUOf(10), Where: "cpu 10"},
		{Reason: loss.Overwritten},
		{Reason: "from the future"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}
