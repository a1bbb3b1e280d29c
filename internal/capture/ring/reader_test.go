package ring

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// fakeSize is the size of the rings that tests make in ordinary memory.
const fakeSize = 4096

// fakeRing is a ring without a kernel: content is written twice, as the mapping shows it.
func fakeRing(content []byte, cons, prod uint64) *reader {
	words := make([]uint64, 2*fakeSize/8) // aligned, as pages are
	for i := range words {
		at := i * 8 % fakeSize
		if at+8 <= len(content) {
			words[i] = binary.LittleEndian.Uint64(content[at:])
		}
	}
	return newReader(&cons, &prod, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 2*fakeSize), fakeSize)
}

// fakeRecord appends a record that claims n bytes, with the given header flags and filler.
func fakeRecord(content []byte, flags uint32, n int, fill byte) []byte {
	content = binary.LittleEndian.AppendUint64(content, uint64(uint32(n)|flags))
	for range min((n+7)&^7, fakeSize) {
		content = append(content, fill)
	}
	return content
}

func TestReaderStopsAtBusy(t *testing.T) {
	content := fakeRecord(nil, 0, event.Size, 1)
	content = fakeRecord(content, busyBit, event.Size, 2)
	content = fakeRecord(content, 0, event.Size, 3)
	r := fakeRing(content, 0, 3*72)
	dst := make([]event.Event, 8)
	n, more := r.read(dst, r.produced())
	if n != 1 || more || *r.cons != 72 {
		t.Fatalf("read %d events (more: %v) up to %d, want 1 up to 72", n, more, *r.cons)
	}
	binary.LittleEndian.PutUint32(r.data[72:], event.Size) // submitted
	if n, _ = r.read(dst, r.produced()); n != 2 || dst[0].TS != 0x0202020202020202 || *r.cons != 216 {
		t.Fatalf("then %d events from TS %x up to %d", n, dst[0].TS, *r.cons)
	}
}

func TestReaderSkipsWhatIsNoEvent(t *testing.T) {
	content := fakeRecord(nil, 0, 13, 1)
	content = fakeRecord(content, 0, event.Size, 2)
	content = fakeRecord(content, discardBit, 0, 0)
	content = fakeRecord(content, 0, 0, 0)
	content = fakeRecord(content, 0, event.Size, 3)
	r := fakeRing(content, 0, uint64(len(content)))
	dst := make([]event.Event, 8)
	n, more := r.read(dst, r.produced())
	if n != 2 || more || dst[0].PID != 0x02020202 || dst[1].PID != 0x03030303 {
		t.Fatalf("read %d events (more: %v): %x %x", n, more, dst[0].PID, dst[1].PID)
	}
	if r.malformed != 2 {
		t.Errorf("%d malformed records counted, want 2", r.malformed)
	}
}

func TestReaderFillsTheBatchAndSaysThatMoreFollows(t *testing.T) {
	content := fakeRecord(fakeRecord(nil, 0, event.Size, 1), 0, event.Size, 2)
	r := fakeRing(content, 0, 144)
	dst := make([]event.Event, 1)
	if n, more := r.read(dst, 144); n != 1 || !more {
		t.Fatalf("first read: %d, %v", n, more)
	}
	if n, more := r.read(dst, 144); n != 1 || more || dst[0].TID != 0x02020202 {
		t.Fatalf("second read: %d, %v, %x", n, more, dst[0].TID)
	}
}

func TestReaderGivesUpOnNonsense(t *testing.T) {
	for name, r := range map[string]*reader{
		"length beyond the producer": fakeRing(fakeRecord(nil, 0, 2000, 1), 0, 144),
		"producer behind":            fakeRing(nil, 1<<20, 1<<19),
		"producer too far":           fakeRing(nil, 0, 1<<40),
	} {
		limit := r.produced()
		if n, more := r.read(make([]event.Event, 4), limit); n != 0 || more {
			t.Errorf("%s: read %d events (more: %v)", name, n, more)
		}
		if *r.cons != limit || r.malformed != 1 {
			t.Errorf("%s: position %d of %d, %d malformed", name, *r.cons, limit, r.malformed)
		}
	}
}

// FuzzReader lets anything stand in a ring: reading ends, stays within the ring,
// never passes the producer, and counts nothing that lies outside of it.
func FuzzReader(f *testing.F) {
	two := fakeRecord(fakeRecord(nil, 0, event.Size, 1), 0, event.Size, 2)
	f.Add(two, uint64(0), uint64(144))
	f.Add(two, uint64(fakeSize-72), uint64(fakeSize+72))
	f.Add(fakeRecord(nil, 0, 1<<29, 1), uint64(0), uint64(fakeSize))
	f.Add(fakeRecord(nil, discardBit, 1<<29, 1), uint64(0), uint64(72))
	f.Add([]byte{}, uint64(8), uint64(0))
	f.Add([]byte{}, uint64(0), ^uint64(0))
	fuzzing.Run(f, func(t *testing.T, content []byte, cons, prod uint64) {
		cons &^= 7 // ours alone, and always a multiple of 8
		r := fakeRing(content, cons, prod)
		limit := r.produced()
		if fill := r.fill(limit); fill < 0 || fill > 1 {
			t.Fatalf("fill = %v", fill)
		}
		dst := make([]event.Event, 4)
		total := 0
		for more := true; more; {
			var n int
			if n, more = r.read(dst, limit); n > len(dst) {
				t.Fatalf("%d events in %d places", n, len(dst))
			}
			if total += n; total > fakeSize/72 {
				t.Fatalf("%d events in a ring of %d bytes", total, fakeSize)
			}
		}
		if *r.cons%8 != 0 {
			t.Fatalf("the position %d is not aligned", *r.cons)
		}
	})
}
