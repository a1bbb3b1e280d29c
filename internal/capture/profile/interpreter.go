package profile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/util"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
)

// Interpreters reads Python stacks out of the memory of processes, once and when
// asked: what bpf/sample.bpf.c does at each sample, from user space. It is safe for
// concurrent use, and shares nothing with a Source.
type Interpreters struct {
	mu      sync.Mutex
	pythons *pythons
}

// NewInterpreters returns an Interpreters that knows no file yet.
func NewInterpreters() *Interpreters { return &Interpreters{pythons: newPythons()} }

// Interpreter is the CPython of one process, for one look: it keeps names of code.
// It is not safe for concurrent use.
type Interpreter struct {
	Name   string       // "Python 3.11"
	Module proc.Mapping // the file that it is in
	python *cpython
	eval   []util.Range
}

// Open finds the CPython of p; nil where it runs none. The error says why one that is
// there cannot be read.
func (i *Interpreters) Open(p *proc.Process) (*Interpreter, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	py, err := i.pythons.find(p, nil)
	if py == nil {
		return nil, err
	}
	f, err := i.pythons.file(p, py.mapping)
	if err != nil {
		return nil, err
	}
	return &Interpreter{Name: fmt.Sprint(f.data), Module: py.mapping, python: py, eval: py.eval}, nil
}

// Runs reports whether an address, as the program headers of Module number it, is in the
// interpreter's loop: native code that stands for Python frames.
func (i *Interpreter) Runs(addr uint64) bool {
	for _, r := range i.eval {
		if addr >= r.Start && addr < r.End {
			return true
		}
	}
	return false
}

// PythonFrame is one frame of a Python stack.
type PythonFrame struct {
	recording.Frame
	Entry bool // called by C code: the interpreter's loop that runs it ends here
}

// maxWalk bounds a Python stack; CPython's own limit of recursion is 1,000.
const maxWalk = 4096

var errManyFrames = fmt.Errorf("more than %d Python frames", maxWalk)

// Raw is a Python stack before its code is named.
type Raw struct {
	frames []codeAt
	entry  []bool
}

// Same reports whether two walks saw the same.
func (r Raw) Same(o Raw) bool {
	if len(r.frames) != len(o.frames) {
		return false
	}
	for i := range r.frames {
		if r.frames[i] != o.frames[i] {
			return false
		}
	}
	return true
}

// Len returns the number of frames.
func (r Raw) Len() int { return len(r.frames) }

// Walk reads the stack of the thread with that thread pointer, leaf first; an empty one
// for a thread that is none of Python's. read reads memory of the process. What it
// read before an error comes with it.
func (i *Interpreter) Walk(threadPointer uint64, read func(addr uint64, b []byte) error) (Raw, error) {
	w := &walk{Interpreter: i, read: read}
	state, err := w.state(threadPointer)
	if err != nil || state == 0 {
		return w.out, err
	}
	l := &i.python.layout
	at, err := w.word(state + uint64(l.StateFrame))
	if err == nil && l.FrameIsCframe != 0 {
		at, err = w.word(at + uint64(l.CframeCurrent))
	}
	for n := 0; at != 0 && err == nil; n++ {
		if n == maxWalk {
			return w.out, errManyFrames
		}
		at, err = w.step(at)
	}
	return w.out, err
}

// Frames names a stack.
func (i *Interpreter) Frames(r Raw) []PythonFrame {
	out := make([]PythonFrame, 0, len(r.frames))
	for n, at := range r.frames {
		f := i.python.frame(at)
		if f.name == trampoline {
			if r.entry[n] && len(out) > 0 {
				out[len(out)-1].Entry = true
			}
			continue
		}
		out = append(out, PythonFrame{
			recording.Frame{Kind: recording.PythonFrame, Name: f.name, File: f.file, Line: f.line},
			r.entry[n],
		})
	}
	return out
}

// walk is one walk along a thread's frames.
type walk struct {
	*Interpreter
	read func(addr uint64, b []byte) error
	out  Raw
}

func (w *walk) word(addr uint64) (uint64, error) {
	var b [8]byte
	err := w.read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// state finds the thread state, as thread_state of bpf/sample.bpf.c.
func (w *walk) state(threadPointer uint64) (uint64, error) {
	l := &w.python.layout
	if l.TsdMultiplier != 0 {
		state, err := w.byKey(threadPointer)
		if err == nil && state != 0 {
			return state, nil
		}
	}
	if l.TlsOffset == 0 {
		return 0, nil
	}
	return w.word(threadPointer + uint64(int64(l.TlsOffset)))
}

func (w *walk) byKey(threadPointer uint64) (uint64, error) {
	l := &w.python.layout
	var key [4]byte
	if err := w.read(l.KeyAddr, key[:]); err != nil {
		return 0, err
	}
	at := threadPointer + uint64(int64(l.TsdOffset))
	if l.TsdIndirect != 0 {
		var err error
		if at, err = w.word(at); err != nil {
			return 0, err
		}
	}
	return w.word(at + uint64(binary.LittleEndian.Uint32(key[:]))*uint64(l.TsdMultiplier))
}

// The sizes that bpf/sample.bpf.c reads at once of a frame and of a code object.
const (
	walkFrameBytes = 128
	walkCodeBytes  = 160
)

var errLayout = errors.New("the interpreter's layout makes no sense")

// step notes one frame and returns the next one's address.
func (w *walk) step(at uint64) (uint64, error) {
	l := &w.python.layout
	var b [walkFrameBytes + 8]byte
	if max(l.FrameCode, l.FrameBack, l.FrameOwner, l.FrameLasti) > walkFrameBytes {
		return 0, errLayout
	}
	if err := w.read(at, b[:walkFrameBytes]); err != nil {
		return 0, err
	}
	code := binary.LittleEndian.Uint64(b[l.FrameCode:]) & l.CodeMask
	back := binary.LittleEndian.Uint64(b[l.FrameBack:])
	if code == 0 || code == l.NoneAddr || l.OwnerSkipped != 0 && b[l.FrameOwner] == l.OwnerSkipped {
		if n := len(w.out.entry); n > 0 {
			w.out.entry[n-1] = true
		}
		return back, nil
	}
	check, err := w.check(code)
	if err != nil {
		return 0, err
	}
	entry := l.Entry == entryAll || l.Entry != 0 && b[l.FrameOwner] == l.Entry
	w.out.frames = append(w.out.frames, codeAt{code: code, check: check, lasti: w.instruction(b[l.FrameLasti:], code)})
	w.out.entry = append(w.out.entry, entry)
	return back, nil
}

// instruction is last_instruction of bpf/sample.bpf.c.
func (w *walk) instruction(b []byte, code uint64) uint32 {
	l := &w.python.layout
	if l.LastiIsPointer == 0 {
		return binary.LittleEndian.Uint32(b)
	}
	bytes := int64(binary.LittleEndian.Uint64(b)) - int64(code) - int64(l.CodeSize)
	if bytes < -2 || bytes > 0x10000000 {
		bytes = -2
	}
	return uint32(int32(bytes) >> 1)
}

// check is checksum of bpf/sample.bpf.c.
func (w *walk) check(code uint64) (uint32, error) {
	l := &w.python.layout
	if max(l.CodeArgcount, l.CodeKwonly, l.CodeFlags, l.CodeFirstlineno) > walkCodeBytes-4 {
		return 0, errLayout
	}
	var b [walkCodeBytes]byte
	if err := w.read(code, b[:]); err != nil {
		return 0, err
	}
	at := func(off uint8) uint32 { return binary.LittleEndian.Uint32(b[off:]) }
	return at(l.CodeArgcount)<<25 + at(l.CodeKwonly)<<18 + at(l.CodeFlags)<<10 + at(l.CodeFirstlineno), nil
}
