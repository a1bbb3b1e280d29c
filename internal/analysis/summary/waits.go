package summary

import "strings"

// waits gathers the time in which threads are in calls that wait for the device, or can.
type waits struct {
	sync, copies, asyncCopies blocks
}

// blocks gathers the calls of one kind.
type blocks struct {
	intervals []interval
	out       Blocked
}

// of returns where an operation belongs, nil for nowhere. It counts as what its
// outermost call is: a synchronisation inside a copy is part of the copy.
func (w *waits) of(o *op) *blocks {
	switch {
	case o.kind == syncKind:
		return &w.sync
	case o.kind != copyKind:
		return nil
	case isAsync(o.row.Name):
		return &w.asyncCopies
	}
	return &w.copies
}

// time adds a timed call, also one that began before the window.
func (w *waits) time(o *op) {
	if b := w.of(o); b != nil {
		b.intervals = append(b.intervals, interval{o.from, o.to})
		b.out.Time += o.to - o.from
	}
}

// count counts a call that began in the window.
func (w *waits) count(o *op) {
	if b := w.of(o); b != nil {
		b.out.Calls++
		b.out.Longest = max(b.out.Longest, o.Dur)
	}
}

func (w *waits) result(win Window) waiting {
	all := w.sync
	all.intervals = nil
	for _, b := range []*blocks{&w.sync, &w.copies, &w.asyncCopies} {
		all.intervals = append(all.intervals, b.intervals...)
	}
	for _, b := range []*blocks{&w.copies, &w.asyncCopies} {
		all.out.Calls += b.out.Calls
		all.out.Time += b.out.Time
		all.out.Longest = max(all.out.Longest, b.out.Longest)
	}
	return waiting{
		Sync:        w.sync.result(win),
		Copies:      w.copies.result(win),
		AsyncCopies: w.asyncCopies.result(win),
		All:         all.result(win),
	}
}

func (b *blocks) result(win Window) Blocked {
	r := b.out
	r.Any = union(b.intervals)
	r.Share = share(r.Any, win.Observed)
	return r
}

// isAsync reports whether a function's name says that it does not wait.
func isAsync(name string) bool { return strings.Contains(name, "Async") }
