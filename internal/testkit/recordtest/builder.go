// Package recordtest makes small recordings by hand, for the tests of whatever
// reads recordings.
package recordtest

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// PID is the process that a new Builder's recording is about, and the id of its first thread.
const PID = 1234

// Builder makes a Recording. Times are in ns of CLOCK_MONOTONIC. Its methods
// return the Builder where that reads well.
type Builder struct {
	Meta   recording.Meta // may be changed at will until Recording
	events []event.Event
}

// New returns a Builder of a recording of process PID ("python"), which has one
// thread and runs on; the window is one second from 1,000,000,000 ns on.
func New() *Builder {
	const from = 1_000_000_000
	return &Builder{Meta: recording.Meta{
		Schema: recording.SchemaVersion, Version: "0.0.0-test",
		Host:   recording.Host{Kernel: "6.18.0", Arch: "amd64", CPUs: 2},
		Target: PID, From: from, To: 2 * from, WallFrom: 1_700_000_000_000_000_000,
		Processes: []recording.Process{{
			PID: PID, UID: 1000, Comm: "python", Cmdline: "python infer.py", Born: 10_000_000, Probed: 20_000_000,
		}},
		Threads: []recording.Thread{{PID: PID, TID: PID, Name: "python"}},
		Sources: []recording.Source{{Name: "cuda", State: "running"}},
	}}
}

// Window sets the window, in ns.
func (b *Builder) Window(from, to uint64) *Builder {
	b.Meta.From, b.Meta.To = from, to
	return b
}

// Process adds a process.
func (b *Builder) Process(p recording.Process) *Builder {
	b.Meta.Processes = append(b.Meta.Processes, p)
	return b
}

// Thread adds a thread.
func (b *Builder) Thread(pid, tid uint32, name string) *Builder {
	b.Meta.Threads = append(b.Meta.Threads, recording.Thread{PID: pid, TID: tid, Name: name})
	return b
}

// Library adds a library.
func (b *Builder) Library(l recording.Library) *Builder {
	b.Meta.Libraries = append(b.Meta.Libraries, l)
	return b
}

// Loss adds a loss.
func (b *Builder) Loss(l loss.Loss) *Builder {
	b.Meta.Losses = append(b.Meta.Losses, l)
	return b
}

// Function adds a row to the function table and returns its index for Event.Func;
// an empty Base becomes Name.
func (b *Builder) Function(f recording.Function) uint16 {
	if f.Base == "" {
		f.Base = f.Name
	}
	b.Meta.Functions = append(b.Meta.Functions, f)
	return uint16(len(b.Meta.Functions) - 1)
}

// Event adds an event as it is.
func (b *Builder) Event(e event.Event) *Builder {
	b.events = append(b.events, e)
	return b
}

// Call adds a call of f by thread tid of process PID that began at ts and was not timed.
func (b *Builder) Call(tid uint32, f uint16, ts uint64, args ...uint64) *Builder {
	return b.Event(call(tid, f, ts, args))
}

// Timed adds a call of f by thread tid of process PID that began at ts, took dur ns and returned ret.
func (b *Builder) Timed(tid uint32, f uint16, ts, dur uint64, ret int32, args ...uint64) *Builder {
	e := call(tid, f, ts, args)
	e.Dur, e.Ret, e.Flags = dur, ret, event.Timed
	return b.Event(e)
}

func call(tid uint32, f uint16, ts uint64, args []uint64) event.Event {
	e := event.Event{TS: ts, PID: PID, TID: tid, Func: f, Kind: event.Call}
	copy(e.Args[:], args)
	return e
}

// Recording returns what was built: a copy, with the events ordered by TS.
func (b *Builder) Recording() *recording.Recording {
	events := slices.Clone(b.events)
	slices.SortStableFunc(events, func(x, y event.Event) int {
		if x.TS < y.TS {
			return -1
		}
		if x.TS > y.TS {
			return 1
		}
		return 0
	})
	meta := b.Meta
	meta.Processes = slices.Clone(meta.Processes)
	meta.Threads = slices.Clone(meta.Threads)
	meta.Functions = slices.Clone(meta.Functions)
	meta.Libraries = slices.Clone(meta.Libraries)
	meta.Sources = slices.Clone(meta.Sources)
	meta.Losses = slices.Clone(meta.Losses)
	return &recording.Recording{Meta: meta, Events: events}
}
