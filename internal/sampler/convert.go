package sampler

import (
	"fmt"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/util"
)

// converter makes our traces of the library's. It implements files.
type converter struct {
	modules *modules

	mu   sync.Mutex
	byID map[libpf.FileID]*module
	eval map[fileKey][]util.Range // of interpreters
}

func newConverter(m *modules) *converter {
	return &converter{modules: m, byID: map[libpf.FileID]*module{}, eval: map[fileKey][]util.Range{}}
}

// interpreter notes where the loop of an interpreter is.
func (c *converter) interpreter(key fileKey, ranges []util.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eval[key] = ranges
}

func (c *converter) reported(m *reporter.ExecutableMetadata) {
	if m.Process == nil || m.Mapping == nil {
		return
	}
	mod := c.modules.named(uint32(m.Process.PID()), m.Mapping.Inode, m.Mapping.Path)
	c.mu.Lock()
	defer c.mu.Unlock()
	if mod == nil || len(c.byID) >= maxModules {
		return
	}
	c.byID[m.MappingFile.Value().FileID] = mod
}

func (c *converter) converted(t *libpf.Trace, at uint64, pid, tid uint32) *trace {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &trace{pid: pid, tid: tid, at: at, frames: make([]frame, 0, len(t.Frames)), eval: make([]bool, 0, len(t.Frames))}
	for _, handle := range t.Frames {
		f := handle.Value()
		switch {
		case f.Type.IsError():
			out.cut = whyCut(uint64(f.AddressOrLineno))
		case f.Type == libpf.KernelFrame: // we have our own
		default:
			frame := c.native(&f, pid)
			out.add(frame, c.inLoop(frame))
		}
	}
	return out
}

func (t *trace) add(f frame, eval bool) {
	t.frames = append(t.frames, f)
	t.eval = append(t.eval, eval)
}

// native makes the frame of native code. The caller holds the lock.
func (c *converter) native(f *libpf.Frame, pid uint32) frame {
	out := frame{kind: nativeFrame, addr: uint64(f.AddressOrLineno)}
	if f.Mapping.Valid() {
		file := f.Mapping.Value().File.Value()
		if out.module = c.byID[file.FileID]; out.module != nil {
			return out
		}
		out.name = clip(file.FileName.String())
	}
	out.pid = pid
	return out
}

// runs says whether a frame is of an interpreter's loop.
func (c *converter) runs(f frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inLoop(f)
}

// inLoop says whether a frame is of an interpreter's loop. The caller holds the lock.
func (c *converter) inLoop(f frame) bool {
	if f.module == nil {
		return false
	}
	for _, r := range c.eval[f.module.fileKey] {
		if f.addr >= r.Start && f.addr < r.End {
			return true
		}
	}
	return false
}

// The library's errors that are met often (support/ebpf/errors.h of the pinned version).
func whyCut(code uint64) string {
	switch code {
	case 2, 5:
		return "the stack is deeper than the unwinder goes"
	case 4000, 4012:
		return "code in a file that the unwinder does not know yet"
	case 4001, 4002, 4004, 4005, 4015:
		return "code without unwind tables"
	case 4018, 4019, 4020:
		return "generated code"
	}
	return fmt.Sprintf("the unwinder gave up (%#x)", code)
}
