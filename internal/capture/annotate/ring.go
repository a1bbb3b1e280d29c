package annotate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

var (
	errNoRing  = errors.New("no memory of scopes")
	errNotOurs = errors.New("it belongs to another process")
)

// ring is the memory of one process, mapped.
type ring struct {
	mem   []byte
	slots uint64 // never read from the header again
	names uint64 // bytes
	close func() error
}

// open finds the ring of p; errNoRing where it has none of its own, and another error for
// one that cannot be used.
func open(p *proc.Process) (*ring, error) {
	last := errNoRing
	for _, m := range procfile.Mapped(p.PID, memfd) {
		r, err := openMapped(p, m)
		if err == nil {
			return r, nil
		}
		if !passes(err) {
			last = err
		}
	}
	return nil, last
}

// passes reports whether a ring is none of p's: a fork inherits the mapping of its parent's, which goes when the child
// makes its own.
func passes(err error) bool {
	return errors.Is(err, errNotOurs) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, procfile.ErrReplaced)
}

func openMapped(p *proc.Process, m procfile.Memfd) (*ring, error) {
	file, size, err := m.Open(p.Alive, procfile.FixedSize())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size < headerBytes || size > headerBytes+maxSlots*recordBytes+maxNames {
		return nil, fmt.Errorf("%s: %d bytes are not what the package makes", file.Name(), size)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", file.Name(), err)
	}
	r, err := newRing(mem, uint64(p.NSPID))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", file.Name(), err), unix.Munmap(mem))
	}
	r.close = func() error { return unix.Munmap(mem) }
	return r, nil
}

// newRing takes memory that must hold a ring of the process that calls itself pid.
func newRing(mem []byte, pid uint64) (*ring, error) {
	head := make([]byte, headBegun)
	copy(head, mem) // once: it may change under our eyes
	le := binary.LittleEndian
	slots, names := uint64(le.Uint32(head[headSlots:])), le.Uint64(head[headNames:])
	switch {
	case len(mem) < headerBytes || string(head[:len(magic)]) != magic:
		return nil, errors.New("it does not begin as the package makes it")
	case le.Uint32(head[headRecord:]) != recordBytes:
		return nil, fmt.Errorf("its records have %d bytes: it is of another version of the package",
			le.Uint32(head[headRecord:]))
	case slots == 0 || slots > maxSlots || slots&(slots-1) != 0 || names > maxNames ||
		uint64(len(mem)) != headerBytes+slots*recordBytes+names:
		return nil, fmt.Errorf("%d records and %d bytes of names do not fit %d bytes", slots, names, len(mem))
	case le.Uint64(head[headPID:]) != pid:
		return nil, fmt.Errorf("%w: pid %d in its namespace, not %d", errNotOurs, le.Uint64(head[headPID:]), pid)
	}
	return &ring{mem: mem, slots: slots, names: names, close: func() error { return nil }}, nil
}

func (r *ring) word(at uint64) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[at])) }

// begun returns how many records have been begun.
func (r *ring) begun() uint64 { return atomic.LoadUint64(r.word(headBegun)) }

// lease says until when (ns) somebody records; 0: nobody does.
func (r *ring) lease(until uint64) { atomic.StoreUint64(r.word(headLease), until) }

// scope is a record as it was written.
type scope struct {
	start, end       uint64 // ns, CLOCK_MONOTONIC
	tid              uint32 // in its own pid namespace
	name, attributes uint32 // where they begin in the names' area, or noName
	id, parent, task uint64
}

// copy returns record n; false where it is being written, or gone.
func (r *ring) copy(n uint64) (scope, bool) {
	at := headerBytes + n&(r.slots-1)*recordBytes
	seq := r.word(at)
	if atomic.LoadUint64(seq) != n+1 {
		return scope{}, false
	}
	var b [recordBytes]byte
	le := binary.LittleEndian
	for i := uint64(0); i < recordBytes; i += 8 { // atomic loads stay in their order, on arm64 too
		le.PutUint64(b[i:], atomic.LoadUint64(r.word(at+i)))
	}
	s := scope{
		start: le.Uint64(b[8:]), end: le.Uint64(b[16:]), tid: le.Uint32(b[24:]), name: le.Uint32(b[28:]),
		id: le.Uint64(b[32:]), parent: le.Uint64(b[40:]), task: le.Uint64(b[48:]), attributes: le.Uint32(b[56:]),
	}
	return s, atomic.LoadUint64(seq) == n+1
}

// text returns the name that begins at an offset of the names' area; false where none can.
func (r *ring) text(at uint32) (string, bool) {
	const length = 2 // bytes before the text
	if uint64(at)+length > r.names {
		return "", false
	}
	base := headerBytes + r.slots*recordBytes + uint64(at)
	n := uint64(binary.LittleEndian.Uint16(r.mem[base:]))
	if n > longest || uint64(at)+length+n > r.names {
		return "", false
	}
	return string(r.mem[base+length : base+length+n]), true
}
