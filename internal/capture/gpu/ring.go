package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// ring is an agent's ring, mapped. The target can write to all of it at any time.
type ring struct {
	mem   []byte
	slots uint64 // a power of two; never read from the header again
	close func() error
	node  *robustNode // in a page of this process's own before it; nil: there is none
	life  uint32      // what the wake word is made of, see liveness; 0: it is a counter
}

// newRing takes memory that holds a header and that many slots.
func newRing(mem []byte, slots uint64) (*ring, error) {
	if slots == 0 || slots&(slots-1) != 0 || uint64(len(mem)) != ringData+slots*slotBytes {
		return nil, fmt.Errorf("a ring of %d slots cannot lie in %d bytes", slots, len(mem))
	}
	return &ring{mem: mem, slots: slots, close: func() error { return nil }}, nil
}

func (r *ring) u32(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[at])) }
func (r *ring) u64(at int) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[at])) }

func (r *ring) load32(at int) uint32     { return atomic.LoadUint32(r.u32(at)) }
func (r *ring) load64(at int) uint64     { return atomic.LoadUint64(r.u64(at)) }
func (r *ring) store32(at int, v uint32) { atomic.StoreUint32(r.u32(at), v) }
func (r *ring) store64(at int, v uint64) { atomic.StoreUint64(r.u64(at), v) }

// seq returns the sequence number that a whole slot at a position has.
func (r *ring) seq(position uint64) uint32 { return uint32(position/r.slots) + 1 }

// path returns where the agent found its libcupti, made fit to be shown.
func (r *ring) path() string {
	text := strings.Clone(unix.ByteSliceToString(r.mem[ringPath : ringPath+pathBytes]))
	return clean(text, pathBytes)
}

// holder returns what the profiler calls itself that holds CUPTI, made fit to be shown; "" where CUPTI does not tell.
func (r *ring) holder() string {
	text := strings.Clone(unix.ByteSliceToString(r.mem[ringHolder : ringHolder+nameBytes]))
	return clean(text, nameBytes)
}

// build returns the build id of the agent that made the ring.
func (r *ring) build() (id [20]byte) {
	copy(id[:], r.mem[ringBuild:])
	return id
}

// times are how long windows are, how often they come, and how long an agent waits for a
// call at whose end it can leave CUPTI; all in ns.
type times struct{ on, period, deadline uint64 }

// command tells the agent what is wanted, and wakes it.
func (r *ring) command(mode uint32, t times) {
	r.store64(ringOn, t.on)
	r.store64(ringPeriod, t.period)
	r.store64(ringDeadline, t.deadline)
	r.store32(ringMode, mode)
	r.wake()
}

// flush asks the agent to hand over what CUPTI holds; answered reports whether it has done so since. An agent answers
// the latest of several numbers only.
func (r *ring) flush() (number uint32) {
	n := r.load64(ringFlush) + 1
	r.store64(ringFlush, n)
	r.wake()
	return uint32(n)
}

func (r *ring) answered(number uint32) bool { return int32(r.load32(ringFlushed)-number) >= 0 }

// futexWake is FUTEX_WAKE of linux/futex.h, without FUTEX_PRIVATE_FLAG: the word is shared.
const futexWake = 1

func (r *ring) wake() {
	atomic.AddUint32(r.u32(ringTurns), 1)
	if word := r.u32(ringWake); r.life == 0 {
		atomic.AddUint32(word, 1)
	} else { // the one bit that may change
		atomic.StoreUint32(word, r.life|^atomic.LoadUint32(word)&futexOwnerDied)
	}
	// Nothing hangs on it: an agent that is not woken looks by itself soon enough.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(r.u32(ringWake))), futexWake, 1, 0, 0, 0)
}

var (
	errOtherABI = errors.New("it is of another version")
	errNotOurs  = errors.New("it belongs to another process")
)

// check says what is wrong with the header of a ring of a process that calls itself pid
// in its own namespace.
func (r *ring) check(pid uint32) error {
	if got := r.load32(ringMagic); got != abiMagic {
		return fmt.Errorf("its magic number is %#x", got)
	}
	if got := r.load32(ringABI); got != abiLevel {
		return fmt.Errorf("%w (%d, this daemon speaks %d)", errOtherABI, got, abiLevel)
	}
	if got := r.load32(ringSlots); uint64(got) != r.slots {
		return fmt.Errorf("it claims %d slots and has room for %d", got, r.slots)
	}
	if got := r.load32(ringPID); got != pid {
		return fmt.Errorf("%w: pid %d in its namespace, not %d", errNotOurs, got, pid)
	}
	return nil
}

// params are what an agent starts with: struct agent_params.
type params struct {
	fd        int32
	slots     uint32
	mode      uint32
	times     times
	heartbeat uint64 // ns
	helloAt   uint64
	cupti     string
}

// bytes writes params as the agent reads them.
func (p *params) bytes() []byte {
	b := make([]byte, paramsBytes)
	le := binary.LittleEndian
	le.PutUint32(b[paramsMagic:], abiMagic)
	le.PutUint32(b[paramsABI:], abiLevel)
	le.PutUint32(b[paramsFD:], uint32(p.fd))
	le.PutUint32(b[paramsSlots:], p.slots)
	le.PutUint32(b[paramsMode:], p.mode)
	le.PutUint64(b[paramsOn:], p.times.on)
	le.PutUint64(b[paramsPeriod:], p.times.period)
	le.PutUint64(b[paramsDeadline:], p.times.deadline)
	le.PutUint64(b[paramsHeartbeat:], p.heartbeat)
	le.PutUint64(b[paramsHelloAt:], p.helloAt)
	copy(b[paramsCUPTI:paramsBytes-1], p.cupti)
	return b
}

// hello is what an agent answers: struct agent_hello.
type hello struct {
	err           int32 // 0, or -errno
	ringFD        int32
	tid           int32
	entered, left uint64 // ns
}

// parseHello returns false where there is none yet.
func parseHello(b []byte) (h hello, ok bool) {
	le := binary.LittleEndian
	if len(b) < helloBytes || le.Uint32(b[helloMagic:]) != abiMagic || le.Uint32(b[helloABI:]) != abiLevel {
		return h, false
	}
	return hello{
		err:     int32(le.Uint32(b[helloError:])),
		ringFD:  int32(le.Uint32(b[helloRingFD:])),
		tid:     int32(le.Uint32(b[helloTID:])),
		entered: le.Uint64(b[helloEntered:]), left: le.Uint64(b[helloLeft:]),
	}, true
}

// copy copies the 64 bytes at an offset; they have the layout of an event.Event.
func (r *ring) copy(e *event.Event, at int) {
	*e = *(*event.Event)(unsafe.Pointer(&r.mem[at : at+slotBytes][0]))
}
