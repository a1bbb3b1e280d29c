package gpu

import "github.com/inferscope/inferscope/internal/event"

// batchEvents is how many events are handed over at once.
const batchEvents = 256

// stuck is how long a slot may be reserved and not whole, in ns: a thread that died between
// the two must not end the reading.
const stuck = 1_000_000_000

// reader empties one ring. It is used by one goroutine, and trusts nothing in the ring:
// whatever is there, a pass looks at no more slots than the ring has, once each.
type reader struct {
	ring  *ring
	tail  uint64 // position of the next slot
	waits uint64 // ns: since when the slot at tail is reserved and not whole; 0: it is not
	full  uint64 // the ring's counter of dropped slots at the last pass
	fill  float64
	decoder
	batch [batchEvents]event.Event
}

// newReader goes on where the ring's last reader stopped.
func newReader(r *ring, d decoder) *reader {
	return &reader{ring: r, decoder: d, tail: r.load64(ringTail), full: r.load64(ringDropped)}
}

// read hands over what the ring holds. last says that nobody writes any more, so that
// what is not whole will never be. now is in ns.
func (r *reader) read(now uint64, last bool, emit func([]event.Event)) {
	head := r.ring.load64(ringHead)
	r.now, r.count = now, counts{}
	if head-r.tail > r.ring.slots { // no agent does that: its slots are gone for us
		r.count.malformed++
		r.tail = head
	}
	r.fill = float64(head-r.tail) / float64(r.ring.slots)
	r.overflow()
	n := 0
	for ; r.tail != head; r.tail++ {
		e := &r.batch[n]
		if !r.take(e, now, last) {
			break
		}
		if n += r.keep(e); n == batchEvents {
			r.deliver(&n, emit)
		}
	}
	r.deliver(&n, emit)
	r.ring.store64(ringTail, r.tail)
	r.facts.losing(saturating(r.ring.load64(ringLost), r.lost))
	r.facts.add(r.count)
	r.facts.sight(r.newest)
}

// take copies the slot at tail to e; false where it is not whole and may still become so.
// What will not become whole is an event of kind None.
func (r *reader) take(e *event.Event, now uint64, last bool) bool {
	want := r.ring.seq(r.tail)
	at := int(ringData + r.tail&(r.ring.slots-1)*slotBytes)
	if r.ring.load32(at+slotSeq) == want {
		r.waits = 0
		r.ring.copy(e, at)
		if e.PID != want { // it changed under our eyes
			e.Kind = event.None
		}
		return true
	}
	if r.waits == 0 {
		r.waits = now
	}
	if !last && now-r.waits < stuck {
		return false
	}
	r.waits = 0
	*e = event.Event{}
	return true
}

// keep returns 1 where e is an event for the recorder.
func (r *reader) keep(e *event.Event) int {
	if r.decode(e) {
		return 1
	}
	return 0
}

func (r *reader) deliver(n *int, emit func([]event.Event)) {
	if *n > 0 {
		emit(r.batch[:*n])
		r.count.events += uint64(*n)
		*n = 0
	}
}

// overflow notes how many slots had no room since the last pass.
func (r *reader) overflow() {
	full := r.ring.load64(ringDropped)
	if full > r.full {
		r.count.full = full - r.full
		r.lost = saturating(r.lost, r.count.full)
	}
	r.full = full
}
