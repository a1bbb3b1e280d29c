package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// The record header of a BPF ring buffer (include/uapi/linux/bpf.h): a u32 length
// whose two top bits are flags, and a u32 that only the kernel uses.
const (
	headerSize = 8
	busyBit    = 1 << 31 // reserved, not submitted yet
	discardBit = 1 << 30 // given up by the program
)

// reader empties one ring. It copies events straight out of the mapped data pages
// and publishes its position once per batch: the kernel reads that cache line on
// every reservation, and one store per record lost 14 to 47% flat out.
//
// Only the kernel writes the data, but a nonsense length must still not take the
// daemon down, so every length is checked against what the ring can hold.
type reader struct {
	cons *uint64 // mapped, written by us: bytes consumed since the ring was made
	prod *uint64 // mapped, written by the kernel: bytes produced
	data []byte  // the ring, and its beginning once more behind it, so that no record wraps
	mask uint64  // size of the ring in bytes - 1

	malformed uint64 // records skipped because they were no events

	consPage, prodPages []byte // the mappings; nil in tests that make a ring of their own
}

// secondView is how much of a ring is mapped again behind it, in bytes. The kernel offers all of
// it, but what is mapped counts as resident, 17 MB for the rings of 16 CPUs.
const secondView = 64 << 10

// MaxRecord is the longest record that can be read out of any ring, in bytes.
const MaxRecord = secondView - headerSize

// mapReader maps the ring buffer map fd with size bytes of data pages: the
// consumer's page to read and write, the producer's page and the data read-only.
func mapReader(fd, size int) (*reader, error) {
	page := os.Getpagesize()
	cons, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the consumer page: %w", err)
	}
	prod, err := unix.Mmap(fd, int64(page), page+size+min(size, secondView), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the data pages: %w", err), unix.Munmap(cons))
	}
	r := newReader((*uint64)(unsafe.Pointer(&cons[0])), (*uint64)(unsafe.Pointer(&prod[0])), prod[page:], size)
	r.consPage, r.prodPages = cons, prod
	return r, nil
}

// newReader reads the ring of size bytes, a power of two, whose positions are cons and prod; in
// data it is followed by its beginning.
func newReader(cons, prod *uint64, data []byte, size int) *reader {
	return &reader{cons: cons, prod: prod, data: data, mask: uint64(size - 1)}
}

// produced returns the position up to which the kernel has reserved records.
func (r *reader) produced() uint64 { return atomic.LoadUint64(r.prod) }

// fill returns the share of the ring that lies between the consumer and limit.
func (r *reader) fill(limit uint64) float64 {
	return min(1, float64(limit-atomic.LoadUint64(r.cons))/float64(r.mask+1))
}

// read copies at most len(dst) events that lie before limit to dst and says how
// many, and whether more could follow.
func (r *reader) read(dst []event.Event, limit uint64) (n int, more bool) {
	start := atomic.LoadUint64(r.cons)
	if limit-start > r.mask+1 { // also when limit lies behind
		r.resync(limit)
		return 0, false
	}
	pos := start
	for n < len(dst) && pos != limit {
		off := pos & r.mask
		// The load pairs with the kernel's xchg at submit: whoever sees the busy
		// bit gone sees the record's bytes.
		header := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[off])))
		if header&busyBit != 0 {
			break
		}
		length := uint64(header &^ (busyBit | discardBit))
		step := (length + headerSize + 7) &^ 7
		if step > limit-pos {
			r.resync(limit)
			return n, false
		}
		if header == event.Size {
			dst[n] = *(*event.Event)(unsafe.Pointer(&r.data[off+headerSize]))
			n++
		} else if header&discardBit == 0 {
			r.malformed++
		}
		pos += step
	}
	if pos != start {
		atomic.StoreUint64(r.cons, pos)
	}
	return n, n == len(dst) && pos != limit
}

// resync gives up what lies before limit: nothing in it says where a record begins.
func (r *reader) resync(limit uint64) {
	r.malformed++
	atomic.StoreUint64(r.cons, limit&^7)
}

// close unmaps the ring. The reader must not be used again.
func (r *reader) close() error {
	return errors.Join(unix.Munmap(r.consPage), unix.Munmap(r.prodPages))
}
