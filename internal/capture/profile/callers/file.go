// Package callers finds the caller of a function by the call frame information that compilers leave in .eh_frame
// (internal/capture/profile/cfi). It reads what one address needs and keeps nothing: the linker's sorted table finds a
// function's entry with some 20 small reads, so that a file of gigabytes costs as little as a small one.
//
// The file belongs to a target and is hostile input to a root process: every length
// is bounded, programs and expressions run a bounded number of steps, and memory is
// read through the caller's memory only.
package callers

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	frames "github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

// What Open and Caller can say; other errors are of reading.
var (
	ErrNoTable     = errors.New("the file has no table of unwind entries")
	ErrNoEntry     = errors.New("code without unwind tables")
	errMalformed   = frames.ErrMalformed
	errUnsupported = errors.New("not a 64-bit little-endian x86-64 or arm64 file")
)

// Limits. libtorch_cuda's largest entry has 3 kB; a file has about ten program headers.
const (
	maxSegments = 256
	maxEntry    = 64 << 10 // bytes of one CIE or FDE
)

const (
	headerSize  = 64
	segmentSize = 56
)

// File is the call frame information of one ELF file.
type File struct {
	r     io.ReaderAt
	arch  arch
	loads []segment
	table uint64 // address of the sorted table
	base  uint64 // what its values are relative to: the address of .eh_frame_hdr
	count uint64
}

// segment is one PT_LOAD.
type segment struct{ offset, addr, size uint64 }

// Open reads the headers of an ELF file. Without a table (ErrNoTable) the File still
// translates addresses.
func Open(r io.ReaderAt) (*File, error) {
	f := &File{r: r}
	h, err := f.bytes(0, headerSize)
	if err != nil {
		return nil, err
	}
	if string(h[:4]) != elf.ELFMAG || elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errUnsupported
	}
	var ok bool
	if f.arch, ok = archOf(elf.Machine(binary.LittleEndian.Uint16(h[18:]))); !ok {
		return nil, errUnsupported
	}
	offset, count := binary.LittleEndian.Uint64(h[32:]), binary.LittleEndian.Uint16(h[56:])
	if binary.LittleEndian.Uint16(h[54:]) != segmentSize || count > maxSegments {
		return nil, fmt.Errorf("%w: program headers", errMalformed)
	}
	return f, f.segments(offset, int(count))
}

func (f *File) segments(offset uint64, count int) error {
	b, err := f.bytes(offset, count*segmentSize)
	if err != nil {
		return err
	}
	header := uint64(0)
	for ; len(b) >= segmentSize; b = b[segmentSize:] {
		s := segment{
			offset: binary.LittleEndian.Uint64(b[8:]),
			addr:   binary.LittleEndian.Uint64(b[16:]),
			size:   binary.LittleEndian.Uint64(b[32:]),
		}
		switch elf.ProgType(binary.LittleEndian.Uint32(b)) {
		case elf.PT_LOAD:
			f.loads = append(f.loads, s)
		case elf.PT_GNU_EH_FRAME:
			header = s.addr
		}
	}
	if header == 0 {
		return ErrNoTable
	}
	return f.header(header)
}

// header reads .eh_frame_hdr: LSB 5.0, 10.6.2.
func (f *File) header(addr uint64) error {
	b, err := f.at(addr, 32)
	if err != nil {
		return err
	}
	c := frames.Cursor{B: b, Addr: addr, Data: addr}
	version, frameEncoding, countEncoding, tableEncoding := c.U8(), c.U8(), c.U8(), c.U8()
	if version != 1 || tableEncoding != frames.PEDataRel|frames.PESData4 {
		return ErrNoTable // a linker that writes another table is not known
	}
	c.Pointer(frameEncoding)
	f.count = c.Pointer(countEncoding)
	if c.Bad {
		return fmt.Errorf("%w: .eh_frame_hdr", errMalformed)
	}
	f.base, f.table = addr, addr+uint64(c.Pos)
	return nil
}

// Address translates an offset in the file to the address that its program headers give it.
func (f *File) Address(offset uint64) (addr uint64, ok bool) {
	for _, s := range f.loads {
		if offset >= s.offset && offset-s.offset < s.size {
			return s.addr + (offset - s.offset), true
		}
	}
	return 0, false
}

// find returns the address of the entry for code at addr: of the last one that begins at or before it.
func (f *File) find(addr uint64) (uint64, error) {
	low, high := uint64(0), f.count
	var best uint64
	for low < high {
		middle := low + (high-low)/2
		b, err := f.at(f.table+8*middle, 8)
		if err != nil {
			return 0, err
		}
		start := f.base + uint64(int64(int32(binary.LittleEndian.Uint32(b))))
		if start > addr {
			high = middle
			continue
		}
		best = f.base + uint64(int64(int32(binary.LittleEndian.Uint32(b[4:]))))
		low = middle + 1
	}
	if best == 0 {
		return 0, ErrNoEntry
	}
	return best, nil
}

// at reads up to n bytes at an address: less where its segment ends.
func (f *File) at(addr uint64, n int) ([]byte, error) {
	for _, s := range f.loads {
		if addr < s.addr || addr-s.addr >= s.size {
			continue
		}
		rel := addr - s.addr
		return f.bytes(s.offset+rel, int(min(uint64(n), s.size-rel)))
	}
	return nil, fmt.Errorf("%w: address %#x is in no segment", errMalformed, addr)
}

// bytes reads n bytes at an offset; the caller has bounded n.
func (f *File) bytes(offset uint64, n int) ([]byte, error) {
	if offset > 1<<62 {
		return nil, fmt.Errorf("%w: offset %#x", errMalformed, offset)
	}
	b := make([]byte, n)
	if m, err := f.r.ReadAt(b, int64(offset)); m < n {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: the file ends too early", errMalformed)
		}
		return nil, fmt.Errorf("read unwind tables: %w", err)
	}
	return b, nil
}
