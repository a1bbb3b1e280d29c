// Package metrics shows Prometheus what a daemon sees and what it costs.
package metrics

import (
	"sync"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// maxPIDs bounds the processes whose target is remembered. Beyond it the map
// starts anew, and events of processes born before count for Other.
const maxPIDs = 1 << 16

// CopyDecoder returns the direction and the bytes of a call that copies.
type CopyDecoder func(*event.Event) (cuda.Direction, uint64)

// Tally adds up calls per target and function. One goroutine adds batches, and
// any number read meanwhile: the lock is taken once per batch.
type Tally struct {
	functions func() []record.Function
	decoder   func([]record.Function) CopyDecoder

	mu      sync.Mutex
	table   []record.Function // as far as decode and copies know it
	copies  []bool            // by function index
	decode  CopyDecoder
	targets map[uint32]*counts // by the target's pid; 0 is Other
	roots   map[uint32]*counts // by process
}

// counts are the running totals of one target.
type counts struct {
	calls record.Tally
	bytes map[copyKey]uint64
}

// copyKey tells the bytes of the two libraries apart: a copy by way of the
// runtime is seen in both, and must not count twice.
type copyKey struct {
	library   string
	direction cuda.Direction
}

// NewTally returns an empty tally. functions returns the table that event.Func
// indexes, as far as it goes now; decoder makes a decoder for a table.
func NewTally(functions func() []record.Function, decoder func([]record.Function) CopyDecoder) *Tally {
	return &Tally{
		functions: functions, decoder: decoder,
		targets: map[uint32]*counts{}, roots: map[uint32]*counts{},
	}
}

// Target says that process pid belongs to target root, from now on.
func (t *Tally) Target(pid, root uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.roots) >= maxPIDs {
		clear(t.roots)
	}
	t.roots[pid] = t.counts(root)
}

func (t *Tally) counts(root uint32) *counts {
	c := t.targets[root]
	if c == nil {
		c = &counts{bytes: map[copyKey]uint64{}}
		t.targets[root] = c
	}
	return c
}

// Add counts a batch of events.
func (t *Tally) Add(batch []event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pid uint32 // events of one process come in runs: look its target up once
	var c *counts
	for i := range batch {
		e := &batch[i]
		if c == nil || e.PID != pid {
			pid, c = e.PID, t.of(e.PID)
		}
		c.calls.Add(e)
		if t.isCopy(e) {
			t.addCopy(c, e)
		}
	}
}

func (t *Tally) of(pid uint32) *counts {
	if c := t.roots[pid]; c != nil {
		return c
	}
	return t.counts(0)
}

// isCopy also takes in a table that grew: an index beyond it is the sign.
func (t *Tally) isCopy(e *event.Event) bool {
	if e.Kind != event.Call {
		return false
	}
	if int(e.Func) >= len(t.copies) {
		t.learn(int(e.Func) + 1)
	}
	return t.copies[e.Func]
}

// learn reads the table anew. Where it still lacks an index, that one is no copy
// for good: a source names a function before its first event.
func (t *Tally) learn(atLeast int) {
	t.table = t.functions()
	t.decode = t.decoder(t.table)
	t.copies = make([]bool, max(atLeast, len(t.table)))
	for i, f := range t.table {
		t.copies[i] = f.Group == string(cuda.Copy)
	}
}

func (t *Tally) addCopy(c *counts, e *event.Event) {
	direction, bytes := t.decode(e)
	if direction == cuda.NoDirection {
		direction = cuda.Unknown
	}
	c.bytes[copyKey{t.table[e.Func].Library, direction}] += bytes
}
