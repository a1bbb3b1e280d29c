package recording

import (
	"iter"
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
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

// view is the part of a segment that had been written when the snapshot was taken.
// It is read without a lock: the writer touches only what lies behind it.
type view struct {
	segment *segment
	packed  []byte
	count   int
	sum     uint32
	span    span
	damaged bool // and counted
}

// Snapshot takes a view of the events that overlap [from, to], in ns of
// CLOCK_MONOTONIC, both included: of the given owners and of processes that are nobody's, or, where
// none is given, of all. The lock is held for a few ns per MiB held.
// While other snapshots hold most of the memory, it shows only the newest part of
// the window, or nothing; its Since says from when on it is complete.
func (r *Recorder) Snapshot(from, to uint64, owners ...Owner) *Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Snapshot{rec: r, from: from, to: to}
	histories := r.chosen(owners)
	if len(owners) > 0 && len(histories) <= len(owners) {
		s.since = r.forgotten
	}
	shown := 0
	for _, h := range histories {
		s.since = max(s.since, h.since)
		s.overwritten += h.overwritten
		shown += s.take(h, maxShown-shown)
	}
	return s
}

// take adds views of a history's events, at most so many, and returns how many they are.
func (s *Snapshot) take(h *history, most int) int {
	r, shown, full := s.rec, 0, false
	pinnable := r.pinnable(h.owner.UID)
	first := len(s.views)
	for _, c := range slices.Backward(h.live) {
		if !c.span.touches(s.from, s.to) {
			continue
		}
		// Once a segment is left out, older ones are as well: a hole could not be told from idleness.
		if full = full || c.pins == 0 && pinnable <= 0 || shown+c.count > most; full {
			s.since = max(s.since, c.span.last+1)
			continue
		}
		if c.pins == 0 {
			pinnable--
		}
		r.pin(c)
		c.checksum()
		shown += c.count
		s.views = append(s.views,
			view{segment: c, packed: c.room[:c.used:c.used], count: c.count, sum: c.sum, span: c.span})
	}
	slices.Reverse(s.views[first:])
	return shown
}

func (r *Recorder) pin(s *segment) {
	if s.pins == 0 {
		r.pinned++
		s.history.pinned++
	}
	s.pins++
}

func (r *Recorder) unpin(s *segment) {
	if s.pins--; s.pins > 0 {
		return
	}
	r.pinned--
	s.history.pinned--
	if !s.live {
		s.history.retained--
		r.free = append(r.free, s)
	}
}

// Release gives the memory back to the recorder. The events that the snapshot
// handed out must not be read any more. Calling it again does nothing.
func (s *Snapshot) Release() {
	s.release.Do(func() {
		s.rec.mu.Lock()
		defer s.rec.mu.Unlock()
		for i := range s.views {
			s.rec.unpin(s.views[i].segment)
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

// unpacker is the state of reading a snapshot.
type unpacker struct {
	state state
	room  [1024]event.Event
}

//nolint:gochecknoglobals // a pool
var unpackers = sync.Pool{New: func() any { return new(unpacker) }}

// Events yields the events that overlap the window and that want accepts, target by target in
// the order of their arrival. A nil want accepts all. A run is valid, and the caller's to change, until the
// next one. It may be called again, until Release.
func (s *Snapshot) Events(want func(*event.Event) bool) iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) {
		u := unpackers.Get().(*unpacker)
		defer unpackers.Put(u)
		for i := range s.views {
			v, goOn := &s.views[i], true
			err := u.state.unpackAll(v.packed, v.count, v.sum, u.room[:], func(events []event.Event) bool {
				if want == nil && v.span.within(s.from, s.to) {
					goOn = yield(events)
				} else {
					goOn = runs(events, s.accepts(want), yield)
				}
				return goOn
			})
			if err != nil {
				s.rec.damaged(v)
			}
			if !goOn {
				return
			}
		}
	}
}

// damaged counts the events of a view that could not be read, once.
func (r *Recorder) damaged(v *view) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !v.damaged {
		r.stats.Damaged += uint64(v.count)
		v.damaged = true
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
