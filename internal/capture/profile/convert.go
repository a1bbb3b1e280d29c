package profile

import (
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/ebpf-profiler/util"
)

// maxPlaces bounds the frames that are kept to be shared: 72 bytes each, and 40 of the map.
const maxPlaces = 1 << 15

// converter keeps the frames that stacks share, and knows which are of an interpreter's loop.
type converter struct {
	modules *modules
	epoch   atomic.Uint64 // grows with what changes the meaning of stacks

	mu     sync.Mutex
	places map[place]*frame
	eval   map[fileKey][]util.Range // of interpreters
}

// place is an address in a file.
type place struct {
	module *module
	addr   uint64
}

func newConverter(m *modules) *converter {
	return &converter{modules: m, places: map[place]*frame{}, eval: map[fileKey][]util.Range{}}
}

// interpreter notes where the loop of an interpreter is.
func (c *converter) interpreter(key fileKey, ranges []util.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eval[key] = ranges
	c.epoch.Add(1)
}

// native returns the frame of native code in a file.
func (c *converter) native(mod *module, addr uint64) *frame {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// runs reports whether a frame is of an interpreter's loop.
func (c *converter) runs(f *frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inLoop(f)
}

// inLoop reports whether a frame is of an interpreter's loop. The caller holds the lock.
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

// Errors of the library that may not last: no unwind tables for the last frame, and no mapping
// known at the address that it returns to.
const (
	noTables  = 4000
	noMapping = 4012
)

// Why stacks end in a file whose tables the programs will not have.
const (
	cutUnread  = "code in a file whose unwind tables could not be read"
	cutRefused = "code in a file whose unwind tables the kernel refused"
)

// The library's errors that are met often (support/ebpf/errors.h of the pinned version).
func whyCut(code uint64) string {
	switch code {
	case 2, 5:
		return "the stack is deeper than the unwinder goes"
	case noTables, noMapping:
		return "code in a file that the unwinder does not know yet"
	case 4001, 4002, 4004, 4005, 4015:
		return "code without unwind tables"
	case 4018, 4019, 4020:
		return "generated code"
	}
	return fmt.Sprintf("the unwinder gave up (%#x)", code)
}
