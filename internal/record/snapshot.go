package record

import (
	"iter"
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/loss"
)

// Snapshot is an immutable view of what a Recorder held of a window at one
// moment. The recorder goes on meanwhile, with less room until Release.
type Snapshot struct {
	rec         *Recorder
	from, to    uint64
	since       uint64
	overwritten uint64
	views       []view
	release     sync.Once
}

// view is the part of a chunk that had been written when the snapshot was taken.
// The events are read without a lock: the writer touches only what lies behind them.
type view struct {
	chunk  *chunk
	events []event.Event
	span   span
}

// Snapshot takes a view of the events that overlap [from, to], in ns of
// CLOCK_MONOTONIC, both included. The lock is held for a few ns per MiB held.
// While other snapshots hold most of the memory, it shows only the newest part of
// the window, or nothing; its Since says from when on it is complete.
func (r *Recorder) Snapshot(from, to uint64) *Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Snapshot{rec: r, from: from, to: to, since: r.stats.Since, overwritten: r.stats.Overwritten}
	full := false
	for _, c := range slices.Backward(r.live) {
		if !c.span.touches(from, to) {
			continue
		}
		// Once a chunk is left out, older ones are as well: a hole could not be told from idleness.
		if full = full || c.pins == 0 && r.pinned >= r.maxPinned; full {
			s.since = max(s.since, c.span.last+1)
			continue
		}
		r.pin(c)
		s.views = append(s.views, view{chunk: c, events: slices.Clip(c.events), span: c.span})
	}
	slices.Reverse(s.views)
	return s
}

func (r *Recorder) pin(c *chunk) {
	if c.pins == 0 {
		r.pinned++
	}
	c.pins++
}

func (r *Recorder) unpin(c *chunk) {
	if c.pins--; c.pins > 0 {
		return
	}
	r.pinned--
	if !c.live {
		r.free = append(r.free, c)
	}
}

// Release gives the memory back to the recorder. The events that the snapshot
// handed out must not be read any more. Calling it again does nothing.
func (s *Snapshot) Release() {
	s.release.Do(func() {
		s.rec.mu.Lock()
		defer s.rec.mu.Unlock()
		for i := range s.views {
			s.rec.unpin(s.views[i].chunk)
		}
		s.views = nil
	})
}

// Window returns the window that was asked for.
func (s *Snapshot) Window() (from, to uint64) { return s.from, s.to }

// Since returns the time (ns, CLOCK_MONOTONIC) from which the snapshot is
// complete: every event that began then or later, and before it was taken, and
// overlaps its window, is in it. 0: every event.
func (s *Snapshot) Since() uint64 { return s.since }

// Losses returns the events that the recorder overwrote, where the window reaches
// back to them; else nothing.
func (s *Snapshot) Losses() []loss.Loss {
	if s.overwritten == 0 || s.since <= s.from {
		return nil
	}
	return []loss.Loss{{Reason: loss.Overwritten, Count: s.overwritten}}
}

// Events yields the events that overlap the window and that want accepts, in
// the order of their arrival, as runs in the recorder's own memory: nothing is
// copied. A nil want accepts all. It may be called again, until Release.
func (s *Snapshot) Events(want func(*event.Event) bool) iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) {
		for i := range s.views {
			v := &s.views[i]
			if want == nil && v.span.within(s.from, s.to) {
				if !yield(v.events) {
					return
				}
				continue
			}
			if !runs(v.events, s.accepts(want), yield) {
				return
			}
		}
	}
}

func (s *Snapshot) accepts(want func(*event.Event) bool) func(*event.Event) bool {
	return func(e *event.Event) bool { return overlaps(e, s.from, s.to) && (want == nil || want(e)) }
}

// runs yields the maximal runs of events that ok accepts; false once yield wants no more.
func runs(events []event.Event, ok func(*event.Event) bool, yield func([]event.Event) bool) bool {
	begin := -1
	for i := range events {
		switch accepted := ok(&events[i]); {
		case accepted && begin < 0:
			begin = i
		case !accepted && begin >= 0:
			if !yield(events[begin:i:i]) {
				return false
			}
			begin = -1
		}
	}
	return begin < 0 || yield(events[begin:])
}
