// Package cfi reads the call frame information that compilers leave in .eh_frame (DWARF 5,
// chapter 6.4; Linux Standard Base 5.0, "Exception Frames"): its numbers and pointers, what
// functions share, and the instructions of their programs. Its users interpret the instructions: package unwind makes
// rules for BPF programs of whole files, package callers looks for one caller.
//
// The bytes belong to a target and are hostile input to a root process: nothing here reads
// outside of them, or runs longer than they are.
package cfi

// Pointer encodings: LSB 5.0, tables 10-5 and 10-6.
const (
	peAbsolute = 0x00
	peuleb     = 0x01
	peuData2   = 0x02
	peuData4   = 0x03
	peuData8   = 0x04
	pesleb     = 0x09
	pesData2   = 0x0a
	PESData4   = 0x0b
	pesData8   = 0x0c
	pepcRel    = 0x10
	PEDataRel  = 0x30
	peOmitted  = 0xff
)

// Cursor takes values off the front of bytes; what is not there makes it bad, and reads as 0.
type Cursor struct {
	B    []byte
	Pos  int
	Addr uint64 // of B[0]
	Data uint64 // address that PEDataRel counts from
	Bad  bool
}

// More reports whether there is something left to read.
func (c *Cursor) More() bool { return c.Pos < len(c.B) && !c.Bad }

// U8 reads a byte.
func (c *Cursor) U8() uint8 {
	if c.Pos >= len(c.B) {
		c.Bad = true
		return 0
	}
	v := c.B[c.Pos]
	c.Pos++
	return v
}

// Take returns the next n bytes.
func (c *Cursor) Take(n uint64) []byte {
	if c.Bad || n > uint64(len(c.B)-c.Pos) {
		c.Bad, c.Pos = true, len(c.B)
		return nil
	}
	from := c.Pos
	c.Pos += int(n)
	return c.B[from:c.Pos]
}

// Number reads n bytes, 8 at most.
func (c *Cursor) Number(n int) uint64 {
	if n > len(c.B)-c.Pos {
		c.Bad, c.Pos = true, len(c.B)
		return 0
	}
	var v uint64
	for i, x := range c.B[c.Pos : c.Pos+n] {
		v |= uint64(x) << (8 * i)
	}
	c.Pos += n
	return v
}

// Signed reads n bytes as a two's complement.
func (c *Cursor) Signed(n int) uint64 {
	shift := 64 - 8*n
	return uint64(int64(c.Number(n)<<shift) >> shift)
}

// ULEB reads an unsigned LEB128 number.
func (c *Cursor) ULEB() uint64 {
	if c.Pos < len(c.B) && c.B[c.Pos] < 0x80 { // nearly always
		c.Pos++
		return uint64(c.B[c.Pos-1])
	}
	v, _ := c.leb()
	return v
}

// SLEB reads a signed LEB128 number.
func (c *Cursor) SLEB() int64 {
	v, bits := c.leb()
	if bits < 64 && v>>(bits-1)&1 != 0 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

// leb reads a LEB128 number (DWARF 5, 7.6) and says how many bits it has; those beyond 64 are dropped.
func (c *Cursor) leb() (v uint64, bits uint) {
	for {
		x := c.U8()
		if bits < 64 {
			v |= uint64(x&0x7f) << bits
		}
		bits += 7
		if x&0x80 == 0 || c.Bad {
			return v, bits
		}
	}
}

// Value reads a number in the low half of a pointer encoding.
func (c *Cursor) Value(encoding uint8) uint64 {
	switch encoding & 0x0f {
	case peAbsolute, peuData8, pesData8:
		return c.Number(8)
	case peuData2:
		return c.Number(2)
	case peuData4:
		return c.Number(4)
	case pesData2:
		return c.Signed(2)
	case PESData4:
		return c.Signed(4)
	case peuleb:
		return c.ULEB()
	case pesleb:
		return uint64(c.SLEB())
	}
	c.Bad = true
	return 0
}

// Pointer reads an encoded pointer. One that is relative to what only a running program
// knows, or indirect, is of no use: it makes the cursor bad.
func (c *Cursor) Pointer(encoding uint8) uint64 {
	if encoding == peOmitted {
		return 0
	}
	at := c.Addr + uint64(c.Pos)
	v := c.Value(encoding)
	switch encoding & 0xf0 {
	case 0:
		return v
	case pepcRel:
		return at + v
	case PEDataRel:
		return c.Data + v
	}
	c.Bad = true
	return 0
}

// Text returns the bytes up to a NUL, which is taken off too.
func (c *Cursor) Text() string {
	for from := c.Pos; c.Pos < len(c.B); {
		if c.U8() == 0 {
			return string(c.B[from : c.Pos-1])
		}
	}
	c.Bad = true
	return ""
}
