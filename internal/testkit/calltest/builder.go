// Package calltest makes recordings of CUDA calls by hand, for the tests of
// whatever reads them: functions are named as CUDA names them, and laid out in
// events as the table of package cuda says.
package calltest

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Start is the beginning of the window of a new Builder, ns.
const Start = 1_000_000_000

// The units of the times given to a Builder, ns.
const (
	Microsecond uint64 = 1_000
	Millisecond uint64 = 1_000_000
	Second      uint64 = 1_000_000_000
)

// Copy kinds: enum cudaMemcpyKind.
const (
	HostToHost uint64 = iota
	HostToDevice
	DeviceToHost
	DeviceToDevice
	Default
)

// Builder is a recordtest.Builder that speaks CUDA. Its calls are made by thread
// TID of process PID, which may be changed between them. It panics on a function
// that the table does not have: that is a mistake in a test.
type Builder struct {
	*recordtest.Builder
	PID, TID uint32
	index    map[string]uint16
}

// New returns a Builder of one second of process recordtest.PID.
func New() *Builder {
	return &Builder{Builder: recordtest.New(), PID: recordtest.PID, TID: recordtest.PID, index: map[string]uint16{}}
}

// As changes who makes the calls that follow.
func (b *Builder) As(pid, tid uint32) *Builder {
	b.PID, b.TID = pid, tid
	return b
}

// Fn returns the index of an exported function, and enters it into the recording's table.
func (b *Builder) Fn(name string) uint16 {
	if i, ok := b.index[name]; ok {
		return i
	}
	row := find(name)
	i := b.Function(recording.Function{
		Name: name, Base: row.Name, Library: string(row.Library), Group: string(row.Group), Timed: row.Timed,
	})
	b.index[name] = i
	return i
}

func find(name string) cuda.Row {
	row, ok := cuda.Match(name)
	if !ok {
		text := fmt.Sprintf("calltest: %s is not in the table of package cuda", name)
		panic(text) //nolint:forbidigo // a mistake in a test
	}
	return row
}

// Do adds a call that succeeded. at is ns after Start; it may be before it. args
// are what the table's slots select, in their order.
func (b *Builder) Do(name string, at int64, dur uint64, args ...uint64) *Builder {
	return b.Fail(name, at, dur, 0, args...)
}

// Fail is Do for a call that returned result.
func (b *Builder) Fail(name string, at int64, dur uint64, result int32, args ...uint64) *Builder {
	row := find(name)
	e := event.Event{
		TS: uint64(Start + at), PID: b.PID, TID: b.TID, Func: b.Fn(name), Kind: event.Call,
	}
	copy(e.Args[:], args)
	if row.Timed {
		e.Dur, e.Ret, e.Flags = dur, result, event.Timed
	}
	if row.Deref && row.Timed {
		e.Flags |= event.Deref
	}
	b.Event(e)
	return b
}

// Kind puts a copy kind where a timed call carries it, beside its last argument.
func Kind(kind, last uint64) uint64 { return kind<<56 | last }

// Launch adds a launch, with the layout that bpf/event.h gives launches.
func (b *Builder) Launch(name string, at int64, kernel, stream uint64, grid, block [3]uint32, shared uint32) *Builder {
	return b.Do(name, at, 0, kernel, stream,
		uint64(grid[0])|uint64(grid[1])<<32|uint64(grid[2])<<48,
		uint64(block[0])|uint64(block[1])<<11|uint64(block[2])<<22|uint64(shared)<<32)
}
