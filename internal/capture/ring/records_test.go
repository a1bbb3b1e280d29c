package ring

import (
	"encoding/binary"
	"slices"
	"testing"
)

// made is a ring of our own, of which the test is the kernel.
type made struct {
	cons, prod uint64
	data       []byte
}

func newMade(size int) *made { return &made{data: make([]byte, 2*size)} }

func (m *made) records() *Records {
	return &Records{ring: newReader(&m.cons, &m.prod, m.data, len(m.data)/2)}
}

// put writes a record as the kernel does; flags go into its header.
func (m *made) put(flags uint32, record ...byte) {
	size := uint64(len(m.data) / 2)
	whole := make([]byte, (headerSize+len(record)+7)&^7)
	binary.LittleEndian.PutUint32(whole, uint32(len(record))|flags)
	copy(whole[headerSize:], record)
	for i, b := range whole {
		at := (m.prod + uint64(i)) % size
		m.data[at], m.data[at+size] = b, b
	}
	m.prod += uint64(len(whole))
}

func read(r *Records) (all []string) {
	r.Read(func(record []byte) { all = append(all, string(record)) })
	return all
}

func TestRecords(t *testing.T) {
	m := newMade(64)
	r := m.records()
	for range 10 { // several times round, over the end
		m.put(0, 'a')
		m.put(discardBit, 'x', 'y')
		m.put(0, []byte("0123456789")...)
		if got := read(r); !slices.Equal(got, []string{"a", "0123456789"}) {
			t.Fatalf("got %q", got)
		}
		if m.cons != m.prod {
			t.Fatalf("read up to %d of %d", m.cons, m.prod)
		}
	}
	m.put(0, 'b')
	busy := m.prod % 64
	m.put(busyBit, 'c')
	if got := read(r); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got %q before a record that is still being written", got)
	}
	for _, at := range []uint64{busy, busy + 64} {
		binary.LittleEndian.PutUint32(m.data[at:], 1)
	}
	if got := read(r); !slices.Equal(got, []string{"c"}) {
		t.Errorf("got %q once it is there", got)
	}
}

// TestRecordsWithNonsense: a length beyond what was produced, and positions that cannot be, give nothing and do not
// stay.
func TestRecordsWithNonsense(t *testing.T) {
	m := newMade(64)
	r := m.records()
	m.put(0, 'a')
	binary.LittleEndian.PutUint32(m.data, 1000)
	if got := read(r); got != nil || m.cons != m.prod || r.ring.malformed != 1 {
		t.Errorf("got %q, %d of %d, %d malformed", got, m.cons, m.prod, r.ring.malformed)
	}
	m.prod += 1000
	if got := read(r); got != nil || m.cons != m.prod || r.ring.malformed != 2 {
		t.Errorf("got %q, %d of %d, %d malformed", got, m.cons, m.prod, r.ring.malformed)
	}
	m.prod += 8 - m.prod%8
	m.cons = m.prod
	m.put(0, 'b')
	if got := read(r); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got %q afterwards", got)
	}
}

// Behind the ring only its beginning is mapped: what would reach further is no record.
func TestRecordsBeyondTheSecondView(t *testing.T) {
	m := newMade(64)
	r := &Records{ring: newReader(&m.cons, &m.prod, m.data[:64+16], 64)}
	m.put(0, make([]byte, 32)...)
	if got := read(r); len(got) != 1 {
		t.Fatalf("got %d records, want 1", len(got))
	}
	m.put(0, make([]byte, 24)...) // ends 8 bytes behind the ring
	if got := read(r); len(got) != 1 {
		t.Errorf("got %d records that end within the second view, want 1", len(got))
	}
	m.cons, m.prod = 40, 40
	m.put(0, make([]byte, 40)...) // ends 24 bytes behind it
	if got := read(r); len(got) != 0 || m.cons != m.prod || r.ring.malformed != 1 {
		t.Errorf("got %q, read up to %d of %d, %d malformed", got, m.cons, m.prod, r.ring.malformed)
	}
}
