package agent_test

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// slot is struct agent_slot.
type slot struct {
	ts, dur     uint64
	seq, tid    uint32
	fn          uint16
	kind, flags uint8
	ret         int32
	args        [4]uint64
}

// read takes all whole slots from the ring.
func (p *player) read() {
	p.t.Helper()
	for {
		b := p.ring[ringData+(p.tail%p.slots)*64:]
		if atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[16]))) != uint32(p.tail/p.slots)+1 {
			return
		}
		s := parse(b)
		p.tail++
		if s.kind == kindName {
			p.names[uint32(s.ret)] = p.text(int(s.fn))
		} else {
			p.all = append(p.all, s)
		}
		p.put64(ringTail, p.tail)
	}
}

// text reads the texts that follow a name: they were reserved together, so they will be whole.
func (p *player) text(length int) string {
	var out []byte
	for len(out) < length {
		b := p.ring[ringData+(p.tail%p.slots)*64:]
		p.until("text slot", func() bool {
			return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[16]))) == uint32(p.tail/p.slots)+1
		})
		if b[26] != kindText {
			p.t.Fatalf("a name is followed by a slot of kind %d", b[26])
		}
		out = append(append(append(out, b[:16]...), b[20:26]...), b[27:64]...)
		p.tail++
	}
	return string(out[:length])
}

func parse(b []byte) slot {
	order := binary.LittleEndian
	s := slot{
		ts: order.Uint64(b), dur: order.Uint64(b[8:]), seq: order.Uint32(b[16:]), tid: order.Uint32(b[20:]),
		fn: order.Uint16(b[24:]), kind: b[26], flags: b[27], ret: int32(order.Uint32(b[28:])),
	}
	for i := range s.args {
		s.args[i] = order.Uint64(b[32+8*i:])
	}
	return s
}

// of returns the slots of a kind.
func (p *player) of(kind uint8) []slot {
	var out []slot
	for _, s := range p.all {
		if s.kind == kind {
			out = append(out, s)
		}
	}
	return out
}
