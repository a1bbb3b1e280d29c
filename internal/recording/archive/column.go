package archive

import (
	"github.com/inferscope/inferscope/internal/recording/event"
)

// kind is the type of a column.
type kind uint8

// The types. Integers that people subtract are signed, because databases refuse a negative unsigned
// difference; handles and ids of 64 bits are unsigned.
const (
	int32Kind kind = iota
	int64Kind
	uint32Kind
	uint64Kind
	stringKind
	boolKind
)

// packing is the encoding of a column in Parquet: the one that took fewer bytes in BenchmarkBytesPerEvent.
type packing uint8

// The encodings.
const (
	packDict  packing = iota // RLE_DICTIONARY: values that come again
	packDelta                // DELTA_BINARY_PACKED: values that grow, or lie close to each other
)

// column describes one column of a table.
type column struct {
	name    string
	kind    kind
	packing packing
	doc     string // what it holds, for the documentation: its unit and where the value comes from
}

// field is a column of an event table: some bits of one of the eight words of an event.
// The fields of a table cover every bit of an event but its kind, so that nothing is lost (tested).
type field struct {
	column
	word, shift, bits uint8
}

// The words of an event, 8 bytes each, as bpf/event.h lays them out.
const (
	wordTS = iota
	wordDur
	wordIDs  // pid, tid
	wordHead // func 0-15, kind 16-23, flags 24-31, ret 32-63
	wordArg0
	wordArg1
	wordArg2
	wordArg3
)

// kindShift and kindBits say where the kind lies in wordHead.
const kindShift, kindBits = 16, 8

// word returns a word of an event.
func word(e *event.Event, w uint8) uint64 {
	switch w {
	case wordTS:
		return e.TS
	case wordDur:
		return e.Dur
	case wordIDs:
		return uint64(e.PID) | uint64(e.TID)<<32
	case wordHead:
		return uint64(e.Func) | uint64(e.Kind)<<kindShift | uint64(e.Flags)<<24 | uint64(uint32(e.Ret))<<32
	}
	return e.Args[w-wordArg0]
}

// put writes a word of an event.
func put(e *event.Event, w uint8, v uint64) {
	switch w {
	case wordTS:
		e.TS = v
	case wordDur:
		e.Dur = v
	case wordIDs:
		e.PID, e.TID = uint32(v), uint32(v>>32)
	case wordHead:
		e.Func, e.Kind, e.Flags, e.Ret = uint16(v), event.Kind(v>>kindShift), event.Flags(v>>24), int32(uint32(v>>32))
	default:
		e.Args[w-wordArg0] = v
	}
}

// mask covers the bits of a field once they are shifted to the bottom.
func (f *field) mask() uint64 { return 1<<(f.bits-1)<<1 - 1 }

func (f *field) get(e *event.Event) uint64 { return word(e, f.word) >> f.shift & f.mask() }

func (f *field) set(e *event.Event, v uint64) {
	put(e, f.word, word(e, f.word)&^(f.mask()<<f.shift)|(v&f.mask())<<f.shift)
}

// whole is a field of all bits of a word.
func whole(name string, k kind, p packing, w uint8, doc string) field {
	return field{column{name, k, p, doc}, w, 0, 64}
}

// part is a field of some bits of a word.
func part(name string, k kind, p packing, w, shift, bits uint8, doc string) field {
	return field{column{name, k, p, doc}, w, shift, bits}
}
