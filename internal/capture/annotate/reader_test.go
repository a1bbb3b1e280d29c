package annotate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const (
	testSlots = 8
	testNames = 256
	testPID   = 42
)

// memory is a ring that a test writes.
type memory []byte

func newMemory() memory {
	m := make(memory, headerBytes+testSlots*recordBytes+testNames)
	copy(m, magic)
	le := binary.LittleEndian
	le.PutUint32(m[headRecord:], recordBytes)
	le.PutUint32(m[headSlots:], testSlots)
	le.PutUint64(m[headNames:], testNames)
	le.PutUint64(m[headPID:], testPID)
	return m
}

// name puts a name at an offset.
func (m memory) name(at int, text string) {
	b := m[headerBytes+testSlots*recordBytes+at:]
	binary.LittleEndian.PutUint16(b, uint16(len(text)))
	copy(b[2:], text)
}

// write writes record n.
func (m memory) write(n uint64, s scope) {
	le := binary.LittleEndian
	b := m[headerBytes+n%testSlots*recordBytes:]
	le.PutUint64(b[0:], n+1)
	le.PutUint64(b[8:], s.start)
	le.PutUint64(b[16:], s.end)
	le.PutUint32(b[24:], s.tid)
	le.PutUint32(b[28:], s.name)
	le.PutUint64(b[32:], s.id)
	le.PutUint64(b[40:], s.parent)
	le.PutUint64(b[48:], s.task)
	le.PutUint32(b[56:], s.attributes)
	le.PutUint64(m[headBegun:], max(n+1, le.Uint64(m[headBegun:])))
}

func (m memory) reader(t testing.TB) *reader {
	t.Helper()
	r, err := newRing(m, testPID)
	must.NoError(t, err)
	return newReader(r, newTexts(), &proc.Process{PID: testPID, NSPID: testPID, Born: 100})
}

func (r *reader) all(now uint64, last bool) (out []event.Event) {
	r.read(now, last, func(batch []event.Event) { out = append(out, batch...) })
	return out
}

func good(id uint64) scope {
	return scope{start: 1000 + id, end: 2000 + id, tid: 7, name: 0, attributes: noName, id: id}
}

func TestRead(t *testing.T) {
	m := newMemory()
	m.name(0, "step")
	r := m.reader(t)
	for id := range uint64(3) {
		m.write(id, good(id+1))
	}
	if got := r.all(5000, false); len(got) != 3 || got[2].Args[0] != 3 || got[0].TID != 7 || got[0].Dur != 1000 {
		t.Fatalf("read %+v", got)
	}
	for id := uint64(3); id < 3+testSlots+4; id++ {
		m.write(id, good(id+1))
	}
	got := r.all(5000, false)
	if len(got) != testSlots || got[0].Args[0] != 8 || r.count.lost != 4 {
		t.Errorf("after an overflow: %d events, the first %+v, lost %d, want %d and 4",
			len(got), got, r.count.lost, testSlots)
	}
}

// TestUnfinished: a record that is being written holds the reading up for a while, and not for ever.
func TestUnfinished(t *testing.T) {
	m := newMemory()
	r := m.reader(t)
	m.write(0, good(1))
	m.write(1, good(2))
	binary.LittleEndian.PutUint64(m[headerBytes:], 0)
	if got := r.all(5000, false); len(got) != 0 || r.count.lost != 0 {
		t.Fatalf("read %+v, lost %d", got, r.count.lost)
	}
	if got := r.all(5000+stuck, false); len(got) != 1 || got[0].Args[0] != 2 || r.count.lost != 1 {
		t.Errorf("later it reads %+v, lost %d, want the second", got, r.count.lost)
	}
}

// TestTornRecords: a record that is written over while it is copied is not taken for a whole one.
func TestTornRecords(t *testing.T) {
	const slots, maxReads = 1, 10_000_000
	m := make(memory, headerBytes+slots*recordBytes)
	r := &ring{mem: m, slots: slots}
	var stop atomic.Bool
	defer stop.Store(true)
	go func() { // as the package does: the number is 0 while the rest is written
		for n := uint64(0); !stop.Load(); n++ {
			atomic.StoreUint64(r.word(headerBytes), 0)
			atomic.StoreUint64(r.word(headBegun), n+1)
			for at := uint64(8); at < 56; at += 8 {
				atomic.StoreUint64(r.word(headerBytes+at), n)
			}
			atomic.StoreUint64(r.word(headerBytes), n+1)
			for range 50 { // it stays whole for a moment
				stop.Load()
			}
		}
	}()
	for r.begun() == 0 {
		runtime.Gosched()
	}
	whole, torn := 0, 0
	for i := 0; i < maxReads && (whole < 10_000 || torn < 10_000); i++ {
		n := r.begun() - 1
		s, ok := r.copy(n)
		if !ok {
			torn++
			continue
		}
		whole++
		if s.start != n || s.end != n || s.id != n || s.parent != n || s.task != n {
			t.Fatalf("record %d is %+v", n, s)
		}
	}
	if whole == 0 || torn == 0 {
		t.Errorf("%d whole records, %d that were being written", whole, torn)
	}
}

// TestLies: what no package writes is counted and does not come through.
func TestLies(t *testing.T) {
	for what, change := range map[string]func(*scope){
		"ends before it begins":      func(s *scope) { s.end = s.start - 1 },
		"before the process":         func(s *scope) { s.start = 99 },
		"in the future":              func(s *scope) { s.end = 5000 + 2*future },
		"no id":                      func(s *scope) { s.id = 0 },
		"name outside":               func(s *scope) { s.name = testNames - 1 },
		"name that reaches outside":  func(s *scope) { s.name = 200 },
		"attributes outside":         func(s *scope) { s.attributes = 1 << 30 },
		"attributes at the very end": func(s *scope) { s.attributes = testNames - 2 + 1 },
	} {
		m := newMemory()
		m.name(0, "step")
		binary.LittleEndian.PutUint16(m[headerBytes+testSlots*recordBytes+200:], 100)
		r := m.reader(t)
		s := good(1)
		change(&s)
		m.write(0, s)
		if got := r.all(5000, false); len(got) != 0 || r.count.malformed != 1 {
			t.Errorf("%s: %+v, malformed %d", what, got, r.count.malformed)
		}
	}
}

func TestHeaders(t *testing.T) {
	for what, change := range map[string]func(memory) memory{
		"short":        func(m memory) memory { return m[:100] },
		"magic":        func(m memory) memory { m[3] = 'x'; return m },
		"record size":  func(m memory) memory { m[headRecord] = 32; return m },
		"more slots":   func(m memory) memory { m[headSlots] = 16; return m },
		"no slots":     func(m memory) memory { m[headSlots] = 0; return m },
		"huge names":   func(m memory) memory { m[headNames+7] = 0xff; return m },
		"other's":      func(m memory) memory { m[headPID]++; return m },
		"odd slots":    func(m memory) memory { m[headSlots] = 7; return m[:headerBytes+7*recordBytes+testNames] },
		"longer names": func(m memory) memory { m[headNames]++; return m },
	} {
		if _, err := newRing(change(newMemory()), testPID); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}

func TestTextsAreBounded(t *testing.T) {
	texts, greedy, honest := newTexts(), proc.Payer{UID: 7}, proc.Payer{UID: 8}
	for i := range maxTexts + 10 {
		if n := texts.add(greedy, fmt.Sprint(i)); (n == 0) != (i >= maxTexts/2) {
			t.Fatalf("text %d has number %d", i, n)
		}
	}
	if texts.add(greedy, "5") != 6 {
		t.Error("a known text has lost its number")
	}
	if texts.add(honest, "another user's") == 0 {
		t.Error("a user has no room because another one took it all")
	}
	if got, _ := func() (string, bool) {
		x := newTexts()
		return x.row(x.add(greedy, "a\x1b[31m\xff"))
	}(); got != "a?[31m?" {
		t.Errorf("a hostile text becomes %q", got)
	}
}

// FuzzRead: whatever stands in the memory, a pass ends, and what comes through lies within bounds.
func FuzzRead(f *testing.F) {
	f.Add(uint64(1), []byte("abc"))
	fuzzing.Run(f, func(t *testing.T, seed uint64, noise []byte) {
		rng := rand.New(rand.NewPCG(seed, 0))
		m := newMemory()
		r := m.reader(t)
		for range 20 {
			for range 4 {
				m.write(rng.Uint64N(40), scope{
					start:      rng.Uint64N(6000),
					end:        rng.Uint64N(6000),
					name:       uint32(rng.UintN(300)),
					attributes: uint32(rng.UintN(300)),
					id:         rng.Uint64N(3),
				})
			}
			for i, b := range noise {
				if at := headBegun + (i*131+rng.IntN(64))%(len(m)-headBegun); i < 64 {
					m[at] = b
				}
			}
			got := r.all(5000, rng.IntN(4) == 0)
			if len(got) > testSlots {
				t.Fatalf("%d events of %d records", len(got), testSlots)
			}
			for _, e := range got {
				if e.TS < 100 || e.End() > 5000+future || e.PID != testPID || e.Kind != event.Range {
					t.Fatalf("came through: %+v", e)
				}
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	const slots = 4096
	m := make(memory, headerBytes+slots*recordBytes+testNames)
	copy(m, newMemory()[:headerBytes])
	binary.LittleEndian.PutUint32(m[headSlots:], slots)
	ring, err := newRing(m, testPID)
	must.NoError(b, err)
	for n := range uint64(slots) {
		at := m[headerBytes+n*recordBytes:]
		s := newMemory()
		s.write(0, good(n+1))
		copy(at[8:recordBytes], s[headerBytes+8:])
		binary.LittleEndian.PutUint64(at, n+1)
	}
	binary.LittleEndian.PutUint64(m[headBegun:], slots)
	r := newReader(ring, newTexts(), &proc.Process{PID: testPID, NSPID: testPID})
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		r.next = 0
		r.read(5000, false, func(batch []event.Event) { n += len(batch) })
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/scope")
}
