package profile

import (
	"encoding/binary"
	"errors"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
)

// Of CPython 3.11 and later the pinned library finds wrong lines as well: it forgets
// the line after an entry without one, which every `with` and `try` makes.

// locations finds the lines of code of CPython 3.11 and later in one process.
type locations struct {
	memory remotememory.RemoteMemory
	table  uint64 // offset of co_linetable in a code object; 0: not known
}

var errLineTable = errors.New("a table of lines of a size that makes no sense")

// Members of PyTypeObject and PyMemberDef (Include/cpython/object.h, structmember.h), the same since CPython 3.4.
const (
	typeMembers   = 240
	memberSize    = 40
	memberAt      = 16
	maxMembers    = 64
	maxCodeObject = 4096 // bytes
)

// lineTableOffset returns where code objects have co_linetable, as CPython says by the type of code; 0 before 3.10. The
// library has read it, too, but keeps it to itself.
func lineTableOffset(ef *pfelf.File) uint64 {
	code, err := ef.LookupSymbolAddress("PyCode_Type")
	if err != nil {
		return 0
	}
	memory := ef.GetRemoteMemory()
	member := memory.Ptr(libpf.Address(code) + typeMembers)
	for range maxMembers {
		name := memory.StringPtr(member)
		if name == "" {
			break
		}
		if offset := memory.Uint64(member + memberAt); name == "co_linetable" && offset < maxCodeObject {
			return offset
		}
		member += memberSize
	}
	return 0
}

// line returns the line of an instruction of a code object that begins at line first;
// 0 where it has none.
func (l *locations) line(code uint64, instruction, first uint32) (uint32, error) {
	if l.table == 0 {
		return 0, nil
	}
	var word [8]byte
	if err := l.memory.Read(libpf.Address(code+l.table), word[:]); err != nil {
		return 0, err
	}
	at := libpf.Address(binary.LittleEndian.Uint64(word[:]))
	if err := l.memory.Read(at+bytesSize, word[:]); err != nil {
		return 0, err
	}
	size := binary.LittleEndian.Uint64(word[:])
	if size == 0 || size > maxLineTable {
		return 0, errLineTable
	}
	table := make([]byte, size)
	if err := l.memory.Read(at+bytesData, table); err != nil {
		return 0, err
	}
	delta, ok := lineOf(table, instruction)
	if !ok {
		return 0, nil
	}
	return uint32(int64(first) + int64(delta)), nil
}

// lineOf reads co_linetable of 3.11 and later (Objects/locations.md of CPython): the
// line of an instruction, counted from the function's first.
func lineOf(table []byte, instruction uint32) (line int32, ok bool) {
	end := uint64(0)
	for len(table) > 0 {
		head := table[0]
		size := 1
		for size < len(table) && table[size]&0x80 == 0 { // the first byte of an entry has the high bit
			size++
		}
		end += uint64(head&7) + 1
		kind := head >> 3 & 15
		switch kind {
		case 10, 11, 12: // on the same line, or one or two further
			line += int32(kind - 10)
		case 13, 14: // without columns, and long
			line += signedVarint(table[1:size])
		}
		if uint64(instruction) < end {
			return line, kind != 15 && head&0x80 != 0
		}
		table = table[size:]
	}
	return 0, false
}

// signedVarint reads a number of 6 bits a byte; the lowest bit is its sign.
func signedVarint(b []byte) int32 {
	v := uint32(0)
	for i, x := range b {
		if i < 6 {
			v |= uint32(x&0x3f) << (6 * i)
		}
		if x&0x40 == 0 {
			break
		}
	}
	if v&1 != 0 {
		return -int32(v >> 1)
	}
	return int32(v >> 1)
}

// CPython 3.10 is the one version whose lines the pinned library gets wrong: frames do
// not publish there where f_lasti is, and of the line table it reads only half, with an
// index that it takes for an offset. These are members of struct PyFrameObject,
// PyCodeObject and PyBytesObject of 3.10 (Include/cpython/frameobject.h, code.h, bytesobject.h).
const (
	lasti310     = 96
	linetable310 = 120
	bytesSize    = 16
	bytesData    = 32
	maxLineTable = 1 << 16
)

// line310 returns the line of instruction lasti of a code object of CPython 3.10 that
// begins at line first; 0 where it has none, or could not be read.
func line310(memory remotememory.RemoteMemory, code uint64, lasti, first uint32) uint32 {
	table := memory.Ptr(libpf.Address(code + linetable310))
	size := memory.Uint64(table + bytesSize)
	if table == 0 || size == 0 || size > maxLineTable {
		return 0
	}
	text := make([]byte, size)
	if err := memory.Read(table+bytesData, text); err != nil {
		return 0
	}
	return lineIn310(text, lasti, first)
}

// lineIn310 is PyLineTable_NextAddressRange of Objects/codeobject.c: pairs of how many
// bytes of code, and how many lines further, -128 for none.
func lineIn310(table []byte, lasti, first uint32) uint32 {
	line, end, at := int64(first), uint64(0), uint64(lasti)*2
	for i := 0; i+1 < len(table); i += 2 {
		end += uint64(table[i])
		delta := int8(table[i+1])
		if delta != -128 {
			line += int64(delta)
		}
		if end > at {
			if delta == -128 || line < 0 {
				return 0
			}
			return uint32(line)
		}
	}
	return 0
}
