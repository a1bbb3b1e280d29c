package gpu

import "github.com/inferscope/inferscope/internal/recording/event"

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
	pace  throttle
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
	r.pace.begin(now)
	n := 0
	for ; r.tail != head && r.pace.take(); r.tail++ {
		e := &r.batch[n]
		if !r.take(e, now, last) {
			break
		}
		if n += r.keep(e); n == batchEvents {
			r.deliver(&n, emit)
		}
	}
	r.deliver(&n, emit)
	r.shed(head, last)
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
		n := full - r.full
		if r.pace.spent { // there was no room because of us
			r.count.throttled = n
		} else {
			r.count.full = n
		}
		r.lost = saturating(r.lost, n)
	}
	r.full = full
}

// shed ends a pass that stopped before head for want of credit. What is left waits for the next pass, in which the
// ring's writer counts what has no room; after the last pass there is none. A ring that is full because of that is no
// reason to read all of them more often.
func (r *reader) shed(head uint64, last bool) {
	if !r.pace.spent {
		return
	}
	r.fill = 0
	if last {
		r.count.throttled = saturating(r.count.throttled, head-r.tail)
		r.tail = head
	}
}

// How many slots of one ring are read: a target writes there what it likes, as fast as it likes. 250,000 a second are
// the most that a program on a GPU was seen to make over seconds, one a microsecond for the length of a window.
const (
	slotsPerSecond = 1_000_000
	slotsAtOnce    = slotsPerSecond / 2
)

// throttle is the credit of one ring.
type throttle struct {
	left  uint64 // slots that may be read
	at    uint64 // ns: of the last pass; 0: there was none
	spent bool   // the last pass ended for want of credit
}

func (t *throttle) begin(now uint64) {
	more := uint64(slotsAtOnce)
	if t.at != 0 {
		more = min(now-min(now, t.at), 1_000_000_000) / 1000 * slotsPerSecond / 1_000_000
	}
	t.left = min(t.left+more, slotsAtOnce)
	t.at, t.spent = now, false
}

// take returns false where there is no credit for another slot.
func (t *throttle) take() bool {
	if t.left == 0 {
		t.spent = true
		return false
	}
	t.left--
	return true
}
