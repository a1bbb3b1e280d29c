package callers

import (
	"fmt"

	frames "github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

// function is what is known of one function: an FDE.
type function struct {
	frames.Common
	start, end uint64
	program    []byte
}

// function reads the FDE at an address.
func (f *File) function(addr uint64) (*function, error) {
	c, err := f.entry(addr)
	if err != nil {
		return nil, err
	}
	// The pointer to the CIE counts back from where it stands.
	at := c.Addr + uint64(c.Pos)
	back := c.Number(4)
	if back == 0 || c.Bad {
		return nil, fmt.Errorf("%w: not the entry of a function", errMalformed)
	}
	fn := &function{}
	if err := f.common(at-back, &fn.Common); err != nil {
		return nil, err
	}
	fn.start = c.Pointer(fn.Encoding)
	fn.end = fn.start + c.Value(fn.Encoding)
	if fn.Augmented {
		c.Take(c.ULEB())
	}
	if fn.program = c.B[c.Pos:]; c.Bad {
		return nil, fmt.Errorf("%w: the entry of a function", errMalformed)
	}
	return fn, nil
}

// entry reads a CIE or FDE; the cursor stands behind its length.
func (f *File) entry(addr uint64) (*frames.Cursor, error) {
	head, err := f.at(addr, 4)
	if err != nil {
		return nil, err
	}
	c := frames.Cursor{B: head}
	// 0xffffffff announces a length of 64 bits, which no linker writes here.
	n := c.Number(4)
	if c.Bad || n == 0 || n > maxEntry {
		return nil, fmt.Errorf("%w: an entry of %d bytes", errMalformed, n)
	}
	b, err := f.at(addr+4, int(n))
	if err != nil {
		return nil, err
	}
	if uint64(len(b)) < n {
		return nil, fmt.Errorf("%w: an entry ends outside of its segment", errMalformed)
	}
	return &frames.Cursor{B: b, Addr: addr + 4}, nil
}

// common reads the CIE at an address.
func (f *File) common(addr uint64, out *frames.Common) error {
	c, err := f.entry(addr)
	if err != nil {
		return err
	}
	if err := out.Read(c); err != nil {
		return err
	}
	if out.Return >= columns {
		return fmt.Errorf("%w: a common entry", errMalformed)
	}
	return nil
}
