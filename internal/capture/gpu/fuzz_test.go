package gpu

import (
	"encoding/binary"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// fuzzSlots is a small ring, so that positions wrap.
const fuzzSlots = 1 << 8

// seedSlots are slots of each kind, whole. Small inputs keep the fuzzer fast.
func seedSlots() []byte {
	le := binary.LittleEndian
	kinds := []byte{
		1, 7, 8, 9, 10, 11, 12, kindName, kindText, kindText, kindWindow,
		kindDevice, kindOpened, kindSteps, 0, 255,
	}
	mem := make([]byte, len(kinds)*slotBytes)
	for i, k := range kinds {
		slot := mem[i*slotBytes:]
		le.PutUint64(slot[slotTS:], 1000)
		le.PutUint32(slot[slotSeq:], 1)
		le.PutUint16(slot[slotFunc:], 100)
		le.PutUint32(slot[slotRet:], 1)
		slot[slotKind] = k
	}
	return mem
}

// FuzzRing reads a ring whose slots hold any bytes, again and again: no panic, no more events than slots, only
// valid ones, and bounded memory of what they name.
func FuzzRing(f *testing.F) {
	f.Add(seedSlots(), uint64(0), uint64(16))
	f.Add(seedSlots(), uint64(1<<40), uint64(1<<40+fuzzSlots))
	f.Add(seedSlots(), ^uint64(0)-3, uint64(5))
	f.Add([]byte{}, uint64(7), uint64(3))
	fuzzing.Run(f, func(t *testing.T, content []byte, tail, head uint64) {
		mem := make([]byte, ringData+fuzzSlots*slotBytes)
		for at := ringData; len(content) > 0 && at < len(mem); {
			at += copy(mem[at:], content)
		}
		copy(mem[ringPath:ringData], content)
		le := binary.LittleEndian
		le.PutUint64(mem[ringTail:], tail)
		le.PutUint64(mem[ringHead:], head)
		r, err := newRing(mem, fuzzSlots)
		if err != nil {
			t.Fatal(err)
		}
		const now = 1_000_000
		rd := newReader(r, newTestDecoder(42))
		rd.from = 500
		events := 0
		emit := func(batch []event.Event) {
			events += len(batch)
			for i := range batch {
				valid(t, &batch[i], now)
			}
		}
		rd.read(now, false, emit)
		rd.read(now, true, emit)
		if events > 2*fuzzSlots {
			t.Errorf("%d events out of %d slots", events, fuzzSlots)
		}
		_ = r.check(7)
		_, _ = r.path(), r.holder()
		if n := len(rd.namer.kernels) + len(rd.namer.ranges); n > 2*(maxID+1) {
			t.Errorf("%d names are remembered", n)
		}
	})
}

// valid fails unless e may enter a recorder.
func valid(t *testing.T, e *event.Event, now uint64) {
	t.Helper()
	if e.Kind != event.Call && (e.Kind < event.Kernel || e.Kind > event.Range) {
		t.Errorf("kind %d", e.Kind)
	}
	if e.PID != 42 || e.TS < 500 || e.End() < e.TS || e.End() > now+future {
		t.Errorf("an event that cannot be: %+v", e)
	}
	if e.Kind == event.Call && e.Func != 5 {
		t.Errorf("a call of function %d", e.Func)
	}
	if e.Kind == event.Kernel && (e.Ret < 0 || e.Ret > maxNames) {
		t.Errorf("a kernel with name %d", e.Ret)
	}
}

// BenchmarkRead is what a slot costs, of kernels and launches in turns; it must not allocate.
func BenchmarkRead(b *testing.B) {
	const slots = defaultSlots
	mem := make([]byte, ringData+slots*slotBytes)
	r, err := newRing(mem, slots)
	if err != nil {
		b.Fatal(err)
	}
	rd := newReader(r, newTestDecoder(42))
	rd.namer.kernels = []int32{0, 1}
	taken := 0
	emit := func(batch []event.Event) { taken += len(batch) }
	b.ReportAllocs()
	for round := uint64(0); b.Loop(); round++ {
		b.StopTimer()
		fill(r, round)
		b.StartTimer()
		rd.read(1e9, false, emit)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/slots, "ns/slot")
	if taken != b.N*slots {
		b.Fatalf("%d events, want %d", taken, b.N*slots)
	}
}

// slot returns the memory of the slot at a position.
func (r *ring) slot(position uint64) *[slotBytes]byte {
	at := ringData + position&(r.slots-1)*slotBytes
	return (*[slotBytes]byte)(r.mem[at : at+slotBytes])
}

// fill writes all slots of a round.
func fill(r *ring, round uint64) {
	le := binary.LittleEndian
	for p := round * r.slots; p < (round+1)*r.slots; p++ {
		s := r.slot(p)
		le.PutUint64(s[slotTS:], 1000+p)
		le.PutUint32(s[slotSeq:], r.seq(p))
		le.PutUint16(s[slotFunc:], 307)
		le.PutUint32(s[slotRet:], 1)
		s[slotKind] = byte(event.Call) + byte(p&1)*byte(event.Kernel-event.Call)
	}
	r.store64(ringHead, (round+1)*r.slots)
}

// TestReadAllocatesNothing: the steady state costs the garbage collector nothing.
func TestReadAllocatesNothing(t *testing.T) {
	mem := make([]byte, ringData+1024*slotBytes)
	r, err := newRing(mem, 1024)
	if err != nil {
		t.Fatal(err)
	}
	rd := newReader(r, newTestDecoder(42))
	round := uint64(0)
	events := 0
	emit := func(batch []event.Event) { events += len(batch) }
	fill(r, round)
	rd.read(1e9, false, emit)
	if n := testing.AllocsPerRun(100, func() {
		round++
		fill(r, round)
		rd.read(1e9, false, emit)
	}); n != 0 {
		t.Errorf("%v allocations in a pass over 1,024 slots", n)
	}
	if events != 102*1024 {
		t.Errorf("%d events, want %d", events, 102*1024)
	}
}
