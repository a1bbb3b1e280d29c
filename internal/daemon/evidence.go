package daemon

import (
	"cmp"
	"iter"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// Observer is a source that looks at events while they are fresh, to find names
// that are gone later.
type Observer interface {
	// Observe gets every batch as it comes out of the rings, in the drain goroutine;
	// the batch is valid only until it returns.
	Observe(batch []event.Event)
}

// Completer is a source that knows of something which has no event yet.
type Completer interface {
	// Complete returns events for what was going on at the time to (ns). It is called
	// before the rings are drained for a recording that ends at to: whatever ended
	// meanwhile has its own event as well. It may be called from any goroutine.
	Complete(to uint64) []event.Event
}

// Namer is a source that names what its events refer to by number, for all targets.
type Namer interface {
	Objects() []record.Object
	Strangers() []record.Thread
}

// Gauge is a source that samples the state of the host and of targets' cgroups.
type Gauge interface {
	// Pressure returns the samples of a target within [from, to] (ns), ordered by TS.
	Pressure(root uint32, from, to uint64) []record.Pressure
}

// evidence is what sources add to recordings beside their events.
type evidence struct {
	observers  []Observer
	completers []Completer
	namers     []Namer
	gauges     []Gauge
}

func gather(sources []Source) evidence {
	var e evidence
	for _, s := range sources {
		if o, ok := s.(Observer); ok {
			e.observers = append(e.observers, o)
		}
		if c, ok := s.(Completer); ok {
			e.completers = append(e.completers, c)
		}
		if n, ok := s.(Namer); ok {
			e.namers = append(e.namers, n)
		}
		if g, ok := s.(Gauge); ok {
			e.gauges = append(e.gauges, g)
		}
	}
	return e
}

func (e *evidence) observe(batch []event.Event) {
	for _, o := range e.observers {
		o.Observe(batch)
	}
}

func (e *evidence) complete(to uint64) []event.Event {
	var rows []event.Event
	for _, c := range e.completers {
		rows = append(rows, c.Complete(to)...)
	}
	return rows
}

// name puts the names of a target's files and of strangers into m, and its samples
// of pressure. Only what belongs to the target is told: strangers are the exception.
func (e *evidence) name(m *record.Meta, v *view) {
	for _, n := range e.namers {
		m.Objects = append(m.Objects, slices.DeleteFunc(n.Objects(), func(o record.Object) bool { return !v.has(o.PID) })...)
		m.Strangers = append(m.Strangers, slices.DeleteFunc(n.Strangers(), func(t record.Thread) bool { return v.has(t.PID) })...)
	}
	for _, g := range e.gauges {
		m.Pressure = append(m.Pressure, g.Pressure(v.pid, m.From, m.To)...)
	}
	slices.SortFunc(m.Objects, func(a, b record.Object) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Inode, b.Inode))
	})
	slices.SortFunc(m.Strangers, func(a, b record.Thread) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
}

// with yields the events, and then the rows that want accepts.
func with(events iter.Seq[[]event.Event], rows []event.Event, want func(*event.Event) bool) iter.Seq[[]event.Event] {
	rows = slices.DeleteFunc(slices.Clone(rows), func(e event.Event) bool { return want != nil && !want(&e) })
	if len(rows) == 0 {
		return events
	}
	return func(yield func([]event.Event) bool) {
		for run := range events {
			if !yield(run) {
				return
			}
		}
		yield(rows)
	}
}
