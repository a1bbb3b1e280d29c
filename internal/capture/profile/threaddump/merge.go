package threaddump

import (
	"path"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
)

// interpreter is where the code of a CPython is.
type interpreter struct {
	module proc.Mapping
	runs   func(addr uint64) bool // whether an address is in its loop
}

// merger makes one stack of native and Python frames.
type merger struct {
	space   *space
	symbols *symbol.Table
	interp  *interpreter // nil: no Python
	out     []dump.Frame
	python  []profile.PythonFrame // those that are left
	begun   bool                  // a Python frame is out
}

// merge puts the Python frames where the interpreter's loop runs them: each call of the
// loop runs the frames up to one that C code has called.
func (m *merger) merge(n native, python []profile.PythonFrame) []dump.Frame {
	m.python = python
	last := -1
	for i, p := range n.frames {
		if m.loops(p) {
			last = i
		}
	}
	for i, p := range n.frames {
		switch {
		case m.loops(p) && i == last:
			m.take(len(m.python)) // none may be lost where the two do not agree
		case m.loops(p) && len(m.python) > 0:
			m.take(m.chunk())
		default:
			m.native(p)
		}
	}
	m.take(len(m.python)) // the native frames were cut off before the loop
	return m.out
}

func (m *merger) loops(p place) bool {
	return m.interp != nil && m.inInterpreter(p) && m.interp.runs(p.addr)
}

func (m *merger) inInterpreter(p place) bool {
	if m.interp == nil || p.module == nil {
		return false
	}
	a, b := &p.module.Mapping, &m.interp.module
	return a.Dev == b.Dev && a.Inode == b.Inode && a.Path == b.Path
}

// chunk returns how many Python frames the present call of the loop runs.
func (m *merger) chunk() int {
	for i := range m.python {
		if m.python[i].Entry {
			return i + 1
		}
	}
	return len(m.python)
}

func (m *merger) take(n int) {
	for i := range m.python[:n] {
		m.out = append(m.out, dump.Frame{Frame: m.python[i].Frame})
		m.begun = true
	}
	m.python = m.python[n:]
}

// native adds a native frame. The interpreter's own code is of interest only above all Python.
func (m *merger) native(p place) {
	f := dump.Frame{Frame: recording.Frame{Kind: recording.NativeFrame, Name: m.space.name(p, m.symbols)}}
	if p.module != nil {
		f.File = path.Base(p.module.Path)
	}
	f.Internal = m.begun && m.inInterpreter(p)
	m.out = append(m.out, f)
}
