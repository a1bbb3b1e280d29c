package cfi

import "fmt"

// common is what functions share: a CIE.
type common struct {
	codeAlign uint64
	dataAlign int64
	ra        uint64 // the column of the return address
	encoding  uint8  // of pointers in its FDEs
	augmented bool
	signal    bool // the caller was interrupted, it did not call
	program   []byte
}

// function is what is known of one function: an FDE.
type function struct {
	common
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
	at := c.base + uint64(c.pos)
	back := c.number(4)
	if back == 0 || c.bad {
		return nil, fmt.Errorf("%w: not the entry of a function", ErrMalformed)
	}
	fn := &function{}
	if err := f.common(at-back, &fn.common); err != nil {
		return nil, err
	}
	fn.start = c.pointer(fn.encoding)
	fn.end = fn.start + c.value(fn.encoding)
	if fn.augmented {
		c.take(c.uleb())
	}
	if fn.program = c.b[c.pos:]; c.bad {
		return nil, fmt.Errorf("%w: the entry of a function", ErrMalformed)
	}
	return fn, nil
}

// entry reads a CIE or FDE; the cursor stands behind its length.
func (f *File) entry(addr uint64) (*cursor, error) {
	head, err := f.at(addr, 4)
	if err != nil {
		return nil, err
	}
	c := cursor{b: head}
	// 0xffffffff announces a length of 64 bits, which no linker writes here.
	n := c.number(4)
	if c.bad || n == 0 || n > maxEntry {
		return nil, fmt.Errorf("%w: an entry of %d bytes", ErrMalformed, n)
	}
	b, err := f.at(addr+4, int(n))
	if err != nil {
		return nil, err
	}
	if uint64(len(b)) < n {
		return nil, fmt.Errorf("%w: an entry ends outside of its segment", ErrMalformed)
	}
	return &cursor{b: b, base: addr + 4}, nil
}

// common reads the CIE at an address.
func (f *File) common(addr uint64, out *common) error {
	c, err := f.entry(addr)
	if err != nil {
		return err
	}
	id, version, augmentation := c.number(4), c.u8(), c.text()
	if id != 0 || version != 1 && version != 3 {
		return fmt.Errorf("%w: not a common entry (version %d)", ErrMalformed, version)
	}
	out.codeAlign, out.dataAlign = c.uleb(), c.sleb()
	if version == 1 {
		out.ra = uint64(c.u8())
	} else {
		out.ra = c.uleb()
	}
	if err := out.augment(c, augmentation); err != nil {
		return err
	}
	if out.program = c.b[min(c.pos, len(c.b)):]; c.bad || out.ra >= columns {
		return fmt.Errorf("%w: a common entry", ErrMalformed)
	}
	return nil
}

// augment reads what an augmentation string announces: LSB 5.0, 10.6.1.1.1.
func (m *common) augment(c *cursor, augmentation string) error {
	if augmentation == "" {
		return nil
	}
	if augmentation[0] != 'z' {
		return fmt.Errorf("%w: augmentation %q", ErrMalformed, augmentation)
	}
	m.augmented = true
	n := c.uleb()
	data := cursor{base: c.base + uint64(c.pos)}
	data.b = c.take(n)
	for _, letter := range augmentation[1:] {
		switch letter {
		case 'R':
			m.encoding = data.u8()
		case 'L':
			data.u8()
		case 'P':
			data.value(data.u8())
		case 'S':
			m.signal = true
		case 'B', 'G': // arm64: which key signs return addresses, tagged frames
		default:
			return fmt.Errorf("%w: augmentation %q", ErrMalformed, augmentation)
		}
	}
	if data.bad {
		return fmt.Errorf("%w: the data of augmentation %q", ErrMalformed, augmentation)
	}
	return nil
}
