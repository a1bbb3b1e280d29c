package cudasim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
)

// CopyKind is the direction of a copy, with CUPTI's numbers.
type CopyKind uint32

// The directions.
const (
	HostToDevice   CopyKind = 1
	DeviceToHost   CopyKind = 2
	DeviceToDevice CopyKind = 8
	HostToHost     CopyKind = 9
	PeerToPeer     CopyKind = 10
)

// OpKind is what an operation of a virtual device is.
type OpKind uint32

// The operations.
const (
	Kernel       OpKind = 1
	Copy         OpKind = 2
	Memset       OpKind = 3
	HostFunction OpKind = 4
)

// Call is one call of an exported function. Times are CLOCK_MONOTONIC ns.
type Call struct {
	Name       string // the export; where several names share one address, the first
	TID, Depth uint32 // Depth 0: made by the application itself
	Enter      uint64
	Exit       uint64
	ID, Outer  uint64 // its number in the process; that of the outermost call around it
	Stream     uint64 // handle as passed
	StreamID   uint64
	Bytes      uint64
	Ptr, Ptr2  uint64 // destination or the handle it is about; source
	Grid       [3]uint32
	Block      [3]uint32
	Shared     uint32
	Result     int32
	Kind       CopyKind
	Kernel     string
}

// Op is one operation of a virtual device. Times are CLOCK_MONOTONIC ns.
type Op struct {
	Kind            OpKind
	TID, Engine     uint32 // thread that queued it; 0 compute, 1 H2D, 2 D2H, 3 D2D, 4 none
	Start, End      uint64
	Submit          uint64 // when it was queued
	Call, OuterCall uint64 // IDs of the driver call that queued it and of the outermost call around that
	StreamID        uint64
	Device          uint32
	Bytes           uint64
	Dst, Src        uint64
	Grid, Block     [3]uint32
	Shared          uint32
	Copy            CopyKind
	Name            string // a kernel's name
}

// Tally is a number of operations with what they amount to: bytes of copies, ns of operations.
type Tally struct{ Count, Sum uint64 }

// Truth is what happened in one process.
type Truth struct {
	PID     int
	Shape   int
	Level   int // 1 counts, 2 calls
	Start   uint64
	Dropped uint64 // records lost because the file was full
	Calls   []Call // by time of entry; level calls only
	Ops     []Op   // by start on the device; level calls only

	counts, outer, failed map[string]uint64
	copies                map[CopyKind]Tally
	ops                   map[OpKind]Tally
}

// Count is the number of calls of an exported function, at any depth.
func (t *Truth) Count(name string) uint64 { return t.counts[name] }

// OuterCount is the number of calls of a function that the application itself made.
func (t *Truth) OuterCount(name string) uint64 { return t.outer[name] }

// FailedCount is the number of calls that returned neither success nor "not ready".
func (t *Truth) FailedCount(name string) uint64 { return t.failed[name] }

// Counts are all calls by function.
func (t *Truth) Counts() map[string]uint64 { return t.counts }

// OuterCounts are the application's own calls by function.
func (t *Truth) OuterCounts() map[string]uint64 { return t.outer }

// Copies are the copies of one direction: Sum in bytes.
func (t *Truth) Copies(k CopyKind) Tally { return t.copies[k] }

// Operations are the operations of one kind: Sum in ns on the device.
func (t *Truth) Operations(k OpKind) Tally { return t.ops[k] }

// CallsOf are the calls of one function, by time.
func (t *Truth) CallsOf(name string) []Call {
	var out []Call
	for _, c := range t.Calls {
		if c.Name == name {
			out = append(out, c)
		}
	}
	return out
}

// The layout of testdata/cudasim/include/truth_file.h, version 1.
const (
	truthMagic   = "CUDASIM1"
	truthVersion = 1
	headerSize   = 112
	nameLen      = 64
	names        = 2048
	stringLen    = 128
	stripes      = 64
	copyKinds    = 16
	opKinds      = 8
	recordSize   = 128
	stripeBytes  = 8 * (3*names + 2*copyKinds + 2*opKinds)
)

// errNotTruth means that a file is not a truth file, or not one of this version.
var errNotTruth = errors.New("not a truth file of version 1")

type truthHeader struct {
	nameCount, stringCount                                   uint32
	namesOff, stringsOff, stripesOff, stripeSize, recordsOff uint64
}

// ReadTruth reads a truth file, also of a process that is still running or was killed.
func ReadTruth(path string) (*Truth, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read truth: %w", err)
	}
	t, err := parseTruth(b)
	if err != nil {
		return nil, fmt.Errorf("read truth %s: %w", path, err)
	}
	return t, nil
}

func parseTruth(b []byte) (*Truth, error) {
	if len(b) < headerSize || string(b[:8]) != truthMagic || binary.LittleEndian.Uint32(b[8:]) != truthVersion {
		return nil, errNotTruth
	}
	t := &Truth{
		PID:   int(binary.LittleEndian.Uint32(b[12:])),
		Start: binary.LittleEndian.Uint64(b[16:]),
		Level: int(binary.LittleEndian.Uint32(b[24:])),
		Shape: int(binary.LittleEndian.Uint32(b[36:])), Dropped: binary.LittleEndian.Uint64(b[40:]),
		counts: map[string]uint64{}, outer: map[string]uint64{}, failed: map[string]uint64{},
		copies: map[CopyKind]Tally{}, ops: map[OpKind]Tally{},
	}
	h := truthHeader{
		nameCount:   binary.LittleEndian.Uint32(b[28:]),
		stringCount: binary.LittleEndian.Uint32(b[32:]),
		namesOff:    binary.LittleEndian.Uint64(b[56:]),
		stringsOff:  binary.LittleEndian.Uint64(b[64:]),
		stripesOff:  binary.LittleEndian.Uint64(b[72:]),
		stripeSize:  binary.LittleEndian.Uint64(b[80:]),
		recordsOff:  binary.LittleEndian.Uint64(b[88:]),
	}
	if uint64(len(b)) < h.recordsOff || h.stripesOff+h.stripeSize*stripes > h.recordsOff || h.stripeSize < stripeBytes {
		return nil, errNotTruth
	}
	fns := table(b[h.namesOff:], int(h.nameCount), nameLen)
	for i := range uint64(stripes) {
		t.addStripe(b[h.stripesOff+i*h.stripeSize:], fns)
	}
	t.addRecords(b[h.recordsOff:], fns, table(b[h.stringsOff:], int(h.stringCount), stringLen))
	return t, nil
}

func table(b []byte, n, width int) []string {
	out := make([]string, 0, n)
	for i := 0; i < n && (i+1)*width <= len(b); i++ {
		s, _, _ := bytes.Cut(b[i*width:(i+1)*width], []byte{0})
		out = append(out, string(s))
	}
	return out
}

func (t *Truth) addStripe(b []byte, fns []string) {
	for m, counts := range []map[string]uint64{t.counts, t.outer, t.failed} {
		for i, name := range fns {
			if n := binary.LittleEndian.Uint64(b[8*(m*names+i):]); n > 0 {
				counts[name] += n
			}
		}
	}
	b = b[8*3*names:]
	for k := range copyKinds {
		addTally(t.copies, CopyKind(k), b[16*k:])
	}
	b = b[16*copyKinds:]
	for k := range opKinds {
		addTally(t.ops, OpKind(k), b[16*k:])
	}
}

func addTally[K comparable](m map[K]Tally, k K, b []byte) {
	if n := binary.LittleEndian.Uint64(b); n > 0 {
		have := m[k]
		m[k] = Tally{have.Count + n, have.Sum + binary.LittleEndian.Uint64(b[8:])}
	}
}

func (t *Truth) addRecords(b []byte, fns, strings []string) {
	for ; len(b) >= recordSize; b = b[recordSize:] {
		switch binary.LittleEndian.Uint32(b) {
		case 1:
			t.Calls = append(t.Calls, parseCall(b, fns, strings))
		case 2:
			t.Ops = append(t.Ops, parseOp(b, strings))
		}
	}
	slices.SortStableFunc(t.Calls, func(a, b Call) int { return compare(a.Enter, b.Enter, a.ID, b.ID) })
	slices.SortStableFunc(t.Ops, func(a, b Op) int { return compare(a.Start, b.Start, a.End, b.End) })
}

func compare(a, b, c, d uint64) int {
	switch {
	case a < b || (a == b && c < d):
		return -1
	case a == b && c == d:
		return 0
	default:
		return 1
	}
}

func at(list []string, i uint32) string {
	if int(i) < len(list) {
		return list[i]
	}
	return ""
}

func triple(b []byte) [3]uint32 {
	return [3]uint32{
		binary.LittleEndian.Uint32(b),
		binary.LittleEndian.Uint32(b[4:]),
		binary.LittleEndian.Uint32(b[8:]),
	}
}

func parseCall(b []byte, fns, strings []string) Call {
	return Call{
		Name:   at(fns, binary.LittleEndian.Uint32(b[4:])),
		TID:    binary.LittleEndian.Uint32(b[8:]),
		Depth:  binary.LittleEndian.Uint32(b[12:]),
		Enter:  binary.LittleEndian.Uint64(b[16:]),
		Exit:   binary.LittleEndian.Uint64(b[24:]),
		ID:     binary.LittleEndian.Uint64(b[32:]),
		Stream: binary.LittleEndian.Uint64(b[40:]),
		Bytes:  binary.LittleEndian.Uint64(b[48:]),
		Ptr:    binary.LittleEndian.Uint64(b[56:]),
		Ptr2:   binary.LittleEndian.Uint64(b[64:]),
		Grid:   triple(b[72:]),
		Block:  triple(b[84:]),
		Shared: binary.LittleEndian.Uint32(b[96:]),
		Result: int32(binary.LittleEndian.Uint32(b[100:])),
		Kind:   CopyKind(binary.LittleEndian.Uint32(b[104:])), Kernel: at(strings, binary.LittleEndian.Uint32(b[108:])),
		Outer: binary.LittleEndian.Uint64(b[112:]), StreamID: binary.LittleEndian.Uint64(b[120:]),
	}
}

func parseOp(b []byte, strings []string) Op {
	return Op{
		Kind:     OpKind(binary.LittleEndian.Uint32(b[4:])),
		TID:      binary.LittleEndian.Uint32(b[8:]),
		Engine:   binary.LittleEndian.Uint32(b[12:]),
		Start:    binary.LittleEndian.Uint64(b[16:]),
		End:      binary.LittleEndian.Uint64(b[24:]),
		Call:     binary.LittleEndian.Uint64(b[32:]),
		StreamID: binary.LittleEndian.Uint64(b[40:]),
		Bytes:    binary.LittleEndian.Uint64(b[48:]),
		Dst:      binary.LittleEndian.Uint64(b[56:]),
		Src:      binary.LittleEndian.Uint64(b[64:]),
		Grid:     triple(b[72:]),
		Block:    triple(b[84:]),
		Shared:   binary.LittleEndian.Uint32(b[96:]),
		Device:   binary.LittleEndian.Uint32(b[100:]),
		Copy:     CopyKind(binary.LittleEndian.Uint32(b[104:])), Name: at(strings, binary.LittleEndian.Uint32(b[108:])),
		OuterCall: binary.LittleEndian.Uint64(b[112:]), Submit: binary.LittleEndian.Uint64(b[120:]),
	}
}
