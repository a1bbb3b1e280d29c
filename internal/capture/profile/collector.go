package profile

import (
	"encoding/binary"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"

	"github.com/inferscope/inferscope/bpf"
)

// collecting is the name of the frame that stands for CPython's cyclic garbage
// collection, as Austin and py-spy name such states. Its functions are static: where the
// interpreter is stripped nothing else would say it. internal/analysis/threads knows the name.
const collecting = "[garbage collection]"

// collectorOffsets describes where a CPython keeps what its collector does, in bytes. They
// are what its own internal headers say (offsetof; gcc 12, x86-64), and are the same in
// all 64-bit builds of a minor version but those for debugging. A build that differs is
// found out by the program: it asks that generation0 leads to generations.
type collectorOffsets struct {
	runtime     uint16 // 3.7 and 3.8: of the collector's state in _PyRuntime; 0: it is the interpreter's
	interpreter uint16 // of it in PyInterpreterState
	collecting  uint16 // and in it
	generation0 uint16
	generations uint16
	current     uint16 // to 3.11: of gilstate.tstate_current in _PyRuntime; 0: the thread state's status says it
	status      uint8  // in PyThreadState
}

// stateInterp is the offset of PyThreadState.interp from 3.7 to 3.12.
const stateInterp = 16

// statusActive is PyThreadState._status.active from 3.12 on: the fifth of its bits.
const statusActive = 1 << 4

// collectorOf returns the offsets of a version (sys.hexversion >> 16) that does not say them itself.
func collectorOf(version uint16) (collectorOffsets, bool) {
	offsets, ok := map[uint16]collectorOffsets{
		0x307: {runtime: 320, collecting: 312, generation0: 176, generations: 32, current: 1480},
		0x308: {runtime: 344, collecting: 200, generation0: 96, generations: 24, current: 1368},
		0x309: {interpreter: 616, collecting: 200, generation0: 96, generations: 24, current: 568},
		0x30a: {interpreter: 616, collecting: 200, generation0: 96, generations: 24, current: 568},
		0x30b: {interpreter: 648, collecting: 200, generation0: 96, generations: 24, current: 576},
		0x30c: {interpreter: 112, collecting: 200, generation0: 96, generations: 24, status: 24},
	}[version]
	return offsets, ok
}

// addCollector completes a layout with where the collector of the CPython at runtime,
// the address of its _PyRuntime, says what it does. Nothing is added where that is not
// known: before 3.7 only a static variable says it.
func addCollector(l *bpf.SamplePythonLayout, version uint16, runtime uint64, memory remotememory.RemoteMemory) {
	if runtime == 0 {
		return
	}
	if version >= python313 {
		addDescribed(l, version, runtime, memory)
		return
	}
	o, ok := collectorOf(version)
	if !ok {
		return
	}
	l.GcOffset, l.GcCollecting, l.GcGeneration0, l.GcGenerations = uint32(o.interpreter),
		o.collecting,
		o.generation0,
		o.generations
	l.StateInterp, l.StateStatus, l.StatusActive = stateInterp, o.status, statusActive
	if o.runtime != 0 {
		l.GcAddr = runtime + uint64(o.runtime)
	}
	if o.current != 0 {
		l.CurrentAddr = runtime + uint64(o.current)
	}
}

// Where struct _Py_DebugOffsets has the offsets that are wanted here, in bytes
// (Include/internal/pycore_runtime.h of 3.13, pycore_debug_offsets.h of 3.14).
type describedAt struct{ gc, interp, status, collecting int }

func describedBy(version uint16) (describedAt, bool) {
	at, ok := map[uint16]describedAt{
		0x30d: {gc: 80, interp: 176, status: 216, collecting: 576},
		0x30e: {gc: 88, interp: 200, status: 240, collecting: 656},
	}[version]
	return at, ok
}

// describedBytes is how much of struct _Py_DebugOffsets is read.
const describedBytes = 664

// addDescribed takes the offsets from CPython itself, which begins _PyRuntime with them
// since 3.13. A target may say what it likes there: the program reads its memory only.
func addDescribed(l *bpf.SamplePythonLayout, version uint16, runtime uint64, memory remotememory.RemoteMemory) {
	at, ok := describedBy(version)
	var b [describedBytes]byte
	if !ok || memory.Read(libpf.Address(runtime), b[:]) != nil || string(b[:8]) != debugCookie {
		return
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	if word(8)>>16 != uint64(version) { // sys.hexversion
		return
	}
	const most = 1 << 20 // bytes of a PyInterpreterState; 3.13 has 400 kB
	gc, interp, status, flag := word(at.gc), word(at.interp), word(at.status), word(at.collecting)
	if gc >= most || interp > 255 || status > 255 || flag > 4096 {
		return
	}
	l.GcOffset, l.GcCollecting = uint32(gc), uint16(flag)
	l.StateInterp, l.StateStatus, l.StatusActive = uint8(interp), uint8(status), statusActive
}

// withCollector puts the frame that stands for a collection on top of the Python frames
// of a thread that collects. leafInLoop says that the thread runs Python code: that is
// a finaliser's, which has its own frames, or another thread's that a finaliser lets run.
func withCollector(py pyStack, collects, leafInLoop bool) pyStack {
	if !collects || leafInLoop || len(py.calls) == 0 {
		return py
	}
	calls := make([]call, 0, len(py.calls)+1)
	calls = append(calls, call{frame: frame{kind: pythonFrame, name: collecting}})
	return pyStack{calls: append(calls, py.calls...), complete: py.complete}
}
