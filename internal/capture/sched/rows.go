package sched

import (
	"errors"
	"slices"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Complete returns what has no event yet at the time to (ns): a row for each thread
// that was off its CPU then, or on it, and the sums that are not sent yet. Whoever
// calls it drains the rings afterwards, so that whatever ended before to is an event:
// a thread that ran again in between has both, with the same beginning. So have threads that were off their CPU when
// the source was turned off: these rows end then.
func (s *Source) Complete(to uint64) []event.Event {
	s.mu.Lock()
	s.sweep()
	rows := slices.Clone(s.kept)
	s.mu.Unlock()
	return append(rows, s.rows(to)...)
}

// rows returns a row for each thread that was off its CPU at the time to (ns), or on it, and the sums that are not sent
// yet.
func (s *Source) rows(to uint64) []event.Event {
	var rows []event.Event
	more, err := s.kernel.unseen() // first: a state that is read later is as it was then, or has another beginning
	err = errors.Join(err, s.kernel.threads(func(t *bpf.SchedThreadState) { rows = appendRows(rows, t, more, to) }))
	if err != nil {
		s.failed.Add(1)
	}
	return rows
}

func appendRows(rows []event.Event, t *bpf.SchedThreadState, more unseen, to uint64) []event.Event {
	row := event.Event{PID: t.Tgid, TID: t.Tid, Kind: event.OffCPU}
	if t.ShortCount > 0 && t.ShortFrom < to {
		sum := row
		sum.TS, sum.Dur = t.ShortFrom, sumEnd(t, to)-t.ShortFrom
		sum.Func, sum.Flags = uint16(event.Short), event.Mark|event.Timed|event.Open
		for i := range t.Sums {
			if one := &t.Sums[i]; one.Count > 0 {
				sum.Ret, sum.Args = int32(one.What), [4]uint64{one.Blocked, one.Runnable, uint64(one.Count), one.File}
				rows = append(rows, sum)
			}
		}
	}
	switch {
	case t.Out != 0 && t.Out <= to:
		return append(rows, absence(row, t, more, to)...)
	case t.In <= to:
		return append(rows, runs(row, t.In, uint32(t.Cpu), to))
	}
	return rows // it left and came back since then: that is in the rings
}

// absence returns the rows of a thread that was not seen to take a CPU again before to.
func absence(row event.Event, t *bpf.SchedThreadState, more unseen, to uint64) []event.Event {
	woken, in, ok := more.of(t, to)
	if !ok {
		return []event.Event{off(row, t, to)}
	}
	known := *t
	if woken != 0 {
		known.Woken, known.Who, known.WokenFlags = woken, 0, 0
	}
	if in == 0 {
		return []event.Event{off(row, &known, to)}
	}
	cpu := more[t.Tid].Cpu
	was := off(row, &known, in)
	was.Ret = int32(uint32(t.Cpu) | cpu<<16)
	return []event.Event{was, runs(row, in, cpu, to)}
}

// runs returns the row of a thread that ran at the time to, and since in.
func runs(row event.Event, in uint64, cpu uint32, to uint64) event.Event {
	row.TS, row.Func, row.Flags, row.Args[0] = to, uint16(event.Runs), event.Mark|event.Open, in
	row.Ret = int32(cpu | cpu<<16)
	return row
}

// sumEnd returns until when a sum reaches at most.
func sumEnd(t *bpf.SchedThreadState, to uint64) uint64 {
	if t.Out > t.ShortFrom {
		return min(to, t.Out)
	}
	return min(to, max(t.In, t.ShortFrom))
}

// off returns the row of a thread that was off its CPU at the time to.
func off(row event.Event, t *bpf.SchedThreadState, to uint64) event.Event {
	row.TS, row.Dur = t.Out, to-t.Out
	row.Func, row.Ret = t.Func, int32(uint32(t.Cpu)|uint32(t.Cpu)<<16)
	row.Flags = event.Flags(t.Flags) | event.Timed | event.Open
	if row.Flags&event.Mark != 0 {
		return row
	}
	row.Args = [4]uint64{0, t.Who, t.Args[0], t.Args[1]}
	switch {
	case t.Woken == 0:
		if row.Flags&event.Preempted == 0 {
			row.Args[1] = 0
		}
	case t.Woken <= to:
		row.Args[0] = max(1, t.Woken-min(t.Woken, t.Out))
		row.Flags |= event.Flags(t.WokenFlags)
	default:
		row.Args[1] = 0 // it was woken after the window
	}
	return row
}
