package recording

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Events are packed one by one (BenchmarkPack), each as its difference from an earlier one that is like it:
//
//	time     signed difference, zigzag, above asBefore: 6 bits in the first byte, then a varint
//	control  u8, without asBefore: which fields differ (diff...), and whether the slot was not predicted (otherSlot)
//	slot     u16, with otherSlot
//	fields   of those that differ: the signed difference as a varint, zigzag; the head as it is
//
// Like events share a slot, which holds the last of them: those of one thread, function and shape.
// Programs repeat themselves, so the slot of an event is predicted from those of the two events before it. Its
// time is written as the gap since the end of the event before, as its difference from the slot's
// last gap. Packer and unpacker keep the same state, and start anew with each segment.
const (
	slotBits  = 11
	nextBits  = 12
	threads   = 256
	wakerBits = 6 // the difference of two places fits a byte

	// maxPacked is the most bytes that an event can take: the first of its time, its control byte, slot and head, and
	// the varints of its time, result, duration and arguments.
	maxPacked = 1 + 1 + 2 + headBytes + 7*binary.MaxVarintLen64
	headBytes = 12
)

// The bits of an event's control byte.
const (
	diffHead = 1 << iota
	diffRet
	diffDur
	diffArg0
	diffArg1
	diffArg2
	diffArg3
	otherSlot

	diffArgs = diffArg0 | diffArg1 | diffArg2 | diffArg3
)

// asBefore in the lowest bit of an event's time: there is no control byte, it would be that of the slot's last event.
const asBefore = 1

// state is what packer and unpacker know about the events so far.
type state struct {
	slots    [1 << slotBits]event.Event // residues, see reduce
	controls [1 << slotBits]byte        // the last control byte of each, without otherSlot
	next     [1 << nextBits]uint16      // the slot that followed the last two
	last     uint32                     // slot of the last event
	older    uint32                     // and of the one before
	end      uint64                     // end of the last event
	calls    uint64                     // correlation id of the last call that has one
	work     uint64                     // likewise of what the GPU did

	resumed [threads]uint64        // end of the last interval off the CPU, of threads with the same low bits
	wakers  [1 << wakerBits]uint64 // see waker; 0: its place is free
}

func (s *state) reset() { *s = state{} }

// context returns the place in next for the event to come.
func (s *state) context() uint32 { return (s.last*0x9e3b + s.older) & (1<<nextBits - 1) }

func (s *state) follow(context, slot uint32) {
	s.next[context] = uint16(slot)
	s.older, s.last = s.last, slot
}

// slotOf returns the slot of events like e.
func slotOf(e *event.Event) uint32 {
	const a, b, c = 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9
	h := (uint64(e.PID)<<32 | uint64(e.TID)) * a
	kind := uint64(e.Func)<<16 | uint64(e.Kind)<<8 | uint64(e.Flags)
	switch e.Kind {
	case event.Call:
		if e.Flags&event.Correlated == 0 {
			kind |= uint64(uint32(e.Ret)) << 32
		}
		h ^= (e.Args[2] ^ e.Args[3]<<21 ^ e.Args[3]>>43) * c
	case event.Kernel, event.Copy, event.Set:
		kind |= uint64(uint32(e.Ret)) << 32
		h ^= (e.Args[2] ^ e.Args[3]<<21 ^ e.Args[3]>>43) * c
	case event.OffCPU:
		h ^= (e.Args[2] ^ e.Args[3]<<21 ^ e.Args[3]>>43) * c
	case event.Sample:
	default:
		kind |= uint64(uint32(e.Ret)) << 32
	}
	h = (h ^ kind) * b
	return uint32(h >> (64 - slotBits))
}

// waker exchanges a waker that was seen before and its place among wakers, which is small: most threads are woken by
// few. It undoes itself.
func (s *state) waker(v uint64) uint64 {
	if v < uint64(len(s.wakers)) {
		if w := s.wakers[v]; w != 0 {
			return w
		}
		return v
	}
	place := v * 0x9e3779b97f4a7c15 >> (64 - wakerBits)
	if s.wakers[place] == v {
		return place
	}
	s.wakers[place] = v
	return v
}

// reduce returns the fields of e that grow with time as what they grew by: its time, duration, result and first two
// arguments. restore undoes it.
func (s *state) reduce(e *event.Event) (ts, dur uint64, ret int32, arg0, arg1 uint64) {
	ts, dur, ret, arg0, arg1 = e.TS-s.end, e.Dur, e.Ret, e.Args[0], e.Args[1]
	end := e.TS + e.Dur
	switch e.Kind {
	case event.Call:
		if e.Flags&event.Correlated != 0 {
			id := uint64(uint32(ret))
			ret = int32(uint32(id - s.calls))
			s.calls = id
		}
	case event.Kernel, event.Copy, event.Set, event.Sync:
		s.work, arg0 = arg0, arg0-s.work
	case event.OffCPU:
		resumed := &s.resumed[e.TID%threads]
		wait := uint64(0) // for a CPU
		if e.Flags&event.Preempted == 0 {
			wait = e.Dur - arg0
			arg0 = wait
		}
		// Where other threads left a CPU meanwhile, the end of a long wait is closer to the last of them than its
		// beginning.
		ts, dur = e.TS-*resumed, e.Dur-wait
		if *resumed != s.end {
			dur = end - s.end
		}
		*resumed = end
		// Most wakers are the first thread of their process, and most threads take the CPU that they left.
		arg1 = s.waker(arg1 - arg1<<32)
		ret -= ret << 16
	}
	s.end = end
	return ts, dur, ret, arg0, arg1
}

func (s *state) restore(e *event.Event) {
	switch e.Kind {
	case event.Call:
		e.TS += s.end
		if e.Flags&event.Correlated != 0 {
			s.calls = uint64(uint32(e.Ret) + uint32(s.calls))
			e.Ret = int32(uint32(s.calls))
		}
	case event.Kernel, event.Copy, event.Set, event.Sync:
		e.TS += s.end
		s.work += e.Args[0]
		e.Args[0] = s.work
	case event.OffCPU:
		resumed, wait := &s.resumed[e.TID%threads], uint64(0)
		if e.Flags&event.Preempted == 0 {
			wait = e.Args[0]
		}
		e.TS += *resumed
		if *resumed == s.end {
			e.Dur += wait
		} else {
			e.Dur += s.end - e.TS
		}
		*resumed = e.TS + e.Dur
		if e.Flags&event.Preempted == 0 {
			e.Args[0] = e.Dur - wait
		}
		e.Args[1] = s.waker(e.Args[1])
		e.Args[1] += e.Args[1] << 32
		e.Ret += e.Ret << 16
	default:
		e.TS += s.end
	}
	s.end = e.TS + e.Dur
}

// pack writes e to b, which has room for maxPacked bytes, and returns how many it took. Each event passes through here
// (BenchmarkAppendBatch): it branches for what rarely differs, and only then stores it.
func (s *state) pack(b []byte, e *event.Event) int {
	b = b[:maxPacked:maxPacked]
	slot, context := slotOf(e), s.context()
	predicted := uint32(s.next[context]) == slot
	s.follow(context, slot)
	ts, dur, ret, arg0, arg1 := s.reduce(e)
	args := [4]uint64{arg0, arg1, e.Args[2], e.Args[3]}
	old := &s.slots[slot]
	control := byte(0)
	if (e.PID^old.PID)|(e.TID^old.TID)|uint32(e.Func^old.Func)|uint32(e.Kind^old.Kind)|uint32(e.Flags^old.Flags) != 0 {
		control |= diffHead
	}
	if ret != old.Ret {
		control |= diffRet
	}
	if dur != old.Dur {
		control |= diffDur
	}
	if args != old.Args {
		for i, arg := range args {
			if arg != old.Args[i] {
				control |= diffArg0 << i
			}
		}
	}
	n := putTime(b, ts-old.TS)
	switch {
	case !predicted:
		b[n] = control | otherSlot
		binary.LittleEndian.PutUint16(b[n+1:], uint16(slot))
		n += 3
	case control != s.controls[slot]:
		b[n] = control
		n++
	default:
		b[0] |= asBefore
	}
	s.controls[slot] = control
	old.TS = ts
	if control&diffHead != 0 {
		putHead(b[n:], e)
		n += headBytes
		old.PID, old.TID, old.Func, old.Kind, old.Flags = e.PID, e.TID, e.Func, e.Kind, e.Flags
	}
	if control&diffRet != 0 {
		n = putSigned(b, n, uint64(int64(ret)-int64(old.Ret)))
		old.Ret = ret
	}
	if control&diffDur != 0 {
		n = putSigned(b, n, dur-old.Dur)
		old.Dur = dur
	}
	if control&diffArgs != 0 {
		for i, arg := range args {
			if control&(diffArg0<<i) != 0 {
				n = putSigned(b, n, arg-old.Args[i])
			}
		}
		old.Args = args
	}
	return n
}

// unpack reads an event out of b, which has maxPacked bytes, and returns how many it took.
func (s *state) unpack(b []byte, e *event.Event) int {
	_ = b[maxPacked-1]
	context := s.context()
	slot := uint32(s.next[context])
	n, ts, same := getTime(b)
	control := s.controls[slot]
	if !same {
		control = b[n]
		n++
		if control&otherSlot != 0 {
			slot = uint32(binary.LittleEndian.Uint16(b[n:])) & (1<<slotBits - 1)
			control &^= otherSlot
			n += 2
		}
		s.controls[slot] = control
	}
	s.follow(context, slot)
	old := &s.slots[slot]
	old.TS += ts
	if control&diffHead != 0 {
		getHead(b[n:], old)
		n += headBytes
	}
	if control&diffRet != 0 {
		ret := uint64(int64(old.Ret))
		n = addSigned(b, n, &ret)
		old.Ret = int32(uint32(ret))
	}
	if control&diffDur != 0 {
		n = addSigned(b, n, &old.Dur)
	}
	if control&diffArgs != 0 {
		for i := range old.Args {
			if control&(diffArg0<<i) != 0 {
				n = addSigned(b, n, &old.Args[i])
			}
		}
	}
	*e = *old
	s.restore(e)
	return n
}

// putTime writes the difference of a time without asBefore, and returns where it ends.
func putTime(b []byte, diff uint64) int {
	v := diff<<1 ^ uint64(int64(diff)>>63)
	b[0] = byte(v<<1) & 0x7e
	if v >>= 6; v == 0 {
		return 1
	}
	b[0] |= 0x80
	return putVarint(b, 1, v)
}

// getTime undoes it.
func getTime(b []byte) (n int, diff uint64, same bool) {
	v := uint64(b[0] & 0x7e >> 1)
	n = 1
	if b[0] >= 0x80 {
		var more uint64
		n, more = getVarint(b, 1)
		v |= more << 6
	}
	return n, v>>1 ^ -(v & 1), b[0]&asBefore != 0
}

func putHead(b []byte, e *event.Event) {
	le := binary.LittleEndian
	le.PutUint32(b, e.PID)
	le.PutUint32(b[4:], e.TID)
	le.PutUint16(b[8:], e.Func)
	b[10], b[11] = byte(e.Kind), byte(e.Flags)
}

func getHead(b []byte, e *event.Event) {
	le := binary.LittleEndian
	e.PID, e.TID, e.Func = le.Uint32(b), le.Uint32(b[4:]), le.Uint16(b[8:])
	e.Kind, e.Flags = event.Kind(b[10]), event.Flags(b[11])
}

// putSigned writes a difference at b[n:], and returns where it ends.
func putSigned(b []byte, n int, diff uint64) int {
	return putVarint(b, n, diff<<1^uint64(int64(diff)>>63))
}

// addSigned reads a difference at b[n:], adds it to v, and returns where it ends.
func addSigned(b []byte, n int, v *uint64) int {
	n, u := getVarint(b, n)
	*v += u>>1 ^ -(u & 1)
	return n
}

func putVarint(b []byte, n int, v uint64) int {
	for v >= 0x80 {
		b[n] = byte(v) | 0x80
		v >>= 7
		n++
	}
	b[n] = byte(v)
	return n + 1
}

// getVarint reads ten bytes at most.
func getVarint(b []byte, n int) (end int, v uint64) {
	v = uint64(b[n])
	if n++; v < 0x80 {
		return n, v
	}
	v &= 0x7f
	for shift := 7; ; shift += 7 {
		c := uint64(b[n])
		n++
		v |= c & 0x7f << shift
		if c < 0x80 || shift == 63 {
			return n, v
		}
	}
}

var errDamaged = errors.New("events in memory are damaged")

//nolint:gochecknoglobals // a table that is never written to
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// unpackAll hands the count events of a segment's bytes to yield, in batches that lie in room, until it
// returns false. What does not match its checksum yields nothing.
func (s *state) unpackAll(
	packed []byte,
	count int,
	sum uint32,
	room []event.Event,
	yield func([]event.Event) bool,
) error {
	if crc32.Checksum(packed, castagnoli) != sum {
		return errDamaged
	}
	s.reset()
	at := 0
	var tail [2 * maxPacked]byte // the last events, with room behind them
	for count > 0 {
		n := 0
		for ; n < len(room) && n < count && at+maxPacked <= len(packed); n++ {
			at += s.unpack(packed[at:], &room[n])
		}
		for ; n < len(room) && n < count; n++ {
			if at >= len(packed) {
				return errDamaged
			}
			copy(tail[:], packed[at:])
			at += s.unpack(tail[:], &room[n])
		}
		count -= n
		if !yield(room[:n]) {
			return nil
		}
	}
	if at != len(packed) {
		return errDamaged
	}
	return nil
}
