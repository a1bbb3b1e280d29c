package symbol

import (
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// segment is one PT_LOAD of an ELF file.
type segment struct {
	Offset, Addr, Size uint64 // in the file, virtual, and how many bytes of it are in the file
	Executable         bool
}

// Segments translate between a file's offsets and its virtual addresses.
type Segments []segment

// ReadSegments reads the program headers of an ELF file: two small reads, whatever
// the file's size. It fails where that is no 64-bit little-endian program or library;
// the errors wrap those of elffile.
func ReadSegments(f File) (Segments, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("looking at a file with code: %w", err)
	}
	im := &image{in: f, size: uint64(max(info.Size(), 0))}
	h, err := im.header()
	if err != nil {
		return nil, err
	}
	return im.readSegments(h)
}

// Address returns the virtual address of the byte at an offset in the file, which is
// what Resolve takes: for a mapping, offset = address - mapping's start + mapping's
// offset. Code is looked for first, because two segments can share a page of the file.
func (s Segments) Address(offset uint64) (uint64, bool) {
	for _, executable := range []bool{true, false} {
		for _, g := range s {
			if g.Executable == executable && offset >= g.Offset && offset-g.Offset < g.Size {
				return g.Addr + (offset - g.Offset), true
			}
		}
	}
	return 0, false
}

func (im *image) readSegments(h []byte) (Segments, error) {
	offset := binary.LittleEndian.Uint64(h[32:])
	each, count := binary.LittleEndian.Uint16(h[54:]), binary.LittleEndian.Uint16(h[56:])
	if count == 0 {
		return nil, nil
	}
	if each != segmentSize || count > maxSegments {
		return nil, fmt.Errorf("%w: %d program headers of %d bytes", elffile.ErrMalformed, count, each)
	}
	b, err := im.bytes(offset, uint64(count)*segmentSize, "program headers")
	if err != nil {
		return nil, err
	}
	var out Segments
	for ; len(b) >= segmentSize; b = b[segmentSize:] {
		if elf.ProgType(binary.LittleEndian.Uint32(b)) != elf.PT_LOAD {
			continue
		}
		out = append(out, segment{
			Offset:     binary.LittleEndian.Uint64(b[8:]),
			Addr:       binary.LittleEndian.Uint64(b[16:]),
			Size:       binary.LittleEndian.Uint64(b[32:]),
			Executable: elf.ProgFlag(binary.LittleEndian.Uint32(b[4:]))&elf.PF_X != 0,
		})
	}
	return out, nil
}
