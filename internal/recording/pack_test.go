package recording

import (
	"bytes"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// fill makes an event of random bits.
func fill(e *event.Event, r rand.Source) {
	words := (*[event.Size / 8]uint64)(unsafe.Pointer(e))
	for i := range words {
		words[i] = r.Uint64()
	}
}

// packAll packs events into one segment's bytes.
func packAll(events []event.Event) []byte {
	s, b, n := new(state), make([]byte, (len(events)+1)*maxPacked), 0
	for i := range events {
		n += s.pack(b[n:], &events[i])
	}
	return b[:n]
}

func unpackSlice(packed []byte, count int, sum uint32) (all []event.Event, err error) {
	u := new(unpacker)
	err = u.state.unpackAll(packed, count, sum, u.room[:], func(events []event.Event) bool {
		all = append(all, events...)
		return true
	})
	return all, err
}

func roundTrip(t *testing.T, events []event.Event) []byte {
	t.Helper()
	packed := packAll(events)
	got, err := unpackSlice(packed, len(events), crc32.Checksum(packed, castagnoli))
	if err != nil || !slices.Equal(got, events) {
		t.Fatalf("%d events came back as %d, error %v", len(events), len(got), err)
	}
	return packed
}

// TestPackedComesBack packs what is like nothing before, like what came before, and the ends of each range.
func TestPackedComesBack(t *testing.T) {
	src := rand.NewPCG(3, 4)
	r := rand.New(src)
	for range 50 {
		events := make([]event.Event, r.IntN(4000))
		for i := range events {
			e := &events[i]
			switch r.IntN(4) {
			case 0:
				fill(e, src)
			case 1:
				*e = event.Event{
					TS:    math.MaxUint64,
					Dur:   math.MaxUint64,
					Ret:   math.MinInt32,
					Kind:  event.Kind(r.IntN(14)),
					Flags: event.Flags(r.IntN(256)),
				}
			default:
				if i > 0 {
					*e = events[r.IntN(i)]
					e.TS += r.Uint64N(1000)
					e.Kind = event.Kind(r.IntN(14))
					e.Args[r.IntN(4)] += r.Uint64N(1 << r.IntN(64))
				}
			}
		}
		if packed := roundTrip(t, events); len(packed) > len(events)*maxPacked {
			t.Fatalf("%d events took %d bytes", len(events), len(packed))
		}
	}
}

// TestProcessesOfOneSlotComeBack packs events that share a slot and differ in their process and thread alone, whose
// numbers have bits in common.
func TestProcessesOfOneSlotComeBack(t *testing.T) {
	bySlot := map[uint32][]event.Event{}
	for pid := uint32(1); pid < 1<<15; pid++ {
		e := event.Event{PID: pid, TID: pid, Kind: event.Call}
		slot := slotOf(&e)
		bySlot[slot] = append(bySlot[slot], e)
	}
	for _, events := range bySlot {
		roundTrip(t, events)
		slices.Reverse(events)
		roundTrip(t, events)
	}
}

// TestMixesComeBack packs what real programs made.
func TestMixesComeBack(t *testing.T) {
	for _, m := range mixes(t) {
		packed := roundTrip(t, m.events)
		if per := float64(len(packed)) / float64(len(m.events)); per > 7.1 {
			t.Errorf("%s: %.1f bytes an event, want 7.1 at most: 60 s of 150,000 a second in 100 MB", m.name, per)
		}
	}
}

// TestWakersUndo: an exchange of a waker is undone by the same exchange with the same table, whatever came before.
func TestWakersUndo(t *testing.T) {
	var there, back state
	r := rand.New(rand.NewPCG(5, 6))
	short := 0
	for i := range 20_000 {
		v := r.Uint64N(100)
		if i%3 > 0 {
			v = v * 0x1234567 << 13
		}
		packed := there.waker(v)
		if got := back.waker(packed); got != v {
			t.Fatalf("%#x came back as %#x, by way of %#x", v, got, packed)
		}
		if v >= 100 && packed < uint64(len(there.wakers)) {
			short++
		}
	}
	if short < 1000 {
		t.Errorf("%d wakers of 13,000 were known by their place", short)
	}
}

// TestDamageIsNoticed flips bits of what is packed.
func TestDamageIsNoticed(t *testing.T) {
	events := jumble(2000, 2, 1)
	packed := packAll(events)
	sum := crc32.Checksum(packed, castagnoli)
	for i := range 500 {
		bad := slices.Clone(packed)
		bad[i*len(bad)/500] ^= 1 << (i % 8)
		if got, err := unpackSlice(bad, len(events), sum); err == nil || got != nil {
			t.Fatalf("a flipped bit goes unnoticed: %d events, error %v", len(got), err)
		}
	}
}

// FuzzUnpack reads anything as packed events: it never reads beyond them, and never more events than it says.
func FuzzUnpack(f *testing.F) {
	f.Add(packAll(jumble(50, 2, 1)), 50)
	longest := bytes.Repeat([]byte{0xff}, 85) // one short of an event whose varints all take ten bytes
	longest[0] &^= asBefore
	f.Add(longest, 1)
	f.Fuzz(func(t *testing.T, packed []byte, count int) {
		count &= 1<<16 - 1
		got, err := unpackSlice(packed, count, crc32.Checksum(packed, castagnoli))
		if len(got) > count || err == nil && len(got) != count {
			t.Fatalf("%d events of %d, error %v", len(got), count, err)
		}
		roundTrip(t, got)
	})
}

// TestDamageIsCounted: a snapshot leaves out what is damaged, and says so.
func TestDamageIsCounted(t *testing.T) {
	r := tiny(0)
	for i := range uint64(100) {
		r.Append(event.Event{TS: i})
	}
	s := r.Snapshot(0, 1000)
	defer s.Release()
	r.histories[0].live[0].room[5] ^= 1
	first := r.histories[0].live[0].count
	for range 2 {
		if got := collect(s.Events(nil)); len(got) != 100-first {
			t.Errorf("%d events are shown of 100, %d of them damaged", len(got), first)
		}
	}
	if n := r.Stats().Damaged; n != uint64(first) {
		t.Errorf("%d events are counted as damaged, want %d", n, first)
	}
}
