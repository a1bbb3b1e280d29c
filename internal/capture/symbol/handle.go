package symbol

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/format/symname"
)

// maxName bounds a name in a file: the longest function of PyTorch 2.15 and the Triton
// that it brings has 10,157 bytes.
const maxName = 16 << 10

var errNoOpen = errors.New("the module says no way to open it")

// handle is a module in use: its files are opened when something is read, once.
type handle struct {
	module Module
	opened File
	debug  File
}

// file returns the module's open file; it is the one that the module's Key is of.
func (h *handle) file() (File, error) {
	if h.opened != nil {
		return h.opened, nil
	}
	if h.module.Open == nil {
		return nil, fmt.Errorf("opening %s for its symbols: %w", h.module.base(), errNoOpen)
	}
	f, err := h.module.Open()
	if err != nil {
		return nil, fmt.Errorf("opening %s for its symbols: %w", h.module.base(), err)
	}
	h.opened = f
	return f, h.check(f, h.module.Key)
}

// check fails where another file was opened than was meant.
func (h *handle) check(f File, want Key) error {
	if want == (Key{}) {
		return nil
	}
	if now, err := Identify(f); err != nil || now != want {
		return fmt.Errorf("opening %s for its symbols: %w", h.module.base(), errors.Join(errChanged, err))
	}
	return nil
}

func (h *handle) key() (Key, error) {
	if h.module.Key != (Key{}) {
		return h.module.Key, nil
	}
	f, err := h.file()
	if err != nil {
		return Key{}, err
	}
	return Identify(f)
}

func (h *handle) close() {
	for _, f := range []File{h.opened, h.debug} {
		if f != nil {
			f.Close()
		}
	}
}

// name reads the best name of the i-th function of a table.
func (h *handle) name(f *functions, i int) (string, error) {
	in, err := h.text(f.text)
	if err != nil {
		return "", err
	}
	best := ""
	for _, off := range f.aliases(i) {
		name, err := readName(in, f.text, uint64(off))
		if err != nil {
			return "", fmt.Errorf("reading a symbol of %s: %w", h.module.base(), err)
		}
		if symname.Better(name, best) {
			best = name
		}
	}
	return best, nil
}

// text opens what the names of a table are in.
func (h *handle) text(t text) (io.ReaderAt, error) {
	switch {
	case t.data != nil:
		return bytes.NewReader(t.data), nil
	case t.debug == "":
		return h.file()
	case h.module.Beside == nil:
		return nil, fmt.Errorf("opening debug file %s: %w", t.debug, errNoOpen)
	}
	if h.debug == nil {
		f, err := h.module.Beside(t.debug)
		if err != nil {
			return nil, fmt.Errorf("opening debug file %s: %w", t.debug, err)
		}
		h.debug = f
	}
	return h.debug, h.check(h.debug, t.debugKey)
}

// readName reads the string at off of a string table.
func readName(in io.ReaderAt, t text, off uint64) (string, error) {
	if off >= t.size {
		return "", fmt.Errorf("%w: a name at %d of %d bytes", elffile.ErrMalformed, off, t.size)
	}
	limit := min(t.size-off, maxName)
	for n := min(limit, 256); ; n = limit {
		b := make([]byte, n)
		if m, err := in.ReadAt(b, int64(t.off+off)); uint64(m) < n {
			return "", orEOF(err)
		}
		if name, _, ok := bytes.Cut(b, []byte{0}); ok {
			return string(name), nil
		}
		if n == limit {
			return string(b), nil // cut off
		}
	}
}
