package archive

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// merger makes one recording of stretches that follow on each other. Every stretch numbers its functions, stacks,
// kernels and ranges anew; the merger gives them the numbers of the whole, and drops the
// events that a stretch shares with the one before.
type merger struct {
	meta   recording.Meta // of the whole so far
	begun  bool
	known  *numbers
	recent map[event.Event]int // events of before that may come again, and how often
}

// add takes a stretch and returns its new events, ordered by TS, with the numbers of the whole. The events of
// rec may be changed.
func (m *merger) add(rec *recording.Recording) []event.Event {
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
	if out.Kind.HasStack() {
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
func (m *merger) mergeMeta(next *recording.Meta) {
	to := &m.meta
	if next.From > to.To {
		next.Losses = append(slices.Clone(next.Losses), hole(to.To, next.From))
	}
	mergeOverhead(to, next)
	to.To, to.Version, to.Host, to.Sources, to.RAS = next.To, next.Version, next.Host, next.Sources, next.RAS
	to.Communicators = union(to.Communicators, next.Communicators,
		func(c recording.Communicator) any { return [2]uint64{uint64(c.PID), c.Address} }, nil)
	to.Driver = mergeDriver(to.Driver, next.Driver)
	to.Processes = union(to.Processes, next.Processes, processKey, nil)
	slices.SortStableFunc(to.Processes, func(a, b recording.Process) int {
		return cmp.Or(cmp.Compare(a.Born, b.Born), cmp.Compare(a.PID, b.PID))
	})
	to.Threads = union(to.Threads, next.Threads, threadKey, nil)
	to.OtherThreads = union(to.OtherThreads, next.OtherThreads, threadKey, nil)
	slices.SortStableFunc(to.Threads, byThread)
	slices.SortStableFunc(to.OtherThreads, byThread)
	to.Libraries = union(to.Libraries, next.Libraries, func(l recording.Library) any {
		return [3]any{l.PID, l.Path, l.Inode}
	}, nil)
	to.Objects = union(to.Objects, next.Objects,
		func(o recording.Object) any { return [2]uint64{uint64(o.PID), o.Inode} }, nil)
	to.Pressure = union(to.Pressure, next.Pressure, func(p recording.Pressure) any { return p.TS }, nil)
	slices.SortStableFunc(to.Pressure, func(a, b recording.Pressure) int { return cmp.Compare(a.TS, b.TS) })
	to.Sensors = union(to.Sensors, next.Sensors,
		func(s recording.Sensor) any { return [2]uint64{s.TS, uint64(s.GPU)} }, nil)
	slices.SortStableFunc(to.Sensors, func(a, b recording.Sensor) int {
		return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(a.GPU, b.GPU))
	})
	to.Requests = union(to.Requests, next.Requests, func(r recording.Request) any { return r.Number }, nil)
	to.Steps = union(to.Steps, next.Steps,
		func(s recording.Step) any { return [4]uint64{s.TS, s.Made, uint64(s.PID), uint64(s.Engine)} }, nil)
	to.EngineRequests = union(to.EngineRequests, next.EngineRequests,
		func(q recording.EngineRequest) any { return q.ID }, nil)
	slices.SortStableFunc(to.Requests, func(a, b recording.Request) int { return cmp.Compare(a.Received, b.Received) })
	to.Losses = union(to.Losses, next.Losses,
		func(l loss.Loss) any { return [2]string{string(l.Reason), l.Where} }, addLoss)
	m.mergeGPU(next.GPU)
}

// mergeOverhead takes over what watching cost at the end, and weighs for how long sources were at which level by the
// stretches' times.
func mergeOverhead(to, next *recording.Meta) {
	if to.Overhead == nil || next.Overhead == nil {
		if next.Overhead != nil {
			to.Overhead = next.Overhead
		}
		return
	}
	before, after := float64(to.To-min(to.To, to.From)), float64(next.To-min(next.To, next.From))
	merged := *next.Overhead
	merged.Sources = slices.Clone(merged.Sources)
	for i := range merged.Sources {
		s := &merged.Sources[i]
		s.Paused = append(slices.Clone(to.Overhead.PausedOf(s.Name)), s.Paused...)
		j := slices.IndexFunc(to.Overhead.Sources, func(o recording.OverheadSource) bool { return o.Name == s.Name })
		if j < 0 || before+after == 0 {
			continue
		}
		s.Shares = weighed(to.Overhead.Sources[j].Shares, before/(before+after), s.Shares, after/(before+after))
	}
	to.Overhead = &merged
}

func weighed(
	a []recording.LevelShare,
	weightA float64,
	b []recording.LevelShare,
	weightB float64,
) []recording.LevelShare {
	var out []recording.LevelShare
	add := func(list []recording.LevelShare, weight float64) {
		for _, l := range list {
			i := slices.IndexFunc(out, func(o recording.LevelShare) bool { return o.Level == l.Level })
			if i < 0 {
				i, out = len(out), append(out, recording.LevelShare{Level: l.Level})
			}
			out[i].Share += weight * l.Share
		}
	}
	add(a, weightA)
	add(b, weightB)
	return out
}

// hole is the time between two stretches that nobody kept.
func hole(from, to uint64) loss.Loss {
	return loss.Loss{
		Reason: loss.Overwritten, Count: 1, Where: fmt.Sprintf("at %d ns", from),
		Detail: fmt.Sprintf(
			"%d ms between two stretches were not kept: the daemon's memory was too small, or the writer too slow",
			(to-from)/1_000_000,
		),
	}
}

func processKey(p recording.Process) any { return [2]uint64{uint64(p.PID), p.Born} }

func threadKey(t recording.Thread) any { return [2]uint32{t.PID, t.TID} }

func byThread(a, b recording.Thread) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
}

// addLoss adds what was lost in two stretches. A state, such as a library that cannot be read, is the
// same in both. Stretches overlap by some percent, so that a sum may count a loss twice and never misses one.
func addLoss(before, now loss.Loss) loss.Loss {
	if now.Reason.IsState() {
		now.Count = max(before.Count, now.Count)
	} else {
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

func (m *merger) mergeGPU(next *recording.GPU) {
	if next == nil {
		return
	}
	g := m.meta.GPU
	if g == nil {
		g = &recording.GPU{}
		m.meta.GPU = g
	}
	g.Mode = next.Mode
	g.Agents = union(
		g.Agents,
		next.Agents,
		func(a recording.Agent) any { return a.PID },
		func(before, now recording.Agent) recording.Agent {
			now.Dropped += before.Dropped
			return now
		},
	)
	g.Devices = union(g.Devices, next.Devices, func(d recording.Device) any { return [2]uint32{d.PID, d.ID} }, nil)
	g.Streams = union(g.Streams, next.Streams,
		func(s recording.Stream) any { return [3]uint32{s.PID, s.Context, s.ID} }, nil)
	g.Windows = joinWindows(g.Windows, next.Windows)
}

// joinWindows adds windows. A window that a stretch cut in two is one again.
func joinWindows(before, now []recording.GPUWindow) []recording.GPUWindow {
	out := slices.Clone(before)
	for _, w := range now {
		i := slices.IndexFunc(out, func(o recording.GPUWindow) bool {
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
	slices.SortStableFunc(out, func(a, b recording.GPUWindow) int { return cmp.Compare(a.From, b.From) })
	return out
}

// mergeDriver adds what the driver said of a later stretch.
func mergeDriver(to, next *recording.Driver) *recording.Driver {
	if to == nil || next == nil {
		return cmp.Or(to, next)
	}
	return &recording.Driver{
		Processes: union(next.Processes, to.Processes, func(p recording.GPUProcess) any {
			return [2]any{p.PID, p.UUID}
		}, nil),
		Xids:  union(to.Xids, next.Xids, func(x recording.Xid) any { return x }, nil),
		Parts: union(next.Parts, to.Parts, func(p recording.GPUPart) any { return p.UUID }, nil),
		Links: union(to.Links, next.Links, func(l recording.GPULink) any { return [2]string{l.A, l.B} }, nil),
	}
}
