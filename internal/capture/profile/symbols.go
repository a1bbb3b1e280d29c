package profile

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/recording"
)

// maxNamed bounds the names of native code that are remembered; 100 bytes each beside the text.
const maxNamed = 1 << 15

// hiddenKernel is the name of kernel code where the kernel does not show its symbols.
const hiddenKernel = "[kernel]"

// namer names native and kernel frames, for recordings and a little ahead of them:
// a file can only be read while a process has it mapped.
type namer struct {
	table   *symbol.Table
	kernel  *symbol.Kernel
	modules *modules

	mu    sync.Mutex
	names map[frame]string // of native frames
}

func newNamer(table *symbol.Table, m *modules) *namer {
	return &namer{table: table, kernel: symbol.NewKernel(), modules: m, names: map[frame]string{}}
}

// rows makes rows of a recording out of frames.
func (n *namer) rows(frames []frame) []recording.Frame {
	kernel := n.kernelNames(frames)
	out := make([]recording.Frame, len(frames))
	for i := range frames {
		out[i] = n.row(&frames[i], kernel)
	}
	return out
}

// kernelNames names all kernel frames at once: the kernel's table is read through for that.
func (n *namer) kernelNames(frames []frame) map[uint64]string {
	var addrs []uint64
	for i := range frames {
		if frames[i].kind == kernelFrame {
			addrs = append(addrs, frames[i].addr)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	symbols, _ := n.kernel.Resolve(addrs) // without names where it fails
	names := make(map[uint64]string, len(addrs))
	for i, a := range addrs {
		if names[a] = symbols[i].Name; names[a] == "" {
			names[a] = hiddenKernel
		}
	}
	return names
}

func (n *namer) row(f *frame, kernel map[uint64]string) recording.Frame {
	switch f.kind {
	case pythonFrame:
		return recording.Frame{Kind: recording.PythonFrame, Name: f.name, File: f.file, Line: f.line}
	case kernelFrame:
		return recording.Frame{Kind: recording.KernelFrame, Name: kernel[f.addr]}
	case errorFrame:
		return recording.Frame{Kind: recording.ErrorFrame, Name: f.name}
	}
	out := recording.Frame{Kind: recording.NativeFrame, Name: n.native(*f)}
	if f.module != nil {
		out.File = f.module.base()
	}
	return out
}

// native names a native frame.
func (n *namer) native(f frame) string {
	n.mu.Lock()
	name, ok := n.names[f]
	n.mu.Unlock()
	if ok {
		return name
	}
	name = n.look(f)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) >= maxNamed {
		clear(n.names)
	}
	n.names[f] = name
	return name
}

// keep forgets the names of frames that are in no generation any more.
func (n *namer) keep(gens []*generation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := map[frame]string{}
	for _, g := range gens {
		for i := range g.frames {
			if name, ok := n.names[g.frames[i]]; ok {
				names[g.frames[i]] = name
			}
		}
	}
	n.names = names
}

func (n *namer) look(f frame) string {
	switch {
	case f.module != nil:
		return clip(n.table.Resolve(n.modules.symbols(f.module), f.addr).String())
	case f.name != "": // in a file that is not known any more
		return fmt.Sprintf("%s+%#x", f.name, f.addr)
	}
	return clip(n.table.ResolveMemory(n.modules.memory(f.pid), f.addr).String())
}

// symbols reports how to read a module.
func (m *modules) symbols(mod *module) symbol.Module {
	return symbol.Module{
		Key:  m.identity(mod),
		Path: mod.path,
		Open: func() (symbol.File, error) { return opened(m.open(mod)) },
		Beside: func(path string) (symbol.File, error) {
			process, _, ok := m.holder(mod)
			if !ok {
				return nil, errNotMapped
			}
			return opened(proc.Open(process, proc.Mapping{Path: path}))
		},
	}
}

// memory reports how to look into a process; one that is gone has nothing to look into.
func (m *modules) memory(pid uint32) symbol.Process {
	m.mu.Lock()
	s := m.spaces[pid]
	m.mu.Unlock()
	if s == nil {
		return symbol.Process{Key: symbol.ProcessKey{PID: pid}}
	}
	p := s.process
	return symbol.Process{
		Key: symbol.ProcessKey{PID: pid, StartTime: p.StartTime}, NSPID: p.NSPID, UID: p.UID,
		Born: time.Now().Add(-time.Duration(clock.Monotonic() - min(clock.Monotonic(), p.Born))),
		Maps: func() (io.ReadCloser, error) { return proc.OpenMaps(p) },
		Beside: func(path string) (symbol.File, error) {
			return opened(proc.Open(p, proc.Mapping{Path: path}))
		},
	}
}

// opened keeps a nil file from becoming an interface that is not nil.
func opened(f *os.File, err error) (symbol.File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
