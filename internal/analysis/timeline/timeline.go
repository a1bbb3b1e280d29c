// Package timeline turns a recording into operations and activities: the calls of
// each thread in time order, with every call that another call made put inside it,
// and what the GPUs did, with the call that asked for it. It is a pure function of
// the recording.
package timeline

import (
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// None stands where an index of an Op is missing.
const None int32 = -1

// Timeline is the correlated view of a recording. Its slices are flat and refer
// to each other by index; nothing may change them.
type Timeline struct {
	Rec       *recording.Recording
	From, To  uint64    // ns, CLOCK_MONOTONIC: the window of the recording
	Processes []Process // those of the recording, in its order, then any it does not list
	Threads   []Thread  // ordered by Process, then TID; only threads that made a call
	Ops       []Op      // grouped by thread, in the order of Threads; by Start within one
	Doubts    doubts
	// Index finds the scheduling events and the samples: Index.Threads() and its kin save another pass over the events.
	Index *threads.Index

	// The GPU's side; all of it is empty where the recording has none.
	Seen       []Seen     // when the GPU activity of each process was seen, in the order of Processes
	Devices    []Device   // ordered by the first process that uses it, then ID
	Streams    []Stream   // that have activities, ordered by Process, Context, ID
	Activities []Activity // grouped by device, in the order of Devices; by Start within one
	Copies     []int32    // activities that are copies, but for nodes of graphs, in their order
	Exchanges  []Exchange // copies that calls of NCCL launched, by Activity
	Syncs      []Sync     // by Start
	Edges      []Edge     // what activities waited for outside of their streams: by To
	Overheads  []int32    // events of kind Overhead in the window
	Ranges     []int32    // events of kind Range in the window
	Skipped    []int32    // events of kind Skipped in the window: calls that are no Ops
	// Collectives are events of calls of NCCL in the window. They are no Ops: what they launch counts as calls of the
	// program's.
	Collectives []int32
	Clock       clock
	guesses     []guess // of what was linked by order, by activity
}

// Process is one process of the target. A pid that is used again is another Process.
type Process struct {
	recording.Process
	Listed bool // the recording's process table names it
}

// Thread is one thread of a process with the range of its calls: Ops[First:Last].
type Thread struct {
	Process     int32 // index into Timeline.Processes
	TID         uint32
	Name        string // "" where the recording does not name it
	First, Last int32
}

// Op is one call. Only an op without a parent is an operation of its own: the
// program made it. An op with a parent is how its parent was carried out, and is
// not counted again.
type Op struct {
	Start  uint64 // ns, CLOCK_MONOTONIC, at the entry; it may lie before the window
	Dur    uint64 // ns from entry to return; 0 where Timed is false
	Event  int32  // index into Rec.Events
	Parent int32  // index into Timeline.Ops of the call that made this one, or None
	shape  uint32 // of a launch: see shapeOf
	Func   uint16 // index into Rec.Meta.Functions; always within it
	Timed  bool   // Dur is known
	Via    via    // who saw it
}

// via describes how a call was seen.
type via uint8

// The ways.
const (
	Probe via = iota // by a probe at the function's entry
	Agent            // by a callback of the agent: it has a correlation id, and no result
	Twin             // as Agent, but a probe saw the same call: Parent is that op, and counts
)

// End returns when the call returned, in ns, or when it began where that is not known.
func (o *Op) End() uint64 { return o.Start + o.Dur }

// Outer reports whether the program itself made the call.
func (o *Op) Outer() bool { return o.Parent == None }

// doubts counts what in a recording did not fit together. All are 0 for a sound recording.
type doubts struct {
	Crossed  int // timed calls of one thread that overlap without one holding the other
	Stray    int // calls of a function that the recording's table does not have; they are left out
	Unlisted int // calls of a process that the recording's table does not have; they are kept
	Outside  int // GPU activities outside of the windows in which they were recorded whole; they are left out
}

// maxLength is how long a window may be, ns: 104 days. Only a damaged recording has a longer one, and the times of two
// thousand devices add up without an overflow.
const maxLength = 1 << 53

// Build makes the timeline of rec, which it does not change. It takes O(n log n)
// in the worst case and O(n) where each thread's events are in order, as the
// recorder writes them. An event outside the window is left out. It uses as many CPUs as Go may
// (GOMAXPROCS); what it makes does not depend on how many these are.
func Build(rec *recording.Recording) *Timeline { return buildIn(rec, splitWork) }

// buildIn is Build with another way to split work among goroutines: see splitWork.
func buildIn(rec *recording.Recording, parts func(n int) [][2]int) *Timeline {
	t := &Timeline{
		Rec:  rec,
		From: rec.Meta.From,
		To:   rec.Meta.From + min(rec.Meta.To-min(rec.Meta.From, rec.Meta.To), maxLength),
	}
	b := &builder{
		t:         t,
		parts:     parts,
		processes: newProcesses(t),
		classes:   classify(rec.Meta.Functions),
		decoder:   cuda.NewDecoder(rec.Meta.Functions),
	}
	b.see()
	b.tables = b.newTables()
	gpu := b.read()
	linkers := b.linkers()
	b.connect(linkers)
	if !gpu {
		t.Seen = nil
		return t
	}
	b.arrange(linkers)
	b.finish()
	return t
}

// read makes the ops and the activities, and reports whether there is anything about a GPU.
func (b *builder) read() (gpu bool) {
	events := min(len(b.t.Rec.Events), maxEvents)
	var counts, writes []func()
	for _, part := range b.parts(events) {
		s := newScan(b, part[0], part[1])
		b.scans = append(b.scans, s)
		counts, writes = append(counts, s.count), append(writes, s.write)
	}
	inParallel(counts)
	b.makeThreads()
	b.makeStreams()
	b.tables.size(b.scans)
	b.makeIndex()
	inParallel(writes)
	gpu = b.t.Rec.Meta.GPU != nil
	for _, s := range b.scans {
		b.t.Doubts.Stray += s.doubts.Stray
		b.t.Doubts.Outside += s.doubts.Outside
		b.syncs = append(b.syncs, s.syncs...)
		b.t.Overheads = append(b.t.Overheads, s.over...)
		b.t.Ranges = append(b.t.Ranges, s.ranges...)
		b.t.Skipped = append(b.t.Skipped, s.skipped...)
		b.t.Collectives = append(b.t.Collectives, s.collectives...)
		gpu = gpu || s.gpu
	}
	b.t.Skipped = withoutRepeats(b.t.Rec.Events, b.t.Skipped)
	b.orderThreads()
	b.tables.finish(b.t)
	return gpu
}

// makeIndex gives each scan the places of its scheduling events and samples.
func (b *builder) makeIndex() {
	var counts []threads.Counts
	for _, s := range b.scans {
		counts = append(counts, s.counts)
	}
	whole, parts := threads.Room(b.t.Rec, counts)
	b.t.Index = whole
	for i, s := range b.scans {
		s.index = parts[i]
	}
}

// connect finds the parents of ops and the calls of activities.
func (b *builder) connect(linkers []*linker) {
	var tasks []func()
	nesters := make([]*nester, len(b.t.Threads))
	for i := range nesters {
		nesters[i] = &nester{t: b.t, classes: b.classes, agent: b.t.Rec.Meta.GPU != nil}
		th := &b.t.Threads[i]
		tasks = append(tasks, func() { nesters[i].thread(th.First, th.Last) })
	}
	for _, l := range linkers {
		tasks = append(tasks, l.link)
	}
	inParallel(tasks)
	for _, n := range nesters {
		b.t.Doubts.Crossed += n.crossed
		b.marks = append(b.marks, n.marks)
	}
}

// Early reports whether o began before the window: its time counts there, the op itself does not.
func (t *Timeline) Early(o *Op) bool { return o.Start < t.From }

// Clip returns the part of o that lies in the window, in ns; start == end where none does.
func (t *Timeline) Clip(o *Op) (start, end uint64) {
	start = min(max(o.Start, t.From), t.To)
	return start, max(start, min(o.End(), t.To))
}

// RawEvent returns the event that o was made from.
func (t *Timeline) RawEvent(o *Op) *event.Event { return &t.Rec.Events[o.Event] }
