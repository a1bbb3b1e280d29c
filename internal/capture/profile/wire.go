package profile

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
	wireFrame  = 4 // u32 number of a module, u64 address in it; module 0: u32 pid, text: name of a file that is not known; numbered as modules
	wireStack  = 5 // text: why it is cut off, u16 number of frames, u32 numbers of them; numbered as modules
	wireTrace  = 6 // u64 time, u32 pid, u32 tid, u32 number of a stack
	wireForget = 7 // the numbers of modules, frames and stacks begin anew
)

// Frames and stacks are said once, and then by their numbers: most samples of a loop
// have the frames of others, and many their stack. A text is a u16 length and its bytes.

// Bounds of a text, a path say; of the name of a file that is not known; of a
// stack, where the library stops after 145 frames; and of the frames and modules that have numbers.
const (
	maxText     = 4096
	maxFileName = 64
	maxFrames   = 512
	maxNumbered = 1 << 15
	maxWired    = 8192
)

// encoder makes records of traces.
type encoder struct {
	send    func(packet []byte) error
	packet  []byte
	modules map[*module]uint32
	frames  map[*frame]uint32
	stacks  map[*unwound]uint32
}

func newEncoder(send func(packet []byte) error) *encoder {
	return &encoder{
		send:    send,
		modules: map[*module]uint32{},
		frames:  map[*frame]uint32{},
		stacks:  map[*unwound]uint32{},
	}
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

// trace adds a trace, and before it what is new of its stack.
func (e *encoder) trace(t *trace) error {
	if e.stacks[t.stack] == 0 {
		if err := e.stack(t.pid, t.stack); err != nil {
			return err
		}
	}
	ne := binary.NativeEndian
	e.packet = ne.AppendUint64(append(e.packet, wireTrace), t.at)
	e.packet = ne.AppendUint32(ne.AppendUint32(e.packet, t.pid), t.tid)
	e.packet = ne.AppendUint32(e.packet, e.stacks[t.stack])
	return e.flush(goodPacket)
}

// stack adds a stack, and before it what is new of its frames.
func (e *encoder) stack(pid uint32, s *unwound) error {
	frames := s.frames[:min(len(s.frames), maxFrames)]
	if len(e.stacks) >= maxStacks || len(e.frames)+len(frames) > maxNumbered || len(e.modules)+len(frames) > maxWired {
		e.packet = append(e.packet, wireForget)
		clear(e.modules)
		clear(e.stacks)
		clear(e.frames)
	}
	for _, f := range frames {
		if e.frames[f] != 0 {
			continue
		}
		e.frame(pid, f)
		if err := e.flush(goodPacket); err != nil {
			return err
		}
	}
	ne := binary.NativeEndian
	e.packet = append(e.packet, wireStack)
	e.text(s.cut)
	e.packet = ne.AppendUint16(e.packet, uint16(len(frames)))
	for _, f := range frames {
		e.packet = ne.AppendUint32(e.packet, e.frames[f])
	}
	e.stacks[s] = uint32(len(e.stacks)) + 1
	return nil
}

// frame adds a frame, and before it its module if that is new.
func (e *encoder) frame(pid uint32, f *frame) {
	number := uint32(0)
	if f.module != nil {
		if e.modules[f.module] == 0 {
			e.module(pid, f.module)
		}
		number = e.modules[f.module]
	}
	ne := binary.NativeEndian
	e.packet = ne.AppendUint64(ne.AppendUint32(append(e.packet, wireFrame), number), f.addr)
	if number == 0 {
		e.packet = ne.AppendUint32(e.packet, f.pid)
		e.text(f.name[:min(len(f.name), maxFileName)])
	}
	e.frames[f] = uint32(len(e.frames)) + 1
}

func (e *encoder) module(pid uint32, mod *module) {
	e.modules[mod] = uint32(len(e.modules)) + 1
	e.packet = binary.NativeEndian.AppendUint64(append(e.packet, wireModule), mod.inode)
	e.packet = binary.NativeEndian.AppendUint32(e.packet, pid)
	e.text(mod.path)
}

var errPacket = errors.New("its helper process says what makes no sense")

// decoder reads packets. Every read after the end of one gives zeros and sets bad.
type decoder struct {
	convert *converter
	modules []*wired
	frames  []*frame
	stacks  []*unwound
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

// traces reads a packet and appends its traces to out. An error also is what the helper failed of.
func (d *decoder) traces(packet []byte, out []trace) ([]trace, error) {
	for d.packet = packet; len(d.packet) > 0 && !d.bad; {
		switch d.bytes(1)[0] {
		case wireModule:
			d.module()
		case wireFrame:
			d.frame()
		case wireStack:
			d.stack()
		case wireTrace:
			if t := (trace{at: d.u64(), pid: d.u32(), tid: d.u32(), stack: d.known()}); !d.bad {
				out = append(out, t)
			}
		case wireForget:
			d.modules, d.frames, d.stacks = nil, nil, nil // what is made of them stays
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
	if d.bad || len(d.modules) >= maxWired {
		d.bad = true
		return
	}
	d.modules = append(d.modules, &wired{d.convert.modules.named(pid, inode, name), clip(path.Base(name))})
}

// known returns a stack by its number.
func (d *decoder) known() *unwound {
	number := d.u32()
	if d.bad || number == 0 || number > uint32(len(d.stacks)) {
		d.bad = true
		return nil
	}
	return d.stacks[number-1]
}

func (d *decoder) stack() {
	s := &unwound{cut: clip(d.text())}
	n := int(d.u16())
	if d.bad || n > maxFrames || n*4 > len(d.packet) || len(d.stacks) >= maxStacks {
		d.bad = true
		return
	}
	s.frames = make([]*frame, n)
	for i := range s.frames {
		number := d.u32()
		if number == 0 || number > uint32(len(d.frames)) {
			d.bad = true
			return
		}
		s.frames[i] = d.frames[number-1]
	}
	d.stacks = append(d.stacks, s)
}

func (d *decoder) frame() {
	number := d.u32()
	f := &frame{kind: nativeFrame, addr: d.u64()}
	switch {
	case number == 0:
		f.pid, f.name = d.u32(), clip(d.text())
	case number > uint32(len(d.modules)):
		d.bad = true
	default:
		w := d.modules[number-1]
		if f.module = w.mod; w.mod == nil {
			f.name = w.base
		}
	}
	if d.bad || len(d.frames) >= maxNumbered {
		d.bad = true
		return
	}
	d.frames = append(d.frames, f)
}
