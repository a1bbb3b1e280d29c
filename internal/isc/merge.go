package isc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
)

// merger makes one recording of stretches that follow on each other. Every stretch numbers its functions, stacks,
// kernels and ranges anew; the merger gives them the numbers of the whole, and drops the
// events that a stretch shares with the one before.
type merger struct {
	meta   record.Meta // of the whole so far
	begun  bool
	known  *numbers
	recent map[event.Event]int // events of before that may come again, and how often
}

// add takes a stretch and returns its new events, ordered by TS, with the numbers of the whole. The events of
// rec may be changed.
func (m *merger) add(rec *record.Recording) []event.Event {
	events := rec.Events
	if !m.begun {
		m.begun, m.meta = true, rec.Meta
		if rec.Meta.GPU != nil {
			gpu := *rec.Meta.GPU
			m.meta.GPU = &gpu
		}
		m.remember(rec.Meta.From, events)
		return events
	}
	if m.known == nil {
		m.known = numbersOf(&m.meta)
	}
	m.renumber(rec)
	events = m.fresh(rec.Meta.From, events)
	m.mergeMeta(&rec.Meta)
	return events
}

// remember notes the events that a stretch which begins before their end will hold again.
func (m *merger) remember(from uint64, events []event.Event) {
	recent := map[event.Event]int{}
	for e, n := range m.recent {
		if e.End() >= from {
			recent[e] = n
		}
	}
	// The next stretch begins overlap before the end of this one, at most.
	last := uint64(0)
	for i := range events {
		last = max(last, events[i].End())
	}
	for i := range events {
		if e := &events[i]; !isOpen(e) && e.End()+maxOverlap >= last {
			recent[identity(e)]++
		}
	}
	m.recent = recent
}

// maxOverlap is by how much a stretch may reach back into the one before it and bring what that had
// not yet, in ns: 3 s. What ended before is taken as written.
const maxOverlap = 3_000_000_000

// identity is an event without what a later look may know better: a stack that has been named meanwhile.
func identity(e *event.Event) event.Event {
	out := *e
	if out.Kind == event.Sample {
		out.Args[0] = 0
	}
	return out
}

// fresh returns the events that no stretch before had.
func (m *merger) fresh(from uint64, events []event.Event) []event.Event {
	out := events[:0:0]
	for i := range events {
		e := &events[i]
		if e.End()+maxOverlap < m.meta.To {
			continue // it ended long before this stretch, which reaches back too far
		}
		if n := m.recent[identity(e)]; n > 0 && !isOpen(e) {
			m.recent[identity(e)] = n - 1
			continue
		}
		out = append(out, events[i])
	}
	// What was taken off comes again with the next stretch, where that reaches back so far.
	m.remember(from, events)
	return out
}

// mergeMeta adds what a stretch says of names and states.
func (m *merger) mergeMeta(next *record.Meta) {
	to := &m.meta
	if next.From > to.To {
		next.Losses = append(slices.Clone(next.Losses), hole(to.To, next.From))
	}
	to.To, to.Version, to.Host, to.Sources = next.To, next.Version, next.Host, next.Sources
	to.Processes = union(to.Processes, next.Processes, processKey, nil)
	slices.SortStableFunc(to.Processes, func(a, b record.Process) int {
		return cmp.Or(cmp.Compare(a.Born, b.Born), cmp.Compare(a.PID, b.PID))
	})
	to.Threads = union(to.Threads, next.Threads, threadKey, nil)
	to.Strangers = union(to.Strangers, next.Strangers, threadKey, nil)
	slices.SortStableFunc(to.Threads, byThread)
	slices.SortStableFunc(to.Strangers, byThread)
	to.Libraries = union(to.Libraries, next.Libraries, func(l record.Library) any {
		return [3]any{l.PID, l.Path, l.Inode}
	}, nil)
	to.Objects = union(to.Objects, next.Objects, func(o record.Object) any { return [2]uint64{uint64(o.PID), o.Inode} }, nil)
	to.Pressure = union(to.Pressure, next.Pressure, func(p record.Pressure) any { return p.TS }, nil)
	slices.SortStableFunc(to.Pressure, func(a, b record.Pressure) int { return cmp.Compare(a.TS, b.TS) })
	to.Losses = union(to.Losses, next.Losses, func(l loss.Loss) any { return [2]string{string(l.Reason), l.Where} }, addLoss)
	m.mergeGPU(next.GPU)
}

// hole is the time between two stretches that nobody kept.
func hole(from, to uint64) loss.Loss {
	return loss.Loss{
		Reason: loss.Overwritten, Count: 1, Where: fmt.Sprintf("at %d ns", from),
		Detail: fmt.Sprintf("%d ms between two stretches were not kept: the daemon's memory was too small, or the writer too slow", (to-from)/1_000_000),
	}
}

func processKey(p record.Process) any { return [2]uint64{uint64(p.PID), p.Born} }

func threadKey(t record.Thread) any { return [2]uint32{t.PID, t.TID} }

func byThread(a, b record.Thread) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
}

// addLoss adds what was lost in two stretches. A state, such as a library that cannot be read, is the
// same in both. Stretches overlap by some percent, so that a sum may count a loss twice and never misses one.
func addLoss(before, now loss.Loss) loss.Loss {
	switch now.Reason {
	case loss.ProbeFailed, loss.ExpensivePoint, loss.LibraryRefused, loss.ThreadUnsampled, loss.PythonRefused, loss.AgentRefused:
		now.Count = max(before.Count, now.Count)
	default:
		now.Count += before.Count
	}
	return now
}

// union adds rows to those before. A row with the key of an earlier one takes its place, joined with it if join is set.
func union[T any](before, now []T, key func(T) any, join func(before, now T) T) []T {
	if before == nil {
		return now
	}
	out := slices.Clone(before)
	at := make(map[any]int, len(out))
	for i, v := range out {
		at[key(v)] = i
	}
	for _, v := range now {
		i, there := at[key(v)]
		switch {
		case !there:
			at[key(v)] = len(out)
			out = append(out, v)
		case join != nil:
			out[i] = join(out[i], v)
		default:
			out[i] = v
		}
	}
	return out
}

func (m *merger) mergeGPU(next *record.GPU) {
	if next == nil {
		return
	}
	g := m.meta.GPU
	if g == nil {
		g = &record.GPU{}
		m.meta.GPU = g
	}
	g.Mode = next.Mode
	g.Agents = union(g.Agents, next.Agents, func(a record.Agent) any { return a.PID }, func(before, now record.Agent) record.Agent {
		now.Dropped += before.Dropped
		return now
	})
	g.Devices = union(g.Devices, next.Devices, func(d record.Device) any { return [2]uint32{d.PID, d.ID} }, nil)
	g.Streams = union(g.Streams, next.Streams, func(s record.Stream) any { return [3]uint32{s.PID, s.Context, s.ID} }, nil)
	g.Windows = joinWindows(g.Windows, next.Windows)
}

// joinWindows adds windows. A window that a stretch cut in two is one again.
func joinWindows(before, now []record.GPUWindow) []record.GPUWindow {
	out := slices.Clone(before)
	for _, w := range now {
		i := slices.IndexFunc(out, func(o record.GPUWindow) bool {
			return o.PID == w.PID && o.Activity == w.Activity && o.Calls == w.Calls && w.From <= o.To && o.From <= w.To
		})
		if i < 0 {
			out = append(out, w)
			continue
		}
		o := &out[i]
		if w.To >= o.To {
			o.To, o.End = w.To, w.End
		}
		o.From, o.Dropped = min(o.From, w.From), max(o.Dropped, w.Dropped)
	}
	slices.SortStableFunc(out, func(a, b record.GPUWindow) int { return cmp.Compare(a.From, b.From) })
	return out
}
