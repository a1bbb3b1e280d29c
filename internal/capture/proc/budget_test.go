package proc

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

func TestBudgets(t *testing.T) {
	now := uint64(1)
	b := newBudgets(func() uint64 { return now })
	alone, shared, other := &Process{
		PID:  1,
		Root: 1,
	}, &Process{
		PID:   2,
		Root:  2,
		Owner: 7,
	}, &Process{
		PID:   3,
		Root:  3,
		Owner: 7,
	}
	for _, p := range []*Process{alone, shared, other} {
		b.open(p)
		if !b.may(p.Root) {
			t.Errorf("nothing was spent for %d", p.Root)
		}
	}
	b.spend(2, budgetBurst+time.Second)
	if b.may(2) || b.may(3) || !b.may(1) {
		t.Error("targets of one user must share a budget, and no other")
	}
	now += uint64(float64(time.Second)/budgetShare) - 1e6
	if b.may(2) {
		t.Error("a debt of a second is paid too early")
	}
	now += 2e6 + 1e6
	if !b.may(2) || !b.may(3) {
		t.Error("a debt of a second is not paid in time")
	}
	b.spend(2, time.Hour)
	now += uint64(float64(deepestDebt)/budgetShare) + 1e6
	if !b.may(2) {
		t.Error("a debt must have a bottom")
	}
	b.spend(2, budgetBurst)
	b.forget(map[uint32]bool{1: true})
	if len(b.payers) != 1 {
		t.Errorf("%d targets are remembered, want 1", len(b.payers))
	}
	b.open(other)
	if b.may(3) {
		t.Error("a user gets rid of a debt by a new target")
	}
	now += uint64(float64(deepestDebt) / budgetShare)
	b.forget(map[uint32]bool{1: true})
	if len(b.left) != 1 {
		t.Errorf("%d users are remembered, want that of the target which is left", len(b.left))
	}
}

// exhaust takes all that a target may cost for a while.
func (w *watch) exhaust(root int) { w.Spent(uint32(root), time.Hour) }

// TestStormsArePutOff: what a target does faster than its budget allows costs next to nothing; what of it stays is
// told of later, the rest is counted.
func TestStormsArePutOff(t *testing.T) {
	v, quiet := newVictim(t), newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	w.add(quiet.pid)
	_ = w.do(func() { // each target of root's pays for itself
		for _, root := range []int{v.pid, quiet.pid} {
			if !w.budgets.may(uint32(root)) {
				t.Errorf("%d has no budget at first", root)
			}
		}
	})
	w.exhaust(v.pid)
	v.numbers("storm 300") // waits for all its children
	lasting := v.tell("fork")
	if child := quiet.tell("fork"); w.next(Appeared, child).Process.PID != uint32(child) {
		t.Error("another target's child")
	}
	_ = w.do(func() {
		w.drainEvents()
		for pid, x := range w.table.live {
			if x.untold && pid != uint32(lasting) {
				t.Errorf("%d of the storm is there still", pid)
			}
		}
	})
	for _, c := range w.seen {
		if c.Process.Root == uint32(v.pid) && c.Process.PID != uint32(v.pid) {
			t.Errorf("%v of %d was told although there was no budget", c.Kind, c.Process.PID)
		}
	}
	skipped := loss.Loss{}
	for deadline := time.Now().Add(testTimeout); skipped.Count < 300 &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, l := range w.Losses() {
			if l.Reason == loss.ProcessesSkipped {
				skipped = l
			}
		}
	}
	if skipped.Count != 300 || !strings.HasPrefix(skipped.Where, "pid ") || atoi(t, skipped.Where[4:]) != v.pid {
		t.Errorf("skipped is %+v, want 300 of target %d", skipped, v.pid)
	}
	_ = w.do(func() { // time passes
		w.budgets.mu.Lock()
		defer w.budgets.mu.Unlock()
		clear(w.budgets.left)
	})
	if p := w.next(Appeared, lasting).Process; p.Parent != uint32(v.pid) || !p.Alive() || p.Owner != Root {
		t.Errorf("the child that stays is %+v", p)
	}
}

// TestOwnersAreToldWithoutBudget: who may see a process does not wait.
func TestOwnersAreToldWithoutBudget(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	w.exhaust(v.pid)
	v.must("setuid %d", nobody)
	yes, err := exec.LookPath("yes") // runs until nobody reads any more of what it writes
	if err != nil {
		t.Skip("needs yes")
	}
	v.send("exec %s", yes)
	c := w.next(Renewed, v.pid)
	if c.Process.Owner != nobody {
		t.Errorf("it is %+v", c.Process)
	}
	_ = w.do(func() {
		w.budgets.mu.Lock()
		defer w.budgets.mu.Unlock()
		clear(w.budgets.left)
	})
	if late := w.next(Execed, v.pid); late.At != c.At {
		t.Errorf("the program began at %d, and is told to have begun at %d", c.At, late.At)
	}
}

// TestExecLoop: a process that begins programs without end costs its sources a few of them; the one that stays is told.
func TestExecLoop(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	const programs = 1000
	tell := func() {
		_ = w.do(func() {
			w.execed(event.Event{PID: uint32(v.pid), TS: monotonic(), Kind: event.Exec})
			w.catchUp() // were it time
		})
	}
	last := uint64(0)
	for range programs {
		tell()
	}
	_ = w.do(func() { last = w.table.live[uint32(v.pid)].execed })
	told := 0
	for last != 0 {
		c := w.next(Execed, v.pid)
		told++
		if c.At == last {
			break
		}
	}
	if told > maxExecs+1 {
		t.Errorf("%d of %d programs were told, want %d and the last", told, programs, maxExecs)
	}
	skipped := uint64(0)
	for _, l := range w.Losses() {
		if l.Reason == loss.ProcessesSkipped {
			skipped += l.Count
		}
	}
	if skipped+uint64(told) != programs {
		t.Errorf("%d programs were told and %d skipped, of %d", told, skipped, programs)
	}
}
