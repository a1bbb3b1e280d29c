package sampler

import (
	"encoding/binary"
	"errors"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/event"
)

// The layout of a record, struct sample of bpf/sample.bpf.c; record_test.go compares it.
const (
	headerBytes = 32
	frameBytes  = 16
	maxPython   = 128
	maxKernel   = 32
	entryBit    = 1 << 63 // PYTHON_ENTRY of bpf/sample_python.h
)

// maxPass bounds how many records one pass takes: a sixteenth of a second of 64 CPUs at 2,000 Hz.
const maxPass = 8192

var errRecord = errors.New("not a record of a sample")

// raw is one record of the ring.
type raw struct {
	ts       uint64 // ns, CLOCK_MONOTONIC
	ip       uint64 // of the leaf in user mode
	pid, tid uint32
	cpu      uint32
	cause    event.SampleCause
	walk     bpf.SamplePythonWalk
	python   []codeAt // leaf first
	entry    []bool   // of each: C code has called it
	kernel   []uint64 // leaf first
}

// codeAt is a place in Python code.
type codeAt struct {
	code  uint64 // address of the code object
	check uint32 // of its fields; 0: it was not in memory
	lasti uint32 // instruction
}

// decode reads a record. Only the kernel writes them, but what it read out of a
// target's memory must still not lead us out of the record.
func decode(b []byte) (raw, error) {
	if len(b) < headerBytes {
		return raw{}, errRecord
	}
	ne := binary.NativeEndian
	r := raw{
		ts: ne.Uint64(b), ip: ne.Uint64(b[8:]), pid: ne.Uint32(b[16:]), tid: ne.Uint32(b[20:]), cpu: ne.Uint32(b[24:]),
		cause: event.SampleCause(b[28]), walk: bpf.SamplePythonWalk(b[29]),
	}
	frames, kernel := int(b[30]), int(b[31])
	rest := b[headerBytes:]
	if frames > maxPython || kernel > maxKernel || len(rest) < frames*frameBytes+kernel*8 || r.cause > event.Switch {
		return raw{}, errRecord
	}
	if frames > 0 {
		r.python, r.entry = make([]codeAt, frames), make([]bool, frames)
	}
	for i := range r.python {
		f := rest[i*frameBytes:]
		code := ne.Uint64(f)
		r.python[i] = codeAt{code: code &^ entryBit, check: ne.Uint32(f[8:]), lasti: ne.Uint32(f[12:])}
		r.entry[i] = code&entryBit != 0
	}
	rest = rest[frames*frameBytes:]
	if kernel > 0 {
		r.kernel = make([]uint64, kernel)
	}
	for i := range r.kernel {
		r.kernel[i] = ne.Uint64(rest[i*8:])
	}
	return r, nil
}
