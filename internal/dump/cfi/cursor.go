package cfi

// Pointer encodings: LSB 5.0, table 10-5 and 10-6.
const (
	peAbsolute = 0x00
	peULEB     = 0x01
	peUData2   = 0x02
	peUData4   = 0x03
	peUData8   = 0x04
	peSLEB     = 0x09
	peSData2   = 0x0a
	peSData4   = 0x0b
	peSData8   = 0x0c
	pePCRel    = 0x10
	peDataRel  = 0x30
	peOmitted  = 0xff
)

// cursor takes values off the front of bytes; what is not there makes it bad, and reads as 0.
type cursor struct {
	b    []byte
	pos  int
	base uint64 // address of b[0]
	bad  bool
}

func (c *cursor) more() bool { return !c.bad && c.pos < len(c.b) }

// take returns the next n bytes.
func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)-c.pos) {
		c.bad = true
		return nil
	}
	b := c.b[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b
}

func (c *cursor) number(n uint64) uint64 {
	var v uint64
	for i, x := range c.take(n) {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func (c *cursor) u8() uint8 { return uint8(c.number(1)) }

// signed reads n bytes as a two's complement.
func (c *cursor) signed(n uint64) uint64 {
	shift := 64 - 8*n
	return uint64(int64(c.number(n)<<shift) >> shift)
}

// leb reads a LEB128 number; bits beyond 64 are dropped.
func (c *cursor) leb(signed bool) uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		x := c.u8()
		if shift < 64 {
			v |= uint64(x&0x7f) << shift
		}
		if x&0x80 != 0 && !c.bad {
			continue
		}
		if signed && x&0x40 != 0 && shift+7 < 64 {
			v |= ^uint64(0) << (shift + 7)
		}
		return v
	}
}

func (c *cursor) uleb() uint64 { return c.leb(false) }
func (c *cursor) sleb() int64  { return int64(c.leb(true)) }

// value reads a number in the low half of a pointer encoding.
func (c *cursor) value(encoding uint8) uint64 {
	switch encoding & 0x0f {
	case peAbsolute, peUData8, peSData8:
		return c.number(8)
	case peULEB:
		return c.uleb()
	case peSLEB:
		return uint64(c.sleb())
	case peUData2:
		return c.number(2)
	case peUData4:
		return c.number(4)
	case peSData2:
		return c.signed(2)
	case peSData4:
		return c.signed(4)
	}
	c.bad = true
	return 0
}

// pointer reads an encoded pointer. One that is relative to a register of the
// program, or indirect, is of no use here: its value is 0 and means nothing.
func (c *cursor) pointer(encoding uint8) uint64 {
	if encoding == peOmitted {
		return 0
	}
	at := c.base + uint64(c.pos)
	v := c.value(encoding)
	switch encoding & 0xf0 {
	case 0:
		return v
	case pePCRel:
		return at + v
	}
	return 0
}

// text returns the bytes up to a NUL, which is taken off too.
func (c *cursor) text() string {
	from := c.pos
	for c.more() {
		if c.u8() == 0 {
			return string(c.b[from : c.pos-1])
		}
	}
	c.bad = true
	return ""
}
