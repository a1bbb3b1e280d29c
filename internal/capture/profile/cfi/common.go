package cfi

import (
	"errors"
	"fmt"
)

// ErrMalformed means that the bytes are not what they should be, or of a kind that no compiler writes.
var ErrMalformed = errors.New("malformed unwind tables")

// Common is what functions share: a CIE.
type Common struct {
	CodeAlign uint64
	DataAlign int64
	Return    uint64 // the column of the return address
	Encoding  uint8  // of pointers in its FDEs
	Augmented bool
	Signal    bool   // the caller was interrupted, it did not call
	Program   []byte // aliases what was read
}

// Read reads a CIE, of which r holds what stands behind its length.
func (c *Common) Read(r *Cursor) error {
	id, version, augmentation := r.Number(4), r.U8(), r.Text()
	if id != 0 || version != 1 && version != 3 {
		return fmt.Errorf("%w: not a common entry (version %d)", ErrMalformed, version)
	}
	c.CodeAlign, c.DataAlign = r.ULEB(), r.SLEB()
	if version == 1 {
		c.Return = uint64(r.U8())
	} else {
		c.Return = r.ULEB()
	}
	if err := c.augment(r, augmentation); err != nil {
		return err
	}
	if c.Program = r.B[r.Pos:]; r.Bad {
		return fmt.Errorf("%w: a common entry", ErrMalformed)
	}
	return nil
}

// augment reads what an augmentation string announces: LSB 5.0, 10.6.1.1.1.
func (c *Common) augment(r *Cursor, augmentation string) error {
	if augmentation == "" {
		return nil
	}
	if augmentation[0] != 'z' {
		return fmt.Errorf("%w: augmentation %q", ErrMalformed, augmentation)
	}
	c.Augmented = true
	n := r.ULEB()
	data := Cursor{Addr: r.Addr + uint64(r.Pos), Data: r.Data}
	data.B = r.Take(n)
	for _, letter := range augmentation[1:] {
		switch letter {
		case 'R':
			c.Encoding = data.U8()
		case 'L':
			data.U8()
		case 'P':
			data.Value(data.U8())
		case 'S':
			c.Signal = true
		case 'B', 'G': // arm64: which key signs return addresses, tagged frames
		default:
			return fmt.Errorf("%w: augmentation %q", ErrMalformed, augmentation)
		}
	}
	if data.Bad {
		return fmt.Errorf("%w: the data of augmentation %q", ErrMalformed, augmentation)
	}
	return nil
}

// The operations of expressions that occur in unwind tables: DWARF 5, table 7.9. There are
// no jumps among them: none of the compilers writes them there.
const (
	ExDeref    = 0x06
	ExConst1U  = 0x08
	ExConst8S  = 0x0f
	ExConstU   = 0x10
	ExConstS   = 0x11
	ExDup      = 0x12
	ExDrop     = 0x13
	ExOver     = 0x14
	ExSwap     = 0x16
	ExRot      = 0x17
	ExAnd      = 0x1a
	ExMinus    = 0x1c
	ExMul      = 0x1e
	ExNeg      = 0x1f
	ExNot      = 0x20
	ExOr       = 0x21
	ExPlus     = 0x22
	ExPlusU    = 0x23
	ExShl      = 0x24
	ExShr      = 0x25
	ExShra     = 0x26
	ExXor      = 0x27
	ExEq       = 0x29
	ExNe       = 0x2e
	ExLit0     = 0x30
	ExBreg0    = 0x70
	ExBregLast = 0x8f
	ExBregX    = 0x92
	ExNop      = 0x96
)
