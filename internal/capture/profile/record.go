package profile

import (
	"encoding/binary"
	"errors"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// The layout of a record, struct sample of bpf/sample.bpf.c; record_test.go compares it.
const (
	headerBytes = 32
	frameBytes  = 16
	maxPython   = 128
	maxKernel   = 32
	maxReturns  = 4
	entryBit    = 1 << 63 // PYTHON_ENTRY of bpf/sample_python.h
	collectBit  = 0x80    // PYTHON_COLLECTING
)

var errRecord = errors.New("not a record of a sample")

// header is what a record of the ring begins with.
type header struct {
	ts       uint64 // ns, CLOCK_MONOTONIC
	ip       uint64 // of the leaf in user mode
	pid, tid uint32
	cpu      uint32
	cause    event.SampleCause
	walk     bpf.SamplePythonWalk
	collects bool // garbage
}

// raw is one record of the ring. It is good until the next one is decoded into it.
type raw struct {
	header
	stack  []byte   // all that follows the header
	python []codeAt // leaf first
	entry  []bool   // of each: C code has called it
	kernel []uint64 // leaf first
	// returns are where calls return to whose return is probed, leaf first: what stands on the stack instead ends a
	// native stack.
	returns []uint64
}

// codeAt is a place in Python code.
type codeAt struct {
	code  uint64 // address of the code object
	check uint32 // of its fields; 0: it was not in memory
	lasti uint32 // instruction
}

// decode reads a record. Only the kernel writes them, but what it read out of a
// target's memory must still not lead us out of the record.
func (r *raw) decode(b []byte) error {
	if len(b) < headerBytes {
		return errRecord
	}
	ne := binary.NativeEndian
	r.header = header{
		ts: ne.Uint64(b), ip: ne.Uint64(b[8:]), pid: ne.Uint32(b[16:]), tid: ne.Uint32(b[20:]), cpu: ne.Uint32(b[24:]),
		cause:    event.SampleCause(b[28] & 15),
		walk:     bpf.SamplePythonWalk(b[29] &^ collectBit),
		collects: b[29]&collectBit != 0,
	}
	frames, kernel, returns := int(b[30]), int(b[31]), int(b[28]>>4)
	rest := b[headerBytes:]
	if frames > maxPython || kernel > maxKernel || returns > maxReturns ||
		len(rest) < frames*frameBytes+(kernel+returns)*8 ||
		r.cause > event.Switch {
		return errRecord
	}
	r.stack = rest[:frames*frameBytes+(kernel+returns)*8]
	r.python, r.entry, r.kernel, r.returns = r.python[:0], r.entry[:0], r.kernel[:0], r.returns[:0]
	for ; frames > 0; frames-- {
		code := ne.Uint64(rest)
		r.python = append(r.python,
			codeAt{code: code &^ entryBit, check: ne.Uint32(rest[8:]), lasti: ne.Uint32(rest[12:])})
		r.entry = append(r.entry, code&entryBit != 0)
		rest = rest[frameBytes:]
	}
	for ; kernel > 0; kernel-- {
		r.kernel = append(r.kernel, ne.Uint64(rest))
		rest = rest[8:]
	}
	for ; returns > 0; returns-- {
		r.returns = append(r.returns, ne.Uint64(rest))
		rest = rest[8:]
	}
	return nil
}
