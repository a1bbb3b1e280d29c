package engine

import (
	"bytes"
	"encoding/binary"
	"math"
)

// maxValues bounds the values of one pickle, and what it remembers. Each takes a byte at least.
const maxValues = maxFrame

// pickled is one value of a pickle. Nothing that it names is looked up, made or called.
type pickled struct {
	kind   kind
	n      uint64 // of an integer its bits, of a text or bytes how many
	f      float64
	s      []byte     // of a text or bytes; of a class its name
	module []byte     // of a class
	items  []*pickled // of a list, tuple or set; of a map keys and values in turn
	class  *pickled   // of an object
	state  *pickled   // of an object: a map of its fields; nil: not seen
}

// Kinds of values that msgpack has not.
const (
	kindClass = kindExtension + 1 + iota
	kindObject
	kindOpaque
)

// pickle reads Python's pickles of protocols 2 to 5 (Lib/pickletools.py) as data: it has their stack and their memo,
// and classes are names. After the first byte that it does not understand bad is set; at the end of the bytes cut.
type pickle struct {
	b     []byte
	stack []*pickled
	marks []int // positions in stack
	memo  []*pickled
	made  int
	bad   bool
	cut   bool // the bytes ended before the pickle did
	done  bool
}

// read takes the pickle's opcodes, and what is there of the last containers where it is cut.
func (p *pickle) read() {
	for !p.done && !p.bad && !p.cut {
		op := p.take(1)
		if p.cut {
			break
		}
		p.opcode(op[0])
	}
	for p.cut && !p.bad && len(p.marks) > 0 {
		p.fill()
	}
}

// take returns the next n bytes.
func (p *pickle) take(n uint64) []byte {
	if n > uint64(len(p.b)) {
		p.cut, p.b = true, nil
		return nil
	}
	b := p.b[:n]
	p.b = p.b[n:]
	return b
}

// number reads an unsigned integer of so many bytes, the lowest first.
func (p *pickle) number(size uint64) uint64 {
	var word [8]byte
	copy(word[:], p.take(size))
	return binary.LittleEndian.Uint64(word[:])
}

func (p *pickle) push(v pickled) {
	if p.cut { // the end of its bytes is missing
		return
	}
	if p.made++; p.made > maxValues {
		p.bad = true
		return
	}
	p.stack = append(p.stack, &v)
}

// floor is where the values begin that lie above the last mark.
func (p *pickle) floor() int {
	if n := len(p.marks); n > 0 {
		return p.marks[n-1]
	}
	return 0
}

// pop takes the topmost value; an opaque one where there is none.
func (p *pickle) pop() *pickled {
	n := len(p.stack)
	if n <= p.floor() {
		p.bad = true
		return &pickled{kind: kindOpaque}
	}
	v := p.stack[n-1]
	p.stack = p.stack[:n-1]
	return v
}

// top returns the topmost value.
func (p *pickle) top() *pickled {
	n := len(p.stack)
	if n <= p.floor() {
		p.bad = true
		return &pickled{kind: kindOpaque}
	}
	return p.stack[n-1]
}

// above takes all values above the last mark, and the mark.
func (p *pickle) above() []*pickled {
	if len(p.marks) == 0 {
		p.bad = true
		return nil
	}
	at := p.floor()
	items := append([]*pickled(nil), p.stack[at:]...)
	p.stack, p.marks = p.stack[:at], p.marks[:len(p.marks)-1]
	return items
}

// fill adds the values above the last mark to the container below it.
func (p *pickle) fill() {
	items := p.above()
	if v := p.top(); !p.bad && (v.kind == kindArray || v.kind == kindMap) {
		v.items = append(v.items, items...)
	}
	p.bad = false // where the mark is that of a tuple, there may be nothing below it
}

// opcode does what one opcode says.
func (p *pickle) opcode(op byte) {
	switch op {
	case 0x80: // PROTO
		p.take(1)
	case 0x95: // FRAME
		p.take(8)
	case '.': // STOP
		p.done = true
	case '(': // MARK
		p.marks = append(p.marks, len(p.stack))
	case '0': // POP
		if n := len(p.marks); n > 0 && len(p.stack) == p.marks[n-1] {
			p.marks = p.marks[:n-1]
			return
		}
		p.pop()
	case '1': // POP_MARK
		p.above()
	case '2': // DUP
		if p.made++; p.made <= maxValues {
			p.stack = append(p.stack, p.top())
		} else {
			p.bad = true
		}
	case 'h', 'j': // BINGET, LONG_BINGET
		p.recall(p.number(map[byte]uint64{'h': 1, 'j': 4}[op]))
	case 'q', 'r': // BINPUT, LONG_BINPUT
		p.remember(p.number(map[byte]uint64{'q': 1, 'r': 4}[op]))
	case 0x94: // MEMOIZE
		p.remember(uint64(len(p.memo)))
	default:
		if !p.scalar(op) && !p.container(op) && !p.object(op) {
			p.bad = true
		}
	}
}

func (p *pickle) recall(n uint64) {
	if p.cut {
		return
	}
	if n >= uint64(len(p.memo)) || p.memo[n] == nil {
		p.bad = true
		return
	}
	if p.made++; p.made > maxValues {
		p.bad = true
		return
	}
	p.stack = append(p.stack, p.memo[n])
}

func (p *pickle) remember(n uint64) {
	v := p.top()
	if p.cut || p.bad || n >= maxValues {
		p.bad = p.bad || !p.cut
		return
	}
	for uint64(len(p.memo)) <= n {
		p.memo = append(p.memo, nil)
	}
	p.memo[n] = v
}

// scalar reads a number, a text or bytes.
func (p *pickle) scalar(op byte) bool {
	switch op {
	case 'N': // NONE
		p.push(pickled{kind: kindNil})
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		p.push(pickled{kind: kindBool, n: uint64(0x89 - op)})
	case 'K': // BININT1
		p.integer(p.number(1))
	case 'M': // BININT2
		p.integer(p.number(2))
	case 'J': // BININT
		p.integer(uint64(int64(int32(p.number(4)))))
	case 0x8a: // LONG1
		p.long(p.number(1))
	case 0x8b: // LONG4
		p.long(p.number(4))
	case 'G': // BINFLOAT
		if b := p.take(8); b != nil {
			p.push(pickled{kind: kindFloat, f: math.Float64frombits(binary.BigEndian.Uint64(b))})
		}
	case 0x8c: // SHORT_BINUNICODE
		p.text(kindString, p.number(1))
	case 'X': // BINUNICODE
		p.text(kindString, p.number(4))
	case 0x8d: // BINUNICODE8
		p.text(kindString, p.number(8))
	case 'C': // SHORT_BINBYTES
		p.text(kindBinary, p.number(1))
	case 'B': // BINBYTES
		p.text(kindBinary, p.number(4))
	case 0x8e, 0x96: // BINBYTES8, BYTEARRAY8
		p.text(kindBinary, p.number(8))
	case 0x97, 'Q': // NEXT_BUFFER, BINPERSID: what is elsewhere
		if op == 'Q' {
			p.pop()
		}
		p.push(pickled{kind: kindOpaque})
	case 0x98: // READONLY_BUFFER
	default:
		return false
	}
	return true
}

func (p *pickle) integer(n uint64) { p.push(pickled{kind: kindInt, n: n, f: float64(int64(n))}) }

// long reads an integer of any length; what 64 bits do not hold is no number here.
func (p *pickle) long(size uint64) {
	b := p.take(size)
	switch {
	case p.cut:
	case size == 0:
		p.integer(0)
	case size > 8:
		p.push(pickled{kind: kindOpaque})
	default:
		var word [8]byte
		if b[size-1]&0x80 != 0 {
			word = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		}
		copy(word[:], b)
		p.integer(binary.LittleEndian.Uint64(word[:]))
	}
}

func (p *pickle) text(k kind, n uint64) {
	if p.cut {
		return
	}
	p.push(pickled{kind: k, n: n, s: p.take(n)})
}

// container reads what makes and fills lists, tuples, sets and maps.
func (p *pickle) container(op byte) bool {
	switch op {
	case ']', ')', 0x8f: // EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET
		p.push(pickled{kind: kindArray})
	case '}': // EMPTY_DICT
		p.push(pickled{kind: kindMap})
	case 'a': // APPEND
		v := p.pop()
		p.add(v)
	case 's': // SETITEM
		v := p.pop()
		p.add(p.pop(), v)
	case 'e', 'u', 0x90: // APPENDS, SETITEMS, ADDITEMS
		items := p.above()
		p.add(items...)
	case 't', 0x91: // TUPLE, FROZENSET
		items := p.above()
		p.push(pickled{kind: kindArray, items: items})
	case 0x85, 0x86, 0x87: // TUPLE1 to TUPLE3
		items := make([]*pickled, op-0x84)
		for i := len(items) - 1; i >= 0; i-- {
			items[i] = p.pop()
		}
		p.push(pickled{kind: kindArray, items: items})
	default:
		return false
	}
	return true
}

func (p *pickle) add(items ...*pickled) {
	if v := p.top(); v.kind == kindArray || v.kind == kindMap {
		v.items = append(v.items, items...)
	}
}

// object reads what names classes and makes objects.
func (p *pickle) object(op byte) bool {
	switch op {
	case 'c': // GLOBAL
		module, name := p.line(), p.line()
		p.push(pickled{kind: kindClass, module: module, s: name})
	case 0x93: // STACK_GLOBAL
		name, module := p.pop(), p.pop()
		p.push(pickled{kind: kindClass, module: module.s, s: name.s})
	case 0x81: // NEWOBJ
		p.pop()
		p.push(pickled{kind: kindObject, class: p.pop()})
	case 0x92: // NEWOBJ_EX
		p.pop()
		p.pop()
		p.push(pickled{kind: kindObject, class: p.pop()})
	case 'R': // REDUCE
		args, function := p.pop(), p.pop()
		o := pickled{kind: kindObject, class: function}
		// msgspec's rebuild(class, fields).
		if a := args.items; args.kind == kindArray && len(a) == 2 && a[0].kind == kindClass && a[1].kind == kindMap {
			o.class, o.state = a[0], a[1]
		}
		p.push(o)
	case 'b': // BUILD
		state := p.pop()
		if o := p.top(); o.kind == kindObject {
			o.state = state
		}
	default:
		return false
	}
	return true
}

// line reads text up to a line feed.
func (p *pickle) line() []byte {
	at := bytes.IndexByte(p.b, '\n')
	if at < 0 {
		p.cut, p.b = true, nil
		return nil
	}
	return p.take(uint64(at) + 1)[:at]
}

// message returns the class and the fields of the object that a pickle is of, also where it is cut; nil: it is of none.
func (p *pickle) message() (class, fields *pickled) {
	for _, v := range p.stack {
		switch {
		case v.kind == kindClass:
			class = v
		case v.kind == kindObject:
			if class = v.class; v.state != nil {
				return class, v.state
			}
		case v.kind == kindMap && class != nil:
			return class, v
		}
	}
	return class, nil
}

// field returns a field of an object's state; nil: it has none of this name.
func (v *pickled) field(name string) *pickled {
	if v == nil || v.kind != kindMap {
		return nil
	}
	for i := 0; i+1 < len(v.items); i += 2 {
		if string(v.items[i].s) == name {
			return v.items[i+1]
		}
	}
	return nil
}

// list returns the elements of a list; nil: it is none, or not there.
func (v *pickled) list() []*pickled {
	if v == nil || v.kind != kindArray {
		return nil
	}
	return v.items
}

// float returns a number, 0 where it is something else.
func (v *pickled) float() float64 {
	if v == nil || v.kind != kindInt && v.kind != kindFloat {
		return 0
	}
	return v.f
}
