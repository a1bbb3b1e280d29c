package gpu

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestHostileRingIsThrottled has a target fill its ring between any two passes, for ten seconds of passes every 10 ms.
func TestHostileRingIsThrottled(t *testing.T) {
	const slots = 1 << 16
	ring, err := newRing(make([]byte, ringData+slots*slotBytes), slots)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(ring, newTestDecoder(7))
	now, head, taken, dropped := uint64(1e12), uint64(0), uint64(0), uint64(0)
	emit := func(batch []event.Event) { taken += uint64(len(batch)) }
	const passes = 1000
	for range passes {
		for ; head < r.tail+slots; head++ {
			at := int(ringData + head&(slots-1)*slotBytes)
			ring.store64(at, now)
			ring.mem[at+26], ring.mem[at+27] = byte(event.Kernel), byte(event.Timed)
			ring.store32(at+slotSeq, ring.seq(head))
		}
		ring.store64(ringHead, head)
		dropped += 1000
		ring.store64(ringDropped, dropped)
		r.read(now, false, emit)
		now += 10_000_000
	}
	limit := uint64(slotsAtOnce + passes*slotsPerSecond/100)
	if taken > limit || taken < limit*9/10 {
		t.Errorf("%d records were taken in 10 s, want %d at most, and hardly less", taken, limit)
	}
	if r.fill != 0 {
		t.Errorf("the ring is said to be filled by %.2f, so that all rings are read more often", r.fill)
	}
	c := r.facts.total()
	if c.throttled < dropped*9/10 || c.full+c.throttled != dropped {
		t.Errorf("%d are counted as throttled and %d as full of %d that had no room", c.throttled, c.full, dropped)
	}
	left := head - r.tail
	r.read(now, true, emit)
	if got := r.facts.total().throttled - c.throttled; r.tail != head || got+slotsPerSecond/100 < left {
		t.Errorf("%d of %d are counted that nobody will read", got, left)
	}
}

// TestBurstIsNotThrottled: one record a microsecond for the length of a window.
func TestBurstIsNotThrottled(t *testing.T) {
	var pace throttle
	for now := uint64(1e12); now < 1e12+200_000_000; now += 10_000_000 {
		pace.begin(now)
		for range 10_000 {
			if !pace.take() {
				t.Fatal("a burst was throttled")
			}
		}
	}
}
