// Package elffile reads the few things that probing a shared library needs from its
// ELF file: what it exports and where, its name and build id. The file belongs to a
// target and is hostile input to a root process: every count, offset and length is
// bounded, and nothing is read that was not checked to lie in the file.
//
// It reads what the dynamic loader reads (program headers and PT_DYNAMIC), never
// section headers, so that a stripped library is read like any other.
package elffile

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// What can be wrong with a file; errors of this package wrap one of them.
var (
	ErrNotELF      = errors.New("not an ELF file")
	ErrTruncated   = errors.New("truncated")
	ErrUnsupported = errors.New("not a 64-bit little-endian x86-64 or arm64 shared object")
	ErrMalformed   = errors.New("malformed ELF file")
	ErrTooLarge    = errors.New("ELF file beyond this program's limits")
)

// Limits. libcuda 580 has 12 program headers, 40 dynamic entries, 1,400 symbols and
// 40,000 bytes of names.
const (
	maxSegments = 256
	maxDynamic  = 1 << 12 // entries
	maxSymbols  = 1 << 17
	maxStrings  = 16 << 20 // bytes
	maxNotes    = 64 << 10 // bytes
	maxName     = 255      // bytes
	maxBuildID  = 64       // bytes
)

const (
	headerSize  = 64
	segmentSize = 56
	dynamicSize = 16
	symbolSize  = 24
)

// File is a shared object that has been read as far as its dynamic section.
type File struct {
	Machine elf.Machine // EM_X86_64 or EM_AARCH64
	SONAME  string      // "" where it has none
	BuildID string      // lower-case hex, "" where it has none

	in       input
	segments []segment
	dynamic  map[elf.DynTag]uint64
	strings  []byte
}

// segment is one PT_LOAD, PT_DYNAMIC or PT_NOTE.
type segment struct {
	kind   elf.ProgType
	flags  elf.ProgFlag
	offset uint64
	addr   uint64
	size   uint64 // in the file
}

// Open reads the headers of the ELF file of size bytes behind r. It fails with
// ErrNotELF, ErrTruncated, ErrUnsupported, ErrMalformed or ErrTooLarge.
func Open(r io.ReaderAt, size int64) (*File, error) {
	if size < 0 {
		return nil, fmt.Errorf("%w: size %d", ErrMalformed, size)
	}
	f := &File{in: input{r: r, size: uint64(size)}}
	for _, step := range []func() error{f.readHeader, f.readDynamic, f.readStrings, f.readBuildID} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	f.SONAME, _ = f.name(f.dynamic[elf.DT_SONAME])
	return f, nil
}

func (f *File) readHeader() error {
	if f.in.size < elf.EI_NIDENT {
		return fmt.Errorf("%w: %d bytes", ErrNotELF, f.in.size)
	}
	ident, err := f.in.bytes(0, elf.EI_NIDENT, "identification")
	if err != nil {
		return err
	}
	if string(ident[:4]) != elf.ELFMAG {
		return fmt.Errorf("%w: it begins with % x", ErrNotELF, ident[:4])
	}
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return fmt.Errorf("%w: class %d, data %d", ErrUnsupported, ident[elf.EI_CLASS], ident[elf.EI_DATA])
	}
	h, err := f.in.bytes(0, headerSize, "file header")
	if err != nil {
		return err
	}
	f.Machine = elf.Machine(binary.LittleEndian.Uint16(h[18:]))
	if f.Machine != elf.EM_X86_64 && f.Machine != elf.EM_AARCH64 {
		return fmt.Errorf("%w: machine %s", ErrUnsupported, f.Machine)
	}
	if t := elf.Type(binary.LittleEndian.Uint16(h[16:])); t != elf.ET_DYN && t != elf.ET_EXEC {
		return fmt.Errorf("%w: type %s", ErrUnsupported, t)
	}
	return f.readSegments(binary.LittleEndian.Uint64(h[32:]), binary.LittleEndian.Uint16(h[54:]),
		binary.LittleEndian.Uint16(h[56:]))
}

func (f *File) readSegments(offset uint64, each, count uint16) error {
	if each != segmentSize {
		return fmt.Errorf("%w: program headers of %d bytes", ErrMalformed, each)
	}
	if count > maxSegments {
		return fmt.Errorf("%w: %d program headers, at most %d", ErrTooLarge, count, maxSegments)
	}
	b, err := f.in.bytes(offset, uint64(count)*segmentSize, "program headers")
	if err != nil {
		return err
	}
	for ; len(b) >= segmentSize; b = b[segmentSize:] {
		s := segment{
			kind:   elf.ProgType(binary.LittleEndian.Uint32(b)),
			flags:  elf.ProgFlag(binary.LittleEndian.Uint32(b[4:])),
			offset: binary.LittleEndian.Uint64(b[8:]),
			addr:   binary.LittleEndian.Uint64(b[16:]),
			size:   binary.LittleEndian.Uint64(b[32:]),
		}
		// A library that is still being copied has its headers first.
		if s.kind == elf.PT_LOAD && !f.in.holds(s.offset, s.size) {
			return fmt.Errorf("%w: a segment of %d bytes begins at offset %d, the file has %d",
				ErrTruncated, s.size, s.offset, f.in.size)
		}
		f.segments = append(f.segments, s)
	}
	return nil
}

func (f *File) segment(kind elf.ProgType) (segment, bool) {
	for _, s := range f.segments {
		if s.kind == kind {
			return s, true
		}
	}
	return segment{}, false
}

func (f *File) readDynamic() error {
	s, ok := f.segment(elf.PT_DYNAMIC)
	if !ok {
		return fmt.Errorf("%w: no PT_DYNAMIC segment, so it exports nothing", ErrUnsupported)
	}
	if s.size/dynamicSize > maxDynamic {
		return fmt.Errorf("%w: %d bytes of dynamic section", ErrTooLarge, s.size)
	}
	b, err := f.in.bytes(s.offset, s.size, "dynamic section")
	if err != nil {
		return err
	}
	f.dynamic = make(map[elf.DynTag]uint64)
	for ; len(b) >= dynamicSize; b = b[dynamicSize:] {
		tag := elf.DynTag(binary.LittleEndian.Uint64(b))
		if tag == elf.DT_NULL {
			break
		}
		f.dynamic[tag] = binary.LittleEndian.Uint64(b[8:])
	}
	return nil
}

func (f *File) readStrings() error {
	size := f.dynamic[elf.DT_STRSZ]
	if size > maxStrings {
		return fmt.Errorf("%w: %d bytes of names, at most %d", ErrTooLarge, size, maxStrings)
	}
	var err error
	f.strings, err = f.at(f.dynamic[elf.DT_STRTAB], size, "dynamic string table")
	return err
}

// name returns the printable ASCII string at offset off of the string table.
func (f *File) name(off uint64) (string, bool) {
	if off == 0 || off >= uint64(len(f.strings)) {
		return "", false
	}
	s := f.strings[off:]
	for i, c := range s {
		switch {
		case c == 0:
			return string(s[:i]), i > 0
		case c <= ' ' || c > '~' || i == maxName:
			return "", false
		}
	}
	return "", false
}

// at reads n bytes at virtual address addr.
func (f *File) at(addr, n uint64, what string) ([]byte, error) {
	off, ok := f.offset(addr, n, 0)
	if !ok {
		return nil, fmt.Errorf("%w: %s at address %#x lies in no segment", ErrMalformed, what, addr)
	}
	return f.in.bytes(off, n, what)
}

// offset returns the file offset of addr, where n bytes at it lie in the file part
// of one PT_LOAD that has all of flags.
func (f *File) offset(addr, n uint64, flags elf.ProgFlag) (uint64, bool) {
	for _, s := range f.segments {
		if s.kind != elf.PT_LOAD || s.flags&flags != flags || addr < s.addr {
			continue
		}
		// No sum that could overflow: offset + size lies in the file.
		rel := addr - s.addr
		if rel <= s.size && n <= s.size-rel {
			return s.offset + rel, true
		}
	}
	return 0, false
}

const noteGNUBuildID = 3

func (f *File) readBuildID() error {
	for _, s := range f.segments {
		if s.kind != elf.PT_NOTE || s.size > maxNotes {
			continue
		}
		b, err := f.in.bytes(s.offset, s.size, "notes")
		if err != nil {
			return err
		}
		if f.BuildID = buildID(b); f.BuildID != "" {
			return nil
		}
	}
	return nil
}

// buildID finds the GNU build id among notes; "" where there is none that makes sense.
func buildID(b []byte) string {
	const head = 12
	for len(b) >= head {
		name := uint64(binary.LittleEndian.Uint32(b))
		desc := uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		descAt := head + (name+3)&^3
		if descAt+desc > uint64(len(b)) {
			return ""
		}
		if kind == noteGNUBuildID && string(b[head:head+name]) == "GNU\x00" && desc <= maxBuildID {
			return hex.EncodeToString(b[descAt : descAt+desc])
		}
		b = b[min(descAt+(desc+3)&^3, uint64(len(b))):]
	}
	return ""
}

// input is the file, read within its bounds only.
type input struct {
	r    io.ReaderAt
	size uint64
}

// holds reports whether n bytes at off lie in the file.
func (in input) holds(off, n uint64) bool { return off <= in.size && n <= in.size-off }

// bytes reads n bytes at off; the caller has bounded n.
func (in input) bytes(off, n uint64, what string) ([]byte, error) {
	if !in.holds(off, n) {
		return nil, fmt.Errorf("%w: %s needs %d bytes at offset %d, the file has %d",
			ErrTruncated, what, n, off, in.size)
	}
	b := make([]byte, n)
	if m, err := in.r.ReadAt(b, int64(off)); uint64(m) < n {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: %s ends at byte %d of %d", ErrTruncated, what, m, n)
		}
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return b, nil
}
