package timeline

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// A timeline is made in two passes over the events, both by stretches of them in parallel: the first counts
// for each thread, stream and table of ids, so that the second can write each row to its
// place. Both read the events alone, and no map: threads and streams come out of small tables in front of maps.

// scan goes over a stretch of the events.
type scan struct {
	b           *builder
	first, last int // of Rec.Events
	from, to    uint64

	near     [256]*slot // the threads of late, by a hash
	slots    []*slot    // in the order in which they came
	byKey    map[slotKey]*slot
	byThread map[int32]*slot

	nearStreams [256]*streamSlot
	streams     []*streamSlot // in the order in which they came
	byStream    map[streamSlotKey]*streamSlot

	tallies []tally // of the id tables
	index   threads.Index
	counts  threads.Counts // of what goes into index
	gpu     bool           // there are events about a GPU
	doubts  doubts
	syncs   []int32 // events
	over    []int32 // likewise
	ranges  []int32
	skipped []int32

	collectives []int32 // likewise
	next        []int32 // by device: where its next activity goes
}

// slotKey names a thread for as long as its pid means one process.
type slotKey struct {
	pid, tid uint32
	from     uint64
}

// slot is what a scan knows of one thread.
type slot struct {
	slotKey
	to       uint64 // ns, inclusive, as from: how long the pid means this process
	process  int32  // None until makeThreads, where the recording does not list it
	thread   int32
	calls    int32
	next     int32 // where its next call goes
	table    tableAt
	unsorted bool
	start    uint64 // of its last call
	dur      uint64
}

func newScan(b *builder, first, last int) *scan {
	return &scan{
		b: b, first: first, last: last, from: b.t.From, to: b.t.To,
		byKey: map[slotKey]*slot{}, byStream: map[streamSlotKey]*streamSlot{},
		tallies: make([]tally, len(b.tables.list)),
	}
}

// count is the first pass.
func (s *scan) count() {
	events := s.b.t.Rec.Events[s.first:s.last]
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == event.Call && s.talks(e):
			if s.inside(e) {
				s.collectives = append(s.collectives, int32(s.first+i))
			}
		case e.Kind == event.Call:
			s.countCall(e)
		case e.Kind == event.Sample || e.Kind == event.OffCPU:
			s.counts.Add(e)
		case e.Kind >= event.Kernel && e.Kind <= event.Set:
			s.gpu = true
			s.countActivity(e)
		case e.Kind > event.Set && e.Kind <= event.Range:
			s.gpu = true
			s.other(int32(s.first+i), e)
		case e.Kind == event.Skipped:
			s.other(int32(s.first+i), e)
		}
	}
}

// talks reports whether a call is one of NCCL's.
func (s *scan) talks(e *event.Event) bool {
	return int(e.Func) < len(s.b.classes) && s.b.classes[e.Func].talks
}

// inside reports whether an event touches the window of the recording.
func (s *scan) inside(e *event.Event) bool { return e.TS <= s.to && clampedEnd(e) >= s.from }

func (s *scan) countCall(e *event.Event) {
	if !s.inside(e) {
		return
	}
	if int(e.Func) >= len(s.b.classes) {
		s.doubts.Stray++
		return
	}
	l := s.slot(e)
	l.calls++
	if e.Flags&event.Correlated != 0 {
		if table := s.b.tables.at(&l.table, l.process, e.TS); table != None {
			s.tallies[table].add(uint32(e.Ret), s.b.classes[e.Func].starts)
		}
	}
}

func (s *scan) countActivity(e *event.Event) {
	if !s.inside(e) {
		return
	}
	k := s.stream(e)
	if _, _, ok := s.clip(k, e); !ok {
		s.doubts.Outside++
		return
	}
	k.count++
}

// other sorts out what is neither a call nor an activity.
func (s *scan) other(i int32, e *event.Event) {
	if !s.inside(e) {
		return
	}
	switch e.Kind {
	case event.Sync:
		s.syncs = append(s.syncs, i)
	case event.Overhead:
		s.over = append(s.over, i)
	case event.Range:
		s.ranges = append(s.ranges, i)
	case event.Skipped:
		if int(e.Func) < len(s.b.classes) {
			s.skipped = append(s.skipped, i)
		}
	}
}

// slot returns the thread of a call.
func (s *scan) slot(e *event.Event) *slot {
	near := &s.near[(e.TID^e.TID>>8^e.PID*31)&255]
	if l := *near; l != nil && l.tid == e.TID && l.pid == e.PID && e.TS >= l.from && e.TS <= l.to {
		return l
	}
	process, from, to := s.b.processes.find(e.PID, e.TS)
	k := slotKey{e.PID, e.TID, from}
	l := s.byKey[k]
	if l == nil {
		l = &slot{slotKey: k, to: to, process: process}
		s.byKey[k] = l
		s.slots = append(s.slots, l)
	}
	*near = l
	return l
}

// write is the second pass.
func (s *scan) write() {
	s.byThread = make(map[int32]*slot, len(s.slots))
	for _, l := range s.slots {
		s.byThread[l.thread] = l
	}
	events := s.b.t.Rec.Events[s.first:s.last]
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == event.Call && !s.talks(e):
			s.writeCall(int32(s.first+i), e)
		case e.Kind == event.Sample || e.Kind == event.OffCPU:
			s.index.Take(int32(s.first+i), e)
		case e.Kind >= event.Kernel && e.Kind <= event.Set:
			s.writeActivity(int32(s.first+i), e)
		}
	}
}

func (s *scan) writeCall(i int32, e *event.Event) {
	if !s.inside(e) || int(e.Func) >= len(s.b.classes) {
		return
	}
	l := s.slot(e)
	at := l.next
	l.next++
	o := &s.b.t.Ops[at]
	o.Start, o.Dur = e.TS, clampedEnd(e)-e.TS
	o.Event, o.Parent, o.shape = i, None, shapeOf(e)
	o.Func, o.Timed, o.Via = e.Func, e.Flags&event.Timed != 0, viaOf(e)
	if o.Start < l.start || o.Start == l.start && o.Dur > l.dur && at > s.b.t.Threads[l.thread].First {
		l.unsorted = true
	}
	l.start, l.dur = o.Start, o.Dur
	if o.Via == Agent {
		if table := s.b.tables.at(&l.table, l.process, e.TS); table != None {
			s.b.tables.list[table].put(uint32(e.Ret), at)
		}
	}
}

// writeActivity writes an activity to its place. Its correlation id stands where the op will.
func (s *scan) writeActivity(i int32, e *event.Event) {
	if !s.inside(e) {
		return
	}
	k := s.stream(e)
	from, to, ok := s.clip(k, e)
	if !ok {
		return
	}
	at := s.next[k.device]
	s.next[k.device]++
	a := &s.b.t.Activities[at]
	a.Start, a.End = from, to
	a.Event, a.Op, a.Stream = i, int32(uint32(e.Args[0])), k.stream
	a.Kind, a.Graph = activityKind(e.Kind-event.Kernel), e.Args[0]>>32 != 0
	if k.list != nil {
		k.list[k.next] = at
		k.next++
	}
}

// clip returns the part of an activity that lies in the recording and in the window in which it was seen.
func (s *scan) clip(k *streamSlot, e *event.Event) (start, end uint64, ok bool) {
	return k.clip(max(e.TS, s.from), min(clampedEnd(e), s.to))
}

// clampedEnd is e.End without the overflow that a damaged event could cause.
func clampedEnd(e *event.Event) uint64 {
	if e.Flags&event.Timed == 0 {
		return e.TS
	}
	return e.TS + min(e.Dur, math.MaxUint64-e.TS)
}

func viaOf(e *event.Event) via {
	if e.Flags&event.Correlated != 0 {
		return Agent
	}
	return Probe
}

// minEventsPerTask is how many events a goroutine should have: with fewer, starting it costs more than it gains.
const minEventsPerTask = 1 << 15

// inParallel runs tasks on as many CPUs as there are, beginning with the first ones, and waits for all.
// What a task writes must not depend on the others, so that the result is the same on one CPU.
func inParallel(tasks []func()) {
	var next atomic.Int64
	var workers sync.WaitGroup
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(tasks)); i = next.Add(1) - 1 {
			tasks[i]()
		}
	}
	for range min(len(tasks), runtime.GOMAXPROCS(0)) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
}

// splitWork splits [0, n) into parts for the available CPUs; there is at least one part, which may be empty.
func splitWork(n int) [][2]int {
	parts := max(1, min(runtime.GOMAXPROCS(0), n/minEventsPerTask))
	out := make([][2]int, parts)
	for i := range out {
		out[i] = [2]int{n * i / parts, n * (i + 1) / parts}
	}
	return out
}
