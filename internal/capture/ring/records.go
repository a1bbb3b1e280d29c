package ring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Records reads a ring buffer that holds records of any length. It makes no system call, where a
// reader that can wait for records makes two each time. It is not safe for use by several goroutines.
type Records struct {
	ring *reader
	fill float64
}

// OpenRecords maps a ring buffer map, which stays the caller's.
func OpenRecords(m *ebpf.Map) (*Records, error) {
	r, err := mapReader(m.FD(), int(m.MaxEntries()))
	if err != nil {
		return nil, fmt.Errorf("map the ring buffer %s: %w", m, err)
	}
	return &Records{ring: r}, nil
}

// Read hands what the ring holds to f, record by record, out of its memory: a record is valid only
// until f returns. What arrives meanwhile waits for the next call.
func (r *Records) Read(f func(record []byte)) {
	limit, pos := r.ring.produced(), atomic.LoadUint64(r.ring.cons)
	r.fill = r.ring.fill(limit)
	for pos != limit {
		record, step := r.ring.record(pos, limit)
		if step == 0 {
			break
		}
		if record != nil {
			f(record)
		}
		pos += step
		atomic.StoreUint64(r.ring.cons, pos) // room for new ones: f takes its time
	}
}

// Fill returns how full the ring was when it was last read, from 0 to 1.
func (r *Records) Fill() float64 { return r.fill }

// record returns the record at pos, nil where its program has given it up, and how far the next one
// is: 0 where it is still being written. Where no record can be, all up to limit is skipped.
func (r *reader) record(pos, limit uint64) (record []byte, step uint64) {
	if limit-pos > r.mask+1 { // also when limit lies behind
		r.malformed++
		return nil, limit - pos
	}
	off := pos & r.mask
	header := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[off]))) // as in read
	if header&busyBit != 0 {
		return nil, 0
	}
	length := uint64(header &^ (busyBit | discardBit))
	step = (length + headerSize + 7) &^ 7
	if step > limit-pos || off+headerSize+length > uint64(len(r.data)) {
		r.malformed++
		return nil, limit - pos
	}
	if header&discardBit != 0 {
		return nil, step
	}
	return r.data[off+headerSize : off+headerSize+length : off+headerSize+length], step
}

// Close unmaps the ring.
func (r *Records) Close() error { return r.ring.close() }
