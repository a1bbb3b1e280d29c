package profile

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/profile/callers"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Bounds of what is unwound for probes.
const (
	maxProbeFrames = 256 // native frames of a stack
	maxProbeFiles  = 64  // files that are open for their call frame information
)

// ProbeStack is what a program at a probe copied of its thread. The native unwinder's programs
// cannot run there: a thread that they interrupt may run them too, and they keep a stack per CPU.
type ProbeStack struct {
	Record    []byte // struct sample of bpf/sample_python.h, and behind it the Python frames
	Registers []byte // struct pt_regs
	Stack     []byte // from the stack pointer on; may end before the thread's start does
}

// ProbeMaps are the maps that programs at probes share with those of samples, so that they know
// which processes run CPython, and how to walk its frames.
func (s *Source) ProbeMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{bpf.SampleMapSampledProcesses: s.programs.objects.SampledProcesses}
}

// HaveLoop reports whether programs that walk Python frames may do so with bpf_loop.
func HaveLoop() uint8 { return haveLoop() }

// probes unwinds native stacks that were copied.
type probes struct {
	raw   raw
	files map[*module]*probeFile
}

// probeFile is the call frame information of a file.
type probeFile struct {
	file *os.File
	cfi  *callers.File // nil: there is none
}

// AddProbeStack puts the stack of a thread at a probe into the table of stacks and returns its number and how it
// was had; 0 where nothing is known of it. held is the time (ns) since which the recorder holds events.
func (s *Source) AddProbeStack(p ProbeStack, held uint64) (uint64, event.StackOrigin) {
	s.feed.Lock()
	defer s.feed.Unlock()
	r := &s.probes.raw
	if err := r.decode(p.Record); err != nil {
		return 0, event.Leaf
	}
	var calls pyStack
	if len(r.python) > 0 {
		if py := s.python(r.pid); py != nil {
			found, _ := py.stack(r, s.merged.hash(r))
			calls = pyStack{calls: found, complete: r.walk == bpf.SamplePythonWalkPYTHON_WALKED}
		}
	}
	leaf := s.modules.leaf(r.pid, r.ip)
	t := s.unwindProbe(r.pid, p)
	if t != nil {
		s.convert.mark(t)
	}
	st := merge(s.frames[:0], calls, t, leaf, nil)
	s.frames = st.frames
	return s.table.add(st.frames, r.ts, held), st.origin
}

// KeepStack notes that the stack with this number is still wanted at a time (ns), and returns the number that
// it has from now on; 0 where it is gone.
func (s *Source) KeepStack(number, at, held uint64) uint64 {
	if number == 0 || s.table.again(number, at) {
		return number
	}
	return s.table.renew(number, at, held)
}

// unwindProbe follows the callers through the copied stack; nil where not even the first is found.
func (s *Source) unwindProbe(pid uint32, p ProbeStack) *unwound {
	regs, ok := probeRegisters(p.Registers)
	if !ok || len(p.Stack) == 0 {
		return nil
	}
	memory := copied{base: stackPointer(&regs), bytes: p.Stack}
	out := &unwound{}
	called := false
	for len(out.frames) < maxProbeFrames {
		at := regs.PC
		if called {
			at-- // into the call, which can be the last instruction of its function
		}
		f := s.modules.leaf(pid, at)
		if f.module != nil {
			out.frames = append(out.frames, s.convert.native(f.module, f.addr))
		} else {
			out.frames = append(out.frames, &f)
		}
		next, signal, err := s.probeCaller(&f, &regs, memory)
		switch {
		case errors.Is(err, callers.ErrEnd):
			return out
		case errors.Is(err, errBeyond):
			out.cut = "the stack is deeper than the probe copies"
		case errors.Is(err, callers.ErrNoEntry):
			out.cut = "code without unwind tables"
		case err != nil:
			out.cut = err.Error()
		case !signal && stackPointer(&next) < stackPointer(&regs):
			out.cut = "its stack does not lead on"
		}
		if out.cut != "" {
			return out
		}
		regs, called = next, !signal
	}
	out.cut = "the stack is deeper than the unwinder goes"
	return out
}

func (s *Source) probeCaller(f *frame, r *callers.Registers, m copied) (callers.Registers, bool, error) {
	if f.module == nil {
		return callers.Registers{}, false, callers.ErrNoEntry
	}
	file := s.probeFile(f.module)
	if file.cfi == nil {
		return callers.Registers{}, false, callers.ErrNoEntry
	}
	return file.cfi.Caller(f.addr, r, m)
}

// probeFile opens a file for its call frame information.
func (s *Source) probeFile(mod *module) *probeFile {
	known := s.probes.files[mod]
	if known != nil {
		return known
	}
	if len(s.probes.files) >= maxProbeFiles || s.probes.files == nil {
		s.probes.close()
		s.probes.files = map[*module]*probeFile{}
	}
	made := &probeFile{}
	s.probes.files[mod] = made
	f, err := s.modules.open(mod)
	if err != nil {
		return made
	}
	if made.cfi, err = callers.Open(f); err != nil {
		made.cfi = nil
		_ = f.Close() // it was only read
		return made
	}
	made.file = f
	return made
}

func (p *probes) close() {
	for _, f := range p.files {
		if f.file != nil {
			_ = f.file.Close() // it was only read
		}
	}
	p.files = nil
}

var errBeyond = errors.New("beyond the copy of the stack")

// copied is a stack that was copied.
type copied struct {
	base  uint64
	bytes []byte
}

// Word reads 8 bytes.
func (m copied) Word(addr uint64) (uint64, error) {
	if addr < m.base || addr-m.base > uint64(len(m.bytes)) || uint64(len(m.bytes))-(addr-m.base) < 8 {
		return 0, errBeyond
	}
	return binary.LittleEndian.Uint64(m.bytes[addr-m.base:]), nil
}

// renew puts a stack of an older generation into the newest.
func (t *table) renew(number, ts, held uint64) uint64 {
	t.mu.Lock()
	var stack []frame
	if g := t.generation(number); g != nil {
		for n := int32(number - g.base); n >= 0; n = g.nodes[n].Parent {
			stack = append(stack, g.frames[g.nodes[n].Frame])
		}
	}
	t.mu.Unlock()
	return t.add(stack, ts, held)
}
