package columns

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Types of Thrift's compact protocol (thrift-compact-protocol.md).
const (
	compactStop   = 0
	compactTrue   = 1
	compactFalse  = 2
	compactByte   = 3
	compactI16    = 4
	compactI32    = 5
	compactI64    = 6
	compactDouble = 7
	compactBinary = 8
	compactList   = 9
	compactSet    = 10
	compactMap    = 11
	compactStruct = 12
)

// maxDepth bounds the nesting of what is skipped; real footers nest five deep.
const maxDepth = 32

var errShort = errors.New("it ends in the middle of a value")

// compact reads Thrift's compact protocol. The first error stays, and everything
// after it reads as zero, so that loops over it end.
type compact struct {
	b   []byte
	at  int
	err error
}

func (c *compact) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.at = len(c.b)
}

func (c *compact) byte() byte {
	if c.at >= len(c.b) {
		c.fail(errShort)
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

func (c *compact) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[c.at:])
	if n <= 0 {
		c.fail(errShort)
		return 0
	}
	c.at += n
	return v
}

// int reads a zigzag integer, as i16, i32 and i64 all are.
func (c *compact) int() int64 {
	u := c.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// bytes returns the bytes of a binary value: a part of the input, not a copy.
func (c *compact) bytes() []byte {
	n := c.uvarint()
	if n > uint64(len(c.b)-c.at) {
		c.fail(errShort)
		return nil
	}
	c.at += int(n)
	return c.b[c.at-int(n) : c.at]
}

// structure calls visit for each field of a struct. A visit that returns false
// leaves the value to be skipped; it must then not have read anything.
func (c *compact) structure(depth int, visit func(id int64, kind byte) bool) {
	if depth > maxDepth {
		c.fail(errors.New("it is nested too deeply"))
		return
	}
	id := int64(0)
	for c.err == nil {
		head := c.byte()
		kind := head & 15
		if kind == compactStop {
			return
		}
		if delta := int64(head >> 4); delta != 0 {
			id += delta
		} else {
			id = c.int()
		}
		if c.err == nil && !visit(id, kind) {
			c.skip(depth+1, kind)
		}
	}
}

// list calls each for every element; every one takes at least a byte, which bounds the count.
func (c *compact) list(each func(kind byte)) {
	head := c.byte()
	n, kind := uint64(head>>4), head&15
	if n == 15 {
		n = c.uvarint()
	}
	if n > uint64(len(c.b)-c.at) {
		c.fail(errShort)
	}
	for ; n > 0 && c.err == nil; n-- {
		each(kind)
	}
}

// skip reads over a value of a kind.
func (c *compact) skip(depth int, kind byte) {
	if depth > maxDepth {
		c.fail(errors.New("it is nested too deeply"))
		return
	}
	switch kind {
	case compactTrue, compactFalse: // a field's value is in its kind
	case compactByte:
		c.byte()
	case compactI16, compactI32, compactI64:
		c.uvarint()
	case compactDouble:
		for range 8 {
			c.byte()
		}
	case compactBinary:
		c.bytes()
	case compactList, compactSet:
		c.list(func(kind byte) { c.skipElement(depth+1, kind) })
	case compactMap:
		c.skipMap(depth)
	case compactStruct:
		c.structure(depth, func(int64, byte) bool { return false })
	default:
		c.fail(fmt.Errorf("it has a value of unknown type %d", kind))
	}
}

// skipElement skips an element of a collection, where a boolean takes a byte.
func (c *compact) skipElement(depth int, kind byte) {
	if kind == compactTrue || kind == compactFalse {
		kind = compactByte
	}
	c.skip(depth, kind)
}

func (c *compact) skipMap(depth int) {
	n := c.uvarint()
	if n == 0 {
		return
	}
	kinds := c.byte()
	if n > uint64(len(c.b)-c.at) {
		c.fail(errShort)
	}
	for ; n > 0 && c.err == nil; n-- {
		c.skipElement(depth+1, kinds>>4)
		c.skipElement(depth+1, kinds&15)
	}
}
