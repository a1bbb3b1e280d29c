package annotate

import (
	"math"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const (
	// batchEvents is how many events are handed over at once.
	batchEvents = 128
	// stuck is how long a record may be begun and not whole, in ns: a thread that died between
	// the two must not end the reading.
	stuck = 1_000_000_000
	// future is how far ahead of now the end of a scope may lie, in ns: it was read off the clock
	// before, so only a liar needs more.
	future = 1_000_000_000
)

// counts are what a reader has met.
type counts struct {
	lost      uint64 // overwritten before they were read
	malformed uint64 // that no package writes
	unnamed   uint64 // whose name, or attributes, had no room
}

// reader reads one ring. It is used by one goroutine, and trusts nothing in the ring:
// a pass looks at no more records than the ring has, once each.
type reader struct {
	ring  *ring
	texts *texts
	payer proc.Payer // of its texts
	tids  *proc.TIDs
	pid   uint32
	born  uint64 // ns: nothing can have happened before
	next  uint64 // number of the next record
	waits uint64 // ns: since when it is begun and not whole; 0: it is not
	known map[uint32]int32
	count counts
	batch [batchEvents]event.Event
}

func newReader(r *ring, t *texts, p *proc.Process) *reader {
	return &reader{
		ring:  r,
		texts: t,
		payer: p.Payer,
		tids:  proc.NewTIDs(p),
		pid:   p.PID,
		born:  p.Born,
		known: map[uint32]int32{},
	}
}

// read hands over what the ring holds. last says that nobody writes any more, so that what
// is not whole will never be. now is in ns.
func (r *reader) read(now uint64, last bool, emit func([]event.Event)) {
	begun := r.ring.begun()
	if begun < r.next { // no package does that
		r.count.malformed++
		r.next = begun
	}
	if held := begun - min(begun, r.ring.slots); held > r.next {
		r.count.lost += held - r.next
		r.next = held
	}
	n := 0
	for ; r.next < begun; r.next++ {
		s, ok := r.ring.copy(r.next)
		if !ok && r.wait(now, last) {
			break
		}
		r.waits = 0
		if !ok {
			r.count.lost++
			continue
		}
		if !r.decode(&s, &r.batch[n], now) {
			r.count.malformed++
			continue
		}
		if n++; n == batchEvents {
			r.deliver(n, emit)
			n = 0
		}
	}
	r.deliver(n, emit)
}

// wait reports whether the next record may still become whole.
func (r *reader) wait(now uint64, last bool) bool {
	if r.waits == 0 {
		r.waits = now
	}
	return !last && now-min(now, r.waits) < stuck
}

func (r *reader) deliver(n int, emit func([]event.Event)) {
	if n > 0 {
		emit(r.batch[:n])
	}
}

// decode makes an event of a record; false where no package writes such a one.
func (r *reader) decode(s *scope, e *event.Event, now uint64) bool {
	if s.start < r.born || s.end < s.start || s.end > now+future || s.id == 0 {
		return false
	}
	name, ok := r.number(s.name)
	attributes, fine := r.number(s.attributes)
	if !ok || !fine {
		return false
	}
	*e = event.Event{
		TS: s.start, Dur: s.end - s.start, PID: r.pid, TID: r.tids.Host(s.tid, now),
		Func: event.ScopeRange, Kind: event.Range, Flags: event.Timed, Ret: name,
		Args: [4]uint64{s.id, s.parent, s.task, uint64(uint32(attributes))},
	}
	if name == 0 {
		r.count.unnamed++
	}
	return true
}

// number returns the number of the text that begins at an offset; 0 where there is none, and
// false where the offset cannot be one.
func (r *reader) number(at uint32) (int32, bool) {
	if at == noName {
		return 0, true
	}
	if n, ok := r.known[at]; ok {
		return n, true
	}
	text, ok := r.ring.text(at)
	if !ok {
		return 0, false
	}
	n := r.texts.add(r.payer, text)
	if len(r.known) >= math.MaxUint16 { // more than the package ever writes: a liar
		clear(r.known)
	}
	r.known[at] = n
	return n, true
}
