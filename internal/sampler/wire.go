package sampler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
)

// What the helper process says (helper.go): packets of at most maxPacket bytes that hold
// records, one after the other, in native byte order. The helper reads the files of
// targets, so what it says is read as if a target had said it.
const maxPacket = 128 << 10

// goodPacket is from what size on a packet is sent. With one record behind it, 40 KiB
// at most, it still is a packet.
const goodPacket = 32 << 10

// The kinds of records: the first byte.
const (
	wireReady  = 1 // the unwinder runs; its entry program comes with it
	wireFailed = 2 // text: why there is no unwinder
	wireModule = 3 // u64 inode, u32 pid that has it mapped, text: path; numbered from 1 on in their order
	wireTrace  = 4 // u64 time, u32 pid, u32 tid, text: why it is cut off, u16 number of frames, frames
)

// A frame is the u32 number of a module and a u64 address in it, or number 0, the
// address, and a text: the name of a file that is not known. A text is a u16 length
// and its bytes.

// Bounds of a text, a path say; of the name of a file that is not known; and of a
// trace, where the library stops after 145 frames.
const (
	maxText     = 4096
	maxFileName = 64
	maxFrames   = 512
)

// encoder makes records of traces.
type encoder struct {
	send    func(packet []byte) error
	packet  []byte
	numbers map[*module]uint32
}

// flush sends what has gathered, if it is at least that many bytes.
func (e *encoder) flush(least int) error {
	if len(e.packet) < least {
		return nil
	}
	packet := e.packet
	e.packet = e.packet[:0]
	return e.send(packet)
}

func (e *encoder) text(s string) {
	s = s[:min(len(s), maxText)]
	e.packet = binary.NativeEndian.AppendUint16(e.packet, uint16(len(s)))
	e.packet = append(e.packet, s...)
}

// trace adds a trace, and before it the modules that are new.
func (e *encoder) trace(t *trace) error {
	frames := t.frames[:min(len(t.frames), maxFrames)]
	for i := range frames {
		if mod := frames[i].module; mod != nil && e.numbers[mod] == 0 {
			e.module(t.pid, mod)
			if err := e.flush(goodPacket); err != nil {
				return err
			}
		}
	}
	ne := binary.NativeEndian
	e.packet = ne.AppendUint64(append(e.packet, wireTrace), t.at)
	e.packet = ne.AppendUint32(ne.AppendUint32(e.packet, t.pid), t.tid)
	e.text(t.cut)
	e.packet = ne.AppendUint16(e.packet, uint16(len(frames)))
	for i := range frames {
		f := &frames[i]
		number := uint32(0)
		if f.module != nil {
			number = e.numbers[f.module]
		}
		e.packet = ne.AppendUint64(ne.AppendUint32(e.packet, number), f.addr)
		if number == 0 {
			e.text(f.name[:min(len(f.name), maxFileName)])
		}
	}
	return e.flush(goodPacket)
}

func (e *encoder) module(pid uint32, mod *module) {
	e.numbers[mod] = uint32(len(e.numbers)) + 1
	e.packet = binary.NativeEndian.AppendUint64(append(e.packet, wireModule), mod.inode)
	e.packet = binary.NativeEndian.AppendUint32(e.packet, pid)
	e.text(mod.path)
}

var errPacket = errors.New("its helper process says what makes no sense")

// decoder reads packets. Every read after the end of one gives zeros and sets bad.
type decoder struct {
	convert *converter
	modules []*wired
	packet  []byte
	bad     bool
}

// wired is a module of the helper's.
type wired struct {
	mod  *module // nil: there are too many
	base string
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.packet) {
		d.bad = true
		d.packet = nil
		return make([]byte, n)
	}
	b := d.packet[:n]
	d.packet = d.packet[n:]
	return b
}

func (d *decoder) u16() uint16 { return binary.NativeEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.NativeEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.NativeEndian.Uint64(d.bytes(8)) }

func (d *decoder) text() string {
	n := int(d.u16())
	if n > maxText {
		d.bad = true
		return ""
	}
	return string(d.bytes(n))
}

// traces reads a packet of modules and traces. An error also is what the helper failed of.
func (d *decoder) traces(packet []byte) ([]*trace, error) {
	var out []*trace
	for d.packet = packet; len(d.packet) > 0 && !d.bad; {
		switch d.bytes(1)[0] {
		case wireModule:
			d.module()
		case wireTrace:
			out = append(out, d.trace())
		case wireFailed:
			return nil, fmt.Errorf("%s", clip(d.text()))
		default:
			d.bad = true
		}
	}
	if d.bad {
		return nil, errPacket
	}
	return out, nil
}

func (d *decoder) module() {
	inode, pid, name := d.u64(), d.u32(), d.text()
	if d.bad || len(d.modules) >= maxModules {
		d.bad = true
		return
	}
	d.modules = append(d.modules, &wired{d.convert.modules.named(pid, inode, name), clip(path.Base(name))})
}

func (d *decoder) trace() *trace {
	t := &trace{at: d.u64(), pid: d.u32(), tid: d.u32(), cut: clip(d.text())}
	n := int(d.u16())
	if d.bad || n > maxFrames || n*12 > len(d.packet) {
		d.bad = true
		return t
	}
	t.frames, t.eval = make([]frame, 0, n), make([]bool, 0, n)
	for range n {
		f := d.frame(t.pid)
		t.add(f, d.convert.runs(f))
	}
	return t
}

func (d *decoder) frame(pid uint32) frame {
	number := d.u32()
	f := frame{kind: nativeFrame, addr: d.u64()}
	switch {
	case number == 0:
		if f.name = clip(d.text()); f.name == "" {
			f.pid = pid
		}
	case number > uint32(len(d.modules)):
		d.bad = true
	default:
		if w := d.modules[number-1]; w.mod != nil {
			f.module = w.mod
		} else {
			f.name = w.base
		}
	}
	return f
}
