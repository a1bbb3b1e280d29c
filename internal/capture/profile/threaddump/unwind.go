package threaddump

import (
	"errors"

	"github.com/inferscope/inferscope/internal/capture/profile/callers"
)

// maxDepth bounds the native frames of a stack.
const maxDepth = 1024

// maxFrameBytes bounds how far a frame pointer may lie above the stack pointer where
// there are no unwind tables; alloca of megabytes is rare.
const maxFrameBytes = 8 << 20

// native is an unwound stack, leaf first.
type native struct {
	frames []place
	whole  bool   // to the thread's start
	cut    string // why not
}

// unwind follows the callers of a thread, without asking it.
func (s *space) unwind(r callers.Registers, m *memory) native {
	var out native
	called := false // PC is where a call returns to, not what is executed next
	for len(out.frames) < maxDepth {
		at := r.PC
		if called {
			at--
		}
		p := s.place(at)
		out.frames = append(out.frames, p)
		next, signal, err := s.caller(p, &r, m)
		switch {
		case errors.Is(err, callers.ErrEnd):
			out.whole = out.cut == ""
			return out
		case errors.Is(err, callers.ErrNoEntry):
			out.cut = why(p)
			if next, err = s.byFramePointer(&r, m); err != nil {
				return out
			}
		case err != nil:
			out.cut = err.Error()
			return out
		}
		if !signal && !forward(&r, &next) {
			out.cut = "its stack does not lead on"
			return out
		}
		r, called = next, !signal
	}
	out.cut = "the stack is deeper than is looked at"
	return out
}

// forward reports whether the caller's frame lies above; a leaf may have none of its own
// where the return address is in a register.
func forward(r, next *callers.Registers) bool {
	now, then := stackPointer(r), stackPointer(next)
	return then > now || then == now && next.PC != r.PC
}

func (s *space) caller(p place, r *callers.Registers, m *memory) (callers.Registers, bool, error) {
	if p.module == nil || p.module.cfi == nil || p.module.err != nil {
		return callers.Registers{}, false, callers.ErrNoEntry
	}
	return p.module.cfi.Caller(p.addr, r, m)
}

// why reports why there is no entry for a place.
func why(p place) string {
	switch {
	case p.module == nil:
		return "generated code"
	case p.module.err != nil && !errors.Is(p.module.err, callers.ErrNoTable):
		return p.module.err.Error()
	}
	return "code without unwind tables"
}

var errNoFramePointer = errors.New("no frame pointer")

// byFramePointer finds the caller where the frame pointer is one: the return address
// next to it must be in a file's code.
func (s *space) byFramePointer(r *callers.Registers, m *memory) (callers.Registers, error) {
	fp, sp := framePointer(r), stackPointer(r)
	if fp < sp || fp-sp > maxFrameBytes || fp%8 != 0 {
		return callers.Registers{}, errNoFramePointer
	}
	up, err := m.Word(fp)
	if err != nil {
		return callers.Registers{}, err
	}
	ra, err := m.Word(fp + 8)
	if err != nil {
		return callers.Registers{}, err
	}
	next := byFramePointer(r, up, ra)
	if _, ok := s.mapping(next.PC); !ok || up != 0 && up <= fp {
		return callers.Registers{}, errNoFramePointer
	}
	return next, nil
}
