package timeline

import "fmt"

// Check returns an error that names the first broken invariant: every event is
// used at most once, threads partition the ops, the ops of a thread are in time
// order and touch the window, and children lie inside their parents.
func (t *Timeline) Check() error {
	used := make([]bool, len(t.Rec.Events))
	next := int32(0)
	for i := range t.Threads {
		th := &t.Threads[i]
		if th.First != next || th.Last <= th.First || int(th.Last) > len(t.Ops) {
			return fmt.Errorf("timeline: thread %d has the ops [%d, %d), want them to begin at %d", i, th.First, th.Last, next)
		}
		next = th.Last
		if err := t.checkThread(th, used); err != nil {
			return fmt.Errorf("timeline: thread %d of process %d: %w", th.TID, t.Processes[th.Process].PID, err)
		}
	}
	if int(next) != len(t.Ops) {
		return fmt.Errorf("timeline: %d ops belong to no thread", len(t.Ops)-int(next))
	}
	return nil
}

func (t *Timeline) checkThread(th *Thread, used []bool) error {
	for i := th.First; i < th.Last; i++ {
		op := &t.Ops[i]
		switch e := t.RawEvent(op); {
		case used[op.Event]:
			return fmt.Errorf("op %d: event %d is used twice", i, op.Event)
		case e.TID != th.TID || e.PID != t.Processes[th.Process].PID:
			return fmt.Errorf("op %d: event %d is of thread %d of process %d", i, op.Event, e.TID, e.PID)
		case i > th.First && op.Start < t.Ops[i-1].Start:
			return fmt.Errorf("op %d begins before op %d", i, i-1)
		case op.End() < t.From || op.Start > t.To:
			return fmt.Errorf("op %d lies outside the window", i)
		}
		used[op.Event] = true
		if err := t.checkParent(th, i); err != nil {
			return err
		}
	}
	return nil
}

func (t *Timeline) checkParent(th *Thread, i int32) error {
	op := &t.Ops[i]
	if op.Outer() {
		return nil
	}
	if op.Parent < th.First || op.Parent >= i {
		return fmt.Errorf("op %d has the parent %d, which is not before it in its thread", i, op.Parent)
	}
	parent := &t.Ops[op.Parent]
	if parent.Timed && op.End() > parent.End() {
		return fmt.Errorf("op %d ends %d ns after its parent %d", i, op.End()-parent.End(), op.Parent)
	}
	return nil
}
