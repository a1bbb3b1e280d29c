// Package daemon runs the privileged part: it follows targets, lets sources probe them, drains the rings into the
// recorder on a timer, and serves recordings. It records and does not analyze. Only sources and the watcher access a
// target.
package daemon

import (
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Source yields events about targets. Follow and Forget are called from one goroutine, the others from any.
//
// A loss with a PID concerns that process alone, and only recordings of its target carry it.
type Source interface {
	// Name is unique and short: "cuda calls".
	Name() string
	// Follow is called when p appeared, may have mapped another file, or replaced
	// its program. It is idempotent. Its error says why p is not covered, or not
	// wholly; the daemon goes on, and calls Follow again at the next change.
	Follow(p *proc.Process) error
	// Forget is called when p has ended.
	Forget(p *proc.Process)
	// State is shown to everyone who owns a target: its Detail must name no process.
	State() recording.Source
	Losses() []loss.Loss
	// Close removes every probe. Targets run on unprobed.
	Close() error
}

// tables is implemented by the source whose events name functions. At most one source implements it, because event.Func
// can index only one table.
type tables interface {
	// Functions returns the table that event.Func indexes; it only grows.
	Functions() []recording.Function
	// Libraries returns the mapped libraries that the source knows of.
	Libraries() []recording.Library
}

// feeder is a source whose events do not come out of rings.
type feeder interface {
	// Feed emits the events since the last call, and once more after Close. held is the time (ns) since which the
	// recorder holds every event. A batch is valid only until emit returns. Feed is called from one goroutine, which is
	// not the drain goroutine.
	Feed(held uint64, emit func(batch []event.Event))
}

// settlingFeeder is a feeder that holds events back until they are complete.
type settlingFeeder interface {
	feeder
	// Settled reports whether every event before to (ns) that will be emitted has been. It may be called from any
	// goroutine.
	Settled(to uint64) bool
}

// helped is a source that has helper processes.
type helped interface {
	// Helpers returns their process ids. It may be called from any goroutine.
	Helpers() []int
}

// stacker is implemented by the source whose events are Samples. At most one source implements it, because Args[0] can
// index only one table of stacks.
type stacker interface {
	// Stacks returns the stacks with these numbers as one tree (Meta.Frames and Meta.Stacks), and for each number its
	// index + 1 in it. A number that is missing there has no stack any more. It may be called from any goroutine.
	Stacks(numbers []uint64) (frames []recording.Frame, stacks []recording.Node, at map[uint64]uint64)
}

// watcher follows processes: proc.Watcher.
type watcher interface {
	Add(pid int) (*proc.Process, error)
	Changes() <-chan proc.Change
	// Found reports processes that have begun to use a GPU; nil: they are to be polled.
	Found() <-chan uint32
	Processes() []proc.Process
	Living(root uint32) []proc.Process
	Threads(pid uint32) []recording.Thread
	Spent(root uint32, cost time.Duration)
	State() recording.Source
	Losses() []loss.Loss
	Close() error
}

// rings buffers events of the kernel until they are drained: ring.Rings.
type rings interface {
	Drain(f func(batch []event.Event)) int
	Fill() float64
	Losses() ([]loss.Loss, error)
	Bytes() int64
	Close() error
}

// counter counts events for metrics. Target is called before the first event of a process.
type counter interface {
	Target(pid, root uint32)
	// Forget is called when a target is withdrawn.
	Forget(root uint32)
	Add(batch []event.Event)
}

// clockFunc returns the current time on the clock of events, in ns.
type clockFunc func() uint64

// since returns the time since t (ns), 0 for a future time.
func since(now, t uint64) time.Duration {
	if t >= now {
		return 0
	}
	return time.Duration(now - t)
}
