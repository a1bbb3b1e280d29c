package engine

import (
	"encoding/binary"
	"math"
)

// Bounds of a message.
const (
	maxDepth = 16
	maxName  = 128 // bytes of a string that is kept
)

// reader reads msgpack (github.com/msgpack/msgpack/blob/master/spec.md). After the first byte that it does not
// understand, or at the end of the bytes, bad is set and everything is zero.
type reader struct {
	b   []byte
	bad bool
}

// kind is the type of a value.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindBinary
	kindArray
	kindMap
	kindExtension
)

// value is one value; of an array or a map only the number of elements.
type value struct {
	kind kind
	n    uint64 // length; of an integer its bits
	f    float64
	s    []byte // of a string or binary
}

// next reads a value without what is in it.
func (r *reader) next() value {
	c, ok := r.bytes(1)
	if !ok {
		return value{}
	}
	switch t := c[0]; {
	case t < 0x80:
		return integer(uint64(t))
	case t < 0x90:
		return value{kind: kindMap, n: uint64(t & 15)}
	case t < 0xa0:
		return value{kind: kindArray, n: uint64(t & 15)}
	case t < 0xc0:
		return r.text(kindString, uint64(t&31))
	case t >= 0xe0:
		return integer(uint64(int64(int8(t))))
	default:
		return r.marked(t)
	}
}

func integer(n uint64) value { return value{kind: kindInt, n: n, f: float64(int64(n))} }

// marked reads a value of a type from 0xc0 to 0xdf.
func (r *reader) marked(t byte) value {
	switch t {
	case 0xc0:
		return value{kind: kindNil}
	case 0xc2, 0xc3:
		return value{kind: kindBool, n: uint64(t & 1)}
	case 0xc4, 0xc5, 0xc6:
		return r.text(kindBinary, r.number(1<<(t-0xc4)))
	case 0xc7, 0xc8, 0xc9:
		return r.text(kindExtension, r.number(1<<(t-0xc7))+1)
	case 0xca:
		return value{kind: kindFloat, f: float64(math.Float32frombits(uint32(r.number(4))))}
	case 0xcb:
		return value{kind: kindFloat, f: math.Float64frombits(r.number(8))}
	case 0xcc, 0xcd, 0xce, 0xcf:
		return integer(r.number(1 << (t - 0xcc)))
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := 1 << (t - 0xd0)
		shift := 64 - 8*size
		return integer(uint64(int64(r.number(size)<<shift) >> shift))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return r.text(kindExtension, 1<<(t-0xd4)+1)
	case 0xd9, 0xda, 0xdb:
		return r.text(kindString, r.number(1<<(t-0xd9)))
	case 0xdc, 0xdd:
		return value{kind: kindArray, n: r.number(2 << (t - 0xdc))}
	case 0xde, 0xdf:
		return value{kind: kindMap, n: r.number(2 << (t - 0xde))}
	}
	r.bad = true
	return value{}
}

func (r *reader) bytes(n uint64) ([]byte, bool) {
	if r.bad || n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil, false
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b, true
}

func (r *reader) number(size int) uint64 {
	b, ok := r.bytes(uint64(size))
	if !ok {
		return 0
	}
	var word [8]byte
	copy(word[8-size:], b)
	return binary.BigEndian.Uint64(word[:])
}

func (r *reader) text(k kind, n uint64) value {
	b, ok := r.bytes(n)
	if !ok {
		return value{}
	}
	return value{kind: k, n: n, s: b}
}

// array reads the beginning of an array; false: it is something else, and is skipped.
func (r *reader) array() (n uint64, ok bool) { return r.begin(kindArray) }

func (r *reader) begin(k kind) (uint64, bool) {
	v := r.next()
	if v.kind == k && !r.bad {
		return v.n, true
	}
	r.inner(v, maxDepth)
	return 0, false
}

// skip passes over a value with all that is in it.
func (r *reader) skip() { r.inner(r.next(), maxDepth) }

func (r *reader) inner(v value, depth int) {
	n := v.n
	switch v.kind {
	case kindArray:
	case kindMap:
		n *= 2
	default:
		return
	}
	if depth == 0 || n > uint64(len(r.b)) { // each element has a byte at least
		r.bad, r.b = true, nil
		return
	}
	for ; n > 0 && !r.bad; n-- {
		r.inner(r.next(), depth-1)
	}
}

// float reads a number, 0 where it is something else.
func (r *reader) float() float64 {
	v := r.next()
	if v.kind != kindInt && v.kind != kindFloat {
		r.inner(v, maxDepth)
		return 0
	}
	return v.f
}

// fields calls field for each entry of a map; field reads the value. What is no map is skipped.
func (r *reader) fields(field func(key string)) {
	n, ok := r.begin(kindMap)
	for ; ok && n > 0 && !r.bad; n-- {
		key := r.next()
		r.inner(key, maxDepth)
		field(string(key.s))
	}
}

// name returns text that can be kept: ASCII, and not too long.
func name(b []byte) string {
	if len(b) > maxName {
		b = b[:maxName]
	}
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	return string(b)
}
