package timeline

import (
	"fmt"
	"slices"
)

// Check returns an error that names the first broken invariant: every event is
// used at most once, threads partition the ops, the ops of a thread are in time
// order and touch the window, children lie inside their parents, activities lie in windows of
// their process, and what waited did not wait for what had ended.
func (t *Timeline) Check() error {
	used := make([]bool, len(t.Rec.Events))
	next := int32(0)
	for i := range t.Threads {
		th := &t.Threads[i]
		if th.First != next || th.Last <= th.First || int(th.Last) > len(t.Ops) {
			return fmt.Errorf("timeline: thread %d has the ops [%d, %d), want them to begin at %d",
				i, th.First, th.Last, next)
		}
		next = th.Last
		if err := t.checkThread(th, used); err != nil {
			return fmt.Errorf("timeline: thread %d of process %d: %w", th.TID, t.Processes[th.Process].PID, err)
		}
	}
	if int(next) != len(t.Ops) {
		return fmt.Errorf("timeline: %d ops belong to no thread", len(t.Ops)-int(next))
	}
	if err := t.checkActivities(used); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	if err := t.checkCopies(); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	if err := t.checkSyncs(); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

// checkCopies holds that Copies has all of them, in their order.
func (t *Timeline) checkCopies() error {
	next := 0
	for i := range t.Activities {
		if a := &t.Activities[i]; a.Kind != Copy || a.Graph {
			continue
		}
		if next == len(t.Copies) || t.Copies[next] != int32(i) {
			return fmt.Errorf("the copy %d is not in its place %d of Copies", i, next)
		}
		next++
	}
	if next != len(t.Copies) {
		return fmt.Errorf("%d of Copies are none", len(t.Copies)-next)
	}
	for i, x := range t.Exchanges {
		if _, found := slices.BinarySearch(t.Copies, x.Activity); !found || !t.Activities[x.Activity].Exchange ||
			i > 0 && t.Exchanges[i-1].Activity >= x.Activity {
			return fmt.Errorf("the exchange %d is of no copy, or out of order", i)
		}
	}
	return nil
}

// checkSyncs holds that what waited points to what there is, and that an activity that was waited for did not
// end before the wait began.
func (t *Timeline) checkSyncs() error {
	for i := range t.Syncs {
		y := &t.Syncs[i]
		switch {
		case i > 0 && y.Start < t.Syncs[i-1].Start:
			return fmt.Errorf("sync %d begins before the one before it", i)
		case y.End < y.Start || int(y.Process) >= len(t.Processes) || int(y.Op) >= len(t.Ops) ||
			int(y.Stream) >= len(t.Streams):
			return fmt.Errorf("sync %d is broken: %+v", i, *y)
		case int(y.Activity) >= len(t.Activities) || (y.Activity == None) != (y.Done == 0):
			return fmt.Errorf("sync %d waits for activity %d, which ended at %d", i, y.Activity, y.Done)
		case y.Activity != None && y.Done < y.Start:
			return fmt.Errorf("sync %d waits for what ended %d ns before it", i, y.Start-y.Done)
		}
	}
	for i := range t.Edges {
		e := &t.Edges[i]
		switch {
		case e.To < 0 || int(e.To) >= len(t.Activities) || int(e.From) >= len(t.Activities) || i > 0 &&
			e.To < t.Edges[i-1].To:
			return fmt.Errorf("edge %d goes from activity %d to %d", i, e.From, e.To)
		case e.Wait < 0 || int(e.Wait) >= len(t.Ops) || int(e.Record) >= len(t.Ops) ||
			(e.Record == None) != (e.Kind != EventEdge):
			return fmt.Errorf("edge %d: ops %d and %d", i, e.Wait, e.Record)
		}
	}
	return nil
}

// checkActivities holds that devices partition the activities, that those of a device
// are in time order and inside a window of their process, and that links point to calls.
func (t *Timeline) checkActivities(used []bool) error {
	next := int32(0)
	for d := range t.Devices {
		dev := &t.Devices[d]
		if dev.First != next || dev.Last < dev.First || int(dev.Last) > len(t.Activities) {
			return fmt.Errorf("device %d has the activities [%d, %d), want them to begin at %d",
				d, dev.First, dev.Last, next)
		}
		for next = dev.First; next < dev.Last; next++ {
			if err := t.checkActivity(int32(d), next, used); err != nil {
				return fmt.Errorf("activity %d of device %d: %w", next, d, err)
			}
		}
	}
	if int(next) != len(t.Activities) {
		return fmt.Errorf("%d activities belong to no device", len(t.Activities)-int(next))
	}
	return nil
}

func (t *Timeline) checkActivity(device, i int32, used []bool) error {
	a := &t.Activities[i]
	s := &t.Streams[a.Stream]
	seen := t.Seen[s.Process].Activity
	at := seen.At(a.Start)
	if at == len(seen) || at > 0 && seen[at].From > a.Start {
		at = max(0, at-1) // it ends where the window does
	}
	switch {
	case used[a.Event]:
		return fmt.Errorf("event %d is used twice", a.Event)
	case s.Device != device:
		return fmt.Errorf("its stream is of device %d", s.Device)
	case a.End < a.Start || i > t.Devices[device].First && a.Start < t.Activities[i-1].Start:
		return fmt.Errorf("it is out of order: [%d, %d]", a.Start, a.End)
	case len(seen) == 0 || a.Start < seen[at].From || a.End > seen[at].To:
		return fmt.Errorf("[%d, %d] lies in no window", a.Start, a.End)
	case (a.Op == None) != (a.Link == Unlinked) || a.Op != None && int(a.Op) >= len(t.Ops):
		return fmt.Errorf("op %d with link %d", a.Op, a.Link)
	case !(t.Confidence(i) >= 0 && t.Confidence(i) <= 1) || (t.Confidence(i) == 0) != (a.Link == Unlinked):
		return fmt.Errorf("confidence %f with link %d", t.Confidence(i), a.Link)
	}
	used[a.Event] = true
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
