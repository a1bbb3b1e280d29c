package threads

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// The window of most tests, in ns.
const from, to = 1000, 2000

const (
	blocked   = event.Timed
	preempted = event.Timed | event.Preempted
	mark      = event.Mark
	open      = event.Open | event.Timed
)

// off is an off-CPU event of thread 7 of process 7.
func off(ts, dur uint64, flags event.Flags, fn uint16, args ...uint64) event.Event {
	e := event.Event{TS: ts, Dur: dur, PID: 7, TID: 7, Kind: event.OffCPU, Flags: flags, Func: fn}
	copy(e.Args[:], args)
	return e
}

func recordingOf(events ...event.Event) *recording.Recording {
	slices.SortStableFunc(events, func(a, b event.Event) int { return int(int64(a.TS - b.TS)) })
	return &recording.Recording{
		Meta: recording.Meta{
			From:      from,
			To:        to,
			Host:      recording.Host{Arch: "amd64"},
			Processes: []recording.Process{{PID: 7}},
			Threads:   []recording.Thread{{PID: 7, TID: 7, Name: "main"}},
		},
		Events: events,
	}
}

// shape is what tests compare of an interval.
type shape struct {
	from, to uint64
	state    State
	reason   Reason
}

func shapes(t *testing.T, events ...event.Event) []shape {
	t.Helper()
	threads := Build(recordingOf(events...))
	if len(threads) != 1 {
		t.Fatalf("%d threads, want 1", len(threads))
	}
	var out []shape
	for _, iv := range threads[0].Intervals {
		out = append(out, shape{iv.From, iv.To, iv.State, iv.Reason})
	}
	return out
}

func TestPartition(t *testing.T) {
	const read, futex, none = 0, 202, event.NoSyscall
	for name, c := range map[string]struct {
		events []event.Event
		want   []shape
	}{
		"blocked, then waiting for a CPU": {
			[]event.Event{off(1200, 300, blocked, futex, 100)},
			[]shape{
				{1000, 1200, Running, None},
				{1200, 1300, Blocked, Futex},
				{1300, 1500, Runnable, None},
				{1500, 2000, Running, None},
			},
		},
		"preempted": {
			[]event.Event{off(1200, 300, preempted, none)},
			[]shape{{1000, 1200, Running, None}, {1200, 1500, Runnable, None}, {1500, 2000, Running, None}},
		},
		"no wake-up seen": {
			[]event.Event{off(1200, 300, blocked, futex)},
			[]shape{{1000, 1200, Running, None}, {1200, 1500, Blocked, Futex}, {1500, 2000, Running, None}},
		},
		"over both edges": {
			[]event.Event{off(10, 5000, blocked, futex)},
			[]shape{{1000, 2000, Blocked, Futex}},
		},
		"a wake-up before the window": {
			[]event.Event{off(10, 1100, blocked, futex, 500)},
			[]shape{{1000, 1110, Runnable, None}, {1110, 2000, Running, None}},
		},
		"open, and the same that has ended": {
			[]event.Event{off(1900, 100, open, futex), off(1900, 50, blocked, futex)},
			[]shape{{1000, 1900, Running, None}, {1900, 1950, Blocked, Futex}, {1950, 2000, Running, None}},
		},
		"born and gone": {
			[]event.Event{off(1200, 10, mark|event.Timed, uint16(event.Born)), off(1800, 0, mark, uint16(event.Died))},
			[]shape{
				{1000, 1200, Absent, None},
				{1200, 1210, Runnable, None},
				{1210, 1800, Running, None},
				{1800, 2000, Absent, None},
			},
		},
		"gone, and the number used again": {
			[]event.Event{off(1300, 0, mark, uint16(event.Died)), off(1500, 10, mark|event.Timed, uint16(event.Born))},
			[]shape{
				{1000, 1300, Running, None},
				{1300, 1500, Absent, None},
				{1500, 1510, Runnable, None},
				{1510, 2000, Running, None},
			},
		},
		"on a CPU all the time": {
			[]event.Event{off(2000, 0, mark|event.Open, uint16(event.Runs), 5)},
			[]shape{{1000, 2000, Running, None}},
		},
		"overlapping intervals": {
			[]event.Event{off(1100, 400, blocked, futex), off(1200, 400, preempted, none)},
			[]shape{
				{1000, 1100, Running, None},
				{1100, 1500, Blocked, Futex},
				{1500, 1600, Runnable, None},
				{1600, 2000, Running, None},
			},
		},
		"a time that overflows": {
			[]event.Event{off(1100, ^uint64(0), blocked, futex, ^uint64(0))},
			[]shape{{1000, 1100, Running, None}, {1100, 2000, Blocked, Futex}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := shapes(t, c.events...); !slices.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestNotBornBeforeItsProcess(t *testing.T) {
	rec := recordingOf(off(1500, 100, blocked, 202))
	rec.Meta.Processes[0].Born, rec.Meta.Processes[0].Died = 1400, 1900
	iv := Build(rec)[0].Intervals
	if iv[0].State != Absent || iv[0].To != 1500 || iv[len(iv)-1].State != Absent || iv[len(iv)-1].From != 1900 {
		t.Errorf("intervals %+v", iv)
	}
}

// What is left of a process that ended before the window says nothing about the window,
// unless another one has its number.
func TestThreadsEndedBeforeTheWindow(t *testing.T) {
	rec := recordingOf(off(900, 1100, open|event.Preempted, event.NoSyscall))
	rec.Meta.Processes[0].Died = 950
	if got := Build(rec); got != nil {
		t.Errorf("threads %+v", got)
	}
	rec.Meta.Processes = append(rec.Meta.Processes, recording.Process{PID: 7, Born: 1100})
	if got := Build(rec); len(got) != 1 {
		t.Errorf("%d threads of the second process", len(got))
	}
}

func TestSumsComeOutOfTheRunningTime(t *testing.T) {
	short := func(ts, dur uint64, args ...uint64) event.Event {
		return off(ts, dur, mark|event.Timed, uint16(event.Short), args...)
	}
	for name, c := range map[string]struct {
		event            event.Event
		blocked, waiting uint64
	}{
		"inside":                {short(1200, 200, 100, 50, 9), 100, 50},
		"half of it outside":    {short(1900, 200, 100, 50, 10), 50, 25},
		"more than there is":    {short(1200, 200, 500, 500, 9), 200, 0},
		"a length that is wild": {short(1200, ^uint64(0), 100, 50, 9), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			th := Build(recordingOf(c.event))[0]
			if th.Totals[Blocked] != c.blocked || th.Totals[Runnable] != c.waiting ||
				th.Totals[Running] != to-from-c.blocked-c.waiting {
				t.Errorf("totals %v, want %d blocked and %d runnable", th.Totals, c.blocked, c.waiting)
			}
			if th.Summed.Blocked != c.blocked || th.Summed.Runnable != c.waiting || !th.Intervals[0].Mixed {
				t.Errorf("summed %+v, intervals %+v", th.Summed, th.Intervals)
			}
		})
	}
}

func TestSwitches(t *testing.T) {
	moved := off(1300, 10, preempted, event.NoSyscall, 0, 9)
	moved.Ret = 1 << 16
	th := Build(recordingOf(off(900, 200, preempted, event.NoSyscall), moved, off(1500, 10, blocked, 202)))[0]
	if th.Switches != (switches{Voluntary: 1, Involuntary: 1, Migrations: 1}) {
		t.Errorf("switches %+v: the one before the window does not count", th.Switches)
	}
}

func TestNothingRecorded(t *testing.T) {
	if got := Build(recordingOf(event.Event{TS: 1500, Kind: event.Call, PID: 7, TID: 7})); got != nil {
		t.Errorf("threads %+v without scheduling events", got)
	}
}

// check fails unless every thread's intervals and totals are an exact partition of the window.
func check(t *testing.T, rec *recording.Recording) {
	t.Helper()
	window := max(rec.Meta.From, rec.Meta.To) - rec.Meta.From
	for _, th := range Build(rec) {
		at, sum := rec.Meta.From, uint64(0)
		for _, iv := range th.Intervals {
			if iv.From != at || iv.To <= iv.From {
				t.Fatalf("thread %d: [%d, %d] does not follow %d", th.TID, iv.From, iv.To, at)
			}
			at = iv.To
		}
		for _, ns := range th.Totals {
			sum += ns
		}
		if at-rec.Meta.From != window || sum != window {
			t.Fatalf("thread %d: intervals cover %d and totals %d of %d ns", th.TID, at-rec.Meta.From, sum, window)
		}
		var reasons uint64
		for _, ns := range th.Reasons {
			reasons += ns
		}
		if reasons+th.Summed.Blocked != th.Totals[Blocked] {
			t.Fatalf("thread %d: reasons add up to %d of %d ns", th.TID, reasons, th.Totals[Blocked])
		}
		waits := NewWaits(rec)
		for _, iv := range th.Intervals {
			if w, ok := waits.Of(iv); ok && (w.Woken < w.From || w.Woken > w.To) {
				t.Fatalf("woken outside of the wait: %+v", w)
			}
		}
	}
}

// Whatever the events say, the partition is exact.
func TestAnyEventsGiveAPartition(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	times := []uint64{0, 1, 999, 1000, 1001, 1500, 1999, 2000, 2001, 1 << 40, 1<<64 - 1}
	pick := func() uint64 {
		if random.IntN(3) == 0 {
			return times[random.IntN(len(times))]
		}
		return 900 + random.Uint64N(1200)
	}
	for range 3000 {
		var events []event.Event
		for range random.IntN(12) {
			e := off(pick(), pick(), event.Flags(random.IntN(256)),
				[]uint16{0, 1, 2, 3, 4, 5, 202, event.NoSyscall, event.Stopped}[random.IntN(9)], pick(),
				pick(), pick(), pick())
			e.TID = 7 + uint32(random.IntN(2))
			events = append(events, e)
		}
		rec := recordingOf(events...)
		if random.IntN(4) == 0 {
			rec.Meta.Processes[0].Born, rec.Meta.Processes[0].Died = pick(), pick()
		}
		check(t, rec)
	}
}

func FuzzPartition(f *testing.F) {
	f.Add(uint64(1200), uint64(300), uint64(100), uint8(1), uint16(202), uint64(1400), uint64(10), uint8(5), uint16(0))
	fuzzing.Run(
		f,
		func(t *testing.T, ts, dur, arg uint64, flags uint8, fn uint16, ts2, dur2 uint64, flags2 uint8, fn2 uint16) {
			check(t, recordingOf(off(ts, dur, event.Flags(flags), fn, arg, arg, arg, arg),
				off(ts2, dur2, event.Flags(flags2), fn2, arg)))
		},
	)
}

// TestPausesAreNotRunning: while scheduling is not recorded nothing is known of a thread, unless an event reaches over
// the pause.
func TestPausesAreNotRunning(t *testing.T) {
	rec := recordingOf(off(900, 200, open, 202), off(1300, 100, blocked, 202), off(1700, 100, blocked, 202))
	rec.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
		Name:   recording.SchedulingSource,
		Paused: []recording.Pause{{From: 1750, To: 1760}, {From: 1100, To: 1200}, {From: 1900, To: 3000}},
	}}}
	var got []shape
	for _, iv := range Build(rec)[0].Intervals {
		got = append(got, shape{from: iv.From, to: iv.To, state: iv.State})
	}
	want := []shape{
		{from: 1000, to: 1100, state: Blocked},
		{from: 1100, to: 1200, state: Absent},
		{from: 1200, to: 1300, state: Running},
		{from: 1300, to: 1400, state: Blocked},
		{from: 1400, to: 1700, state: Running},
		{from: 1700, to: 1800, state: Blocked},
		{from: 1800, to: 1900, state: Running},
		{from: 1900, to: 2000, state: Absent},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestMadeInAPause: a thread of which nothing is known from before a pause may have been made in it; it did not run
// all the time before.
func TestMadeInAPause(t *testing.T) {
	for name, c := range map[string]struct {
		before []event.Event
		want   uint64 // ns of running
	}{
		"made in it":      {nil, 100},
		"sampled":         {[]event.Event{{TS: 1010, PID: 7, TID: 7, Kind: event.Sample}}, 500},
		"sampled between": {[]event.Event{{TS: 1200, PID: 7, TID: 7, Kind: event.Sample}}, 400},
		"another":         {[]event.Event{{TS: 1010, PID: 7, TID: 8, Kind: event.Sample}}, 100},
	} {
		rec := recordingOf(append(c.before, off(1600, 400, blocked, 202))...)
		rec.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
			Name:   recording.SchedulingSource,
			Paused: []recording.Pause{{From: 1100, To: 1150}, {From: 1450, To: 1500}, {From: 1650, To: 1660}},
		}}}
		if got := Build(rec)[0].Totals[Running]; got != c.want {
			t.Errorf("%s: it ran for %d ns, want %d", name, got, c.want)
		}
	}
}

// TestEndedInAPause: a thread of which nothing is known after a pause has ended in it, and one that is first seen
// shortly before the end of a pause, when recording begins again, was made in it.
func TestEndedInAPause(t *testing.T) {
	for name, c := range map[string]struct {
		events []event.Event
		want   uint64 // ns of running
	}{
		"ended in it":       {[]event.Event{off(1050, 20, blocked, 202)}, 80},
		"sampled behind it": {[]event.Event{{TS: 1300, PID: 7, TID: 7, Kind: event.Sample}, off(1050, 20, blocked, 202)}, 880},
		"in a call behind it": {[]event.Event{
			off(1050, 20, blocked, 202), {TS: 1090, Dur: 700, PID: 7, TID: 7, Kind: event.Call, Flags: event.Timed},
		}, 880},
		"made in it": {[]event.Event{off(1195, 805, blocked, 202)}, 0},
	} {
		rec := recordingOf(c.events...)
		rec.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
			Name: recording.SchedulingSource, Paused: []recording.Pause{{From: 1100, To: 1200}},
		}}}
		if got := Build(rec)[0].Totals[Running]; got != c.want {
			t.Errorf("%s: it ran for %d ns, want %d", name, got, c.want)
		}
	}
}
