package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what counts as a limit in front of the engine.
const (
	aboveLimit = 0.02        // share of the engine's time in which it has more requests: their times overlap by a hair
	leastHeld  = uint64(5e6) // ns that a request is held
)

// limit is what lets only so many requests through to the engine at a time: a semaphore, a lock, a pool of threads.
type limit struct {
	through int            // requests
	holds   int            // at a time, at most
	spans   timeline.Spans // the engine has so many requests
	room    []uint64       // of each request, ns for which it is held and the engine's queue is empty
	queued  []uint64       // likewise, and requests wait in the engine's queue as well
	until   []uint64       // of each request, when it is held no longer; 0: it is not
}

// level is how many requests an engine has from a time on.
type level struct {
	at uint64
	n  int
}

// levelsOf says how many requests the engine has, from the message that asks it for one to that one's last token.
func levelsOf(meta *recording.Meta) []level {
	type change struct {
		at uint64
		by int
	}
	var changes []change
	for i := range meta.EngineRequests {
		q := &meta.EngineRequests[i]
		if q.Asked == 0 {
			continue
		}
		end := q.Last
		if q.Finish == "" {
			end = meta.To
		}
		changes = append(changes, change{q.Asked, 1}, change{max(q.Asked, end), -1})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	out, n := make([]level, 0, len(changes)), 0
	for _, c := range changes {
		n += c.by
		if k := len(out); k > 0 && out[k-1].at == c.at {
			out[k-1].n = n
			continue
		}
		out = append(out, level{c.at, n})
	}
	return out
}

// mostOf returns how many requests the engine has at most, but for a hair of its time.
func mostOf(levels []level) int {
	times, total := map[int]uint64{}, uint64(0)
	for i := range len(levels) - 1 {
		if n := levels[i].n; n > 0 {
			times[n] += levels[i+1].at - levels[i].at
			total += levels[i+1].at - levels[i].at
		}
	}
	most := 0
	for n := range times {
		most = max(most, n)
	}
	for above := times[most]; most > 1 && float64(above) <= aboveLimit*float64(total); above += times[most] {
		most--
	}
	return most
}

// limitOf finds a limit in front of the engine; nil: there is none. With one, requests are held while the engine has as
// many as ever, and each goes to it when another has left it. One that waits for something else is not kept to that.
func (s *Summary) limitOf(meta *recording.Meta, list []told) *limit {
	levels := levelsOf(meta)
	l := &limit{through: mostOf(levels)}
	if l.through == 0 || s.MaxConcurrency <= l.through {
		return nil
	}
	var at []timeline.Span
	for i := range len(levels) - 1 {
		if levels[i].n >= l.through {
			at = append(at, timeline.Span{From: levels[i].at, To: levels[i+1].at})
		}
	}
	l.spans = timeline.Join(at)
	waiting := waitingOf(meta.Steps)
	before, during, held, inTurn := uint64(0), uint64(0), 0, 0
	n := len(list)
	l.room, l.queued, l.until = make([]uint64, n), make([]uint64, n), make([]uint64, n)
	for i := range list {
		from, to := list[i].row.Received, list[i].q.Asked
		if to < from {
			continue
		}
		all := l.spans.Both(timeline.Spans{{From: from, To: to}})
		before, during = before+to-from, during+all.Total()
		if all.Total() < leastHeld || 2*all.Total() < to-from {
			continue
		}
		held++
		if k, _ := slices.BinarySearchFunc(levels, to, func(x level, at uint64) int { return cmp.Compare(x.at, at) }); levels[k].n <= l.through {
			inTurn++
		}
		l.queued[i] = all.Both(waiting).Total()
		l.room[i], l.until[i] = all.Total()-l.queued[i], all[len(all)-1].To
	}
	if held < fewestHeld || float64(during) < full*float64(before) || float64(inTurn) < full*float64(held) {
		return nil
	}
	l.holds = mostHeld(list, l.until)
	return l
}

// mostHeld returns how many requests are held at a time, at most.
func mostHeld(list []told, until []uint64) int {
	var begins, ends []uint64
	for i := range list {
		if until[i] > 0 {
			begins, ends = append(begins, list[i].row.Received), append(ends, until[i])
		}
	}
	slices.Sort(begins)
	slices.Sort(ends)
	most, over := 0, 0
	for i, at := range begins {
		for over < len(ends) && ends[over] <= at {
			over++
		}
		most = max(most, i+1-over)
	}
	return most
}

// waitingOf returns when an engine that made steps said that requests waited in its queue.
func waitingOf(steps []recording.Step) timeline.Spans {
	var out []timeline.Span
	for i := 1; i < len(steps); i++ {
		if a, b := &steps[i-1], &steps[i]; a.Stats && a.Waiting > 0 && b.TS > a.TS && b.TS-a.TS <= maxStep {
			out = append(out, timeline.Span{From: a.TS, To: b.TS})
		}
	}
	return timeline.Join(out)
}

// lowBatch is the time for which requests are held in front of an engine that would take more; nil: its limit is none,
// for the API server is at work meanwhile.
func (l *limit) lowBatch(list []told, ran ran) *Delay {
	d := &Delay{Cause: cause.LowBatch, Batch: l.through, Waiting: l.holds}
	spans, length := map[uint32][]timeline.Span{}, map[uint32]uint64{}
	for i := range list {
		if l.until[i] > 0 {
			of := l.spans.Both(timeline.Spans{{From: list[i].row.Received, To: l.until[i]}})
			spans[list[i].row.PID] = append(spans[list[i].row.PID], of...)
		}
	}
	for pid, of := range spans {
		length[pid] = timeline.Join(of).Total()
	}
	pid, starved := d.ran(spans, ran)
	// What a thread waits for a CPU counts as running, and says nothing of what it would do with one.
	free := float64(length[pid]) - float64(starved.Total())
	if d.Thread == "" || d.Running*float64(length[pid])-float64(starved.Total()) >= idleAPI*free {
		return nil
	}
	d.Place = ""
	d.without(firsts(list, l.room))
	return d.sum(slices.Clone(l.room))
}
