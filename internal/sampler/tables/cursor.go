package tables

// cursor takes values off the front of bytes; what is not there makes it bad, and reads as 0.
type cursor struct {
	b       []byte
	pos     int
	addr    uint64 // of b[0]
	section uint64 // address of .eh_frame
	bad     bool
}

func (c *cursor) more() bool { return c.pos < len(c.b) && !c.bad }

func (c *cursor) u8() uint8 {
	if c.pos >= len(c.b) {
		c.bad = true
		return 0
	}
	v := c.b[c.pos]
	c.pos++
	return v
}

func (c *cursor) skip(n uint64) {
	if n > uint64(len(c.b)-c.pos) {
		c.bad, c.pos = true, len(c.b)
		return
	}
	c.pos += int(n)
}

// number reads n bytes, 8 at most.
func (c *cursor) number(n int) uint64 {
	if n > len(c.b)-c.pos {
		c.bad, c.pos = true, len(c.b)
		return 0
	}
	var v uint64
	for i, x := range c.b[c.pos : c.pos+n] {
		v |= uint64(x) << (8 * i)
	}
	c.pos += n
	return v
}

// signed reads n bytes as a two's complement.
func (c *cursor) signed(n int) uint64 {
	shift := 64 - 8*n
	return uint64(int64(c.number(n)<<shift) >> shift)
}

func (c *cursor) uleb() uint64 {
	if c.pos < len(c.b) && c.b[c.pos] < 0x80 { // nearly always
		c.pos++
		return uint64(c.b[c.pos-1])
	}
	v, _ := c.leb()
	return v
}

func (c *cursor) sleb() int64 {
	v, bits := c.leb()
	if bits < 64 && v>>(bits-1)&1 != 0 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

// leb reads a LEB128 number (DWARF 5, 7.6) and says how many bits it has; those beyond 64 are dropped.
func (c *cursor) leb() (v uint64, bits uint) {
	for {
		x := c.u8()
		if bits < 64 {
			v |= uint64(x&0x7f) << bits
		}
		bits += 7
		if x&0x80 == 0 || c.bad {
			return v, bits
		}
	}
}

// value reads a number in the low half of a pointer encoding.
func (c *cursor) value(encoding uint8) uint64 {
	switch encoding & 0x0f {
	case peAbsolute, peUData8, peSData8:
		return c.number(8)
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

// pointer reads an encoded pointer. One that is relative to what only a running program
// knows, or indirect, is of no use here.
func (c *cursor) pointer(encoding uint8) uint64 {
	if encoding == peOmitted {
		return 0
	}
	at := c.addr + uint64(c.pos)
	v := c.value(encoding)
	switch encoding & 0xf0 {
	case 0:
		return v
	case pePCRel:
		return at + v
	case peDataRel:
		return c.section + v
	}
	c.bad = true
	return 0
}

// text returns the bytes up to a NUL, which is taken off too.
func (c *cursor) text() string {
	for from := c.pos; c.pos < len(c.b); {
		if c.u8() == 0 {
			return string(c.b[from : c.pos-1])
		}
	}
	c.bad = true
	return ""
}
