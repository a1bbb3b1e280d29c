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
