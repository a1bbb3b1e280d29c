package profile

import (
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
)

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
