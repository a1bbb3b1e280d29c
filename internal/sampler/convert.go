package sampler

import (
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/util"
)

// maxPlaces bounds the frames that are kept to be shared: 72 bytes each, and 40 of the map.
const maxPlaces = 1 << 15

// converter makes our stacks of the library's. It implements files.
type converter struct {
	modules *modules
	epoch   atomic.Uint64 // grows with what changes the meaning of stacks

	mu     sync.Mutex
	byID   map[libpf.FileID]*module
	places map[place]*frame
	eval   map[fileKey][]util.Range // of interpreters
}

// place is an address in a file.
type place struct {
	module *module
	addr   uint64
}

func newConverter(m *modules) *converter {
	return &converter{modules: m, byID: map[libpf.FileID]*module{}, places: map[place]*frame{}, eval: map[fileKey][]util.Range{}}
}

// interpreter notes where the loop of an interpreter is.
func (c *converter) interpreter(key fileKey, ranges []util.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eval[key] = ranges
	c.epoch.Add(1)
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

func (c *converter) converted(t *libpf.Trace, pid uint32) (out *unwound, lasting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, lasting = &unwound{frames: make([]*frame, 0, len(t.Frames))}, true
	for _, handle := range t.Frames {
		f := handle.Value()
		switch {
		case f.Type.IsError():
			out.cut = whyCut(uint64(f.AddressOrLineno))
			lasting = lasting && !unknownYet(uint64(f.AddressOrLineno))
		case f.Type == libpf.KernelFrame: // we have our own
		default:
			frame := c.native(&f, pid)
			out.frames = append(out.frames, frame)
			lasting = lasting && frame.module != nil
		}
	}
	return out, lasting
}

// native makes the frame of native code. The caller holds the lock.
func (c *converter) native(f *libpf.Frame, pid uint32) *frame {
	addr := uint64(f.AddressOrLineno)
	if !f.Mapping.Valid() {
		return &frame{kind: nativeFrame, addr: addr, pid: pid}
	}
	file := f.Mapping.Value().File.Value()
	mod := c.byID[file.FileID]
	if mod == nil {
		return &frame{kind: nativeFrame, addr: addr, pid: pid, name: clip(file.FileName.String())}
	}
	at := place{mod, addr}
	known := c.places[at]
	if known == nil {
		if len(c.places) >= maxPlaces {
			clear(c.places)
		}
		known = &frame{kind: nativeFrame, module: mod, addr: addr}
		c.places[at] = known
	}
	return known
}

// mark says of each frame of a stack whether it is of an interpreter's loop.
func (c *converter) mark(t *unwound) {
	epoch := c.epoch.Load()
	if t.eval != nil && t.epoch == epoch {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.epoch, t.eval = epoch, make([]bool, len(t.frames))
	for i, f := range t.frames {
		t.eval[i] = c.inLoop(f)
	}
}

// inLoop says whether a frame is of an interpreter's loop. The caller holds the lock.
func (c *converter) inLoop(f *frame) bool {
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

// unknownYet says whether the library may do better with the same stack a little later.
func unknownYet(code uint64) bool { return code == 4000 || code == 4012 }

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
