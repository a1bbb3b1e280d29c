package symbol

import (
	"bytes"
	"container/list"
	"debug/elf"
	"errors"
	"fmt"
	"io"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// indexBytes is what an index costs beside its tables, roughly.
const indexBytes = 1024

// index is what is kept of one file, or of the code in one process's memory. The
// Table's lock guards all but tables, which never change.
type index struct {
	tables []*functions
	shared identity // what it is shared by, where not zero

	element *list.Element
	keys    []any // under which the Table has it
	fixed   int64 // bytes
	names   map[nameKey]string
	named   int64 // bytes
}

// nameKey is one function of an index.
type nameKey struct {
	table int
	at    uint64 // index of the function, or offset of its name
}

// identity is what two copies of one file have in common.
type identity struct {
	buildID string
	size    uint64
	headers uint64
	owner   uint32
}

// find returns the function that addr lies in: over all tables the one that begins
// last, because a table that lacks the function may have a neighbour that reaches there.
func (x *index) find(addr uint64) (key nameKey, start uint64, ok bool) {
	for t, f := range x.tables {
		i, found := f.at(addr)
		if !found {
			continue
		}
		if begin := f.base + uint64(f.all[i].addr); !ok || begin > start {
			key, start, ok = nameKey{t, uint64(i)}, begin, true
		}
	}
	return key, start, ok
}

// builder reads the symbols of one module.
type builder struct {
	module Module
	im     *image
	id     string // build id
	budget int64
	tables []*functions
	err    error // the first
}

// build returns the tables of an open file. What is wrong with one source of symbols
// costs that source only: an error is returned where nothing was found.
func (b *builder) build() ([]*functions, error) {
	if len(b.im.sections) == 0 {
		b.add(b.dynamic())
		return b.result()
	}
	full, hasFull := b.im.ofKind(elf.SHT_SYMTAB)
	exports, hasExports := b.im.ofKind(elf.SHT_DYNSYM)
	if hasFull {
		b.add(readFunctions(b.im, full, b.budget))
	}
	if len(b.tables) == 0 {
		b.add(b.separate())
	}
	if len(b.tables) == 0 {
		b.add(b.miniature())
	}
	// A full table has the exports too, unless somebody thinned it out.
	if hasExports && (len(b.tables) == 0 || !hasFull || full.size < exports.size) {
		b.add(readFunctions(b.im, exports, b.budget))
	}
	if hasFull {
		return b.result()
	}
	if f := b.builtins(); f != nil && f.bytes() <= b.budget {
		b.add(f, nil)
	}
	return b.result()
}

func (b *builder) add(f *functions, err error) {
	if err != nil && b.err == nil {
		b.err = err
	}
	if err == nil && f != nil && len(f.all) > 0 {
		b.tables = append(b.tables, f)
		b.budget -= f.bytes()
	}
}

func (b *builder) result() ([]*functions, error) {
	if len(b.tables) > 0 {
		return b.tables, nil
	}
	return nil, b.err
}

// dynamic makes the index of a file that has no section headers from what the dynamic
// loader reads of it.
func (b *builder) dynamic() (*functions, error) {
	f, err := elffile.Open(b.im.in, int64(b.im.size))
	if err != nil {
		return nil, err
	}
	exported, err := f.Functions()
	if err != nil || len(exported) == 0 {
		return nil, err
	}
	out := &functions{base: exported[0].Addr}
	var names bytes.Buffer
	for _, fn := range exported {
		if fn.Size == 0 || fn.Addr-out.base > 1<<31 {
			continue
		}
		out.all = append(out.all,
			function{uint32(fn.Addr - out.base), uint32(min(fn.Size, 1<<31)), uint32(names.Len())})
		names.WriteString(fn.Name)
		names.WriteByte(0)
	}
	out.text = text{size: uint64(names.Len()), data: names.Bytes()}
	return out, nil
}

// miniature makes the index of the symbols in .gnu_debugdata.
func (b *builder) miniature() (*functions, error) {
	s, ok := b.im.named(".gnu_debugdata")
	if !ok {
		return nil, nil
	}
	packed, err := b.im.content(s, maxPacked)
	if err != nil {
		return nil, err
	}
	plain, err := unpack(packed)
	if err != nil {
		return nil, err
	}
	im, err := openImage(bytes.NewReader(plain), int64(len(plain)))
	if err != nil {
		return nil, fmt.Errorf("in .gnu_debugdata: %w", err)
	}
	table, ok := im.ofKind(elf.SHT_SYMTAB)
	if !ok {
		return nil, nil
	}
	f, err := readFunctions(im, table, b.budget)
	if err != nil {
		return nil, fmt.Errorf("in .gnu_debugdata: %w", err)
	}
	// A copy of the names, so that the rest of what was unpacked is let go.
	f.text.data = bytes.Clone(plain[f.text.off : f.text.off+f.text.size])
	f.text.off = 0
	if f.bytes() > b.budget {
		return nil, fmt.Errorf("%w: in .gnu_debugdata", errOverFull)
	}
	return f, nil
}

// isIO reports whether an error is of reading, and may be gone at the next try, rather
// than of what was read.
func isIO(err error) bool {
	for _, final := range []error{
		elffile.ErrNotELF, elffile.ErrTruncated, elffile.ErrUnsupported, elffile.ErrMalformed, elffile.ErrTooLarge,
		errOverFull, errPacked, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return err != nil
}
