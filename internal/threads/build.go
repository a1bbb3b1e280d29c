package threads

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// none stands where an interval has no event.
const none int32 = -1

// key tells threads apart. A tid that a later process uses again is another thread.
type key struct{ pid, tid uint32 }

// builder holds what all threads need.
type builder struct {
	rec      *record.Recording
	from, to uint64
	events   map[key][]int32 // indexes into rec.Events, by TS
	keys     []key
	names    map[key]string
	lives    map[uint32][]life
	why      classifier
}

// life is when a process was there.
type life struct{ born, died uint64 }

func newBuilder(rec *record.Recording) *builder {
	b := &builder{
		rec: rec, from: rec.Meta.From, to: max(rec.Meta.From, rec.Meta.To),
		events: map[key][]int32{}, names: map[key]string{}, lives: map[uint32][]life{}, why: newClassifier(rec),
	}
	for _, t := range rec.Meta.Threads {
		b.names[key{t.PID, t.TID}] = t.Name
	}
	for _, p := range rec.Meta.Processes {
		died := p.Died
		if died == 0 {
			died = math.MaxUint64
		}
		b.lives[p.PID] = append(b.lives[p.PID], life{p.Born, died})
	}
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.OffCPU || e.TS > b.to || end(e) < b.from {
			continue
		}
		k := key{e.PID, e.TID}
		if b.events[k] == nil {
			b.keys = append(b.keys, k)
		}
		b.events[k] = append(b.events[k], int32(i))
	}
	slices.SortFunc(b.keys, func(a, c key) int { return cmp.Or(cmp.Compare(a.pid, c.pid), cmp.Compare(a.tid, c.tid)) })
	return b
}

// end returns when an interval ended; one of nonsensical length never does.
func end(e *event.Event) uint64 { return plus(e.TS, e.Dur) }

func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

// maker makes the intervals of one thread from left to right.
type maker struct {
	*builder
	t     *Thread
	at    uint64 // everything before is covered
	alive bool
	sums  []int32 // events that are sums
}

func (b *builder) thread(k key, events []int32) Thread {
	t := Thread{PID: k.pid, TID: k.tid, Name: b.names[k], Reasons: map[Reason]uint64{}}
	m := &maker{builder: b, t: &t, at: b.from, alive: !b.bornLater(k.pid)}
	for _, i := range b.ordered(events) {
		m.take(i)
	}
	m.rest(m.lastBreath())
	m.alive = false
	m.rest(b.to)
	m.total()
	return t
}

// bornLater says whether the process was made in the window: then its threads are
// there from their first event on.
func (b *builder) bornLater(pid uint32) bool {
	lives := b.lives[pid]
	return len(lives) > 0 && !slices.ContainsFunc(lives, func(l life) bool { return l.born <= b.from })
}

// ordered sorts the events by their beginning, and leaves out a row of what was going on at
// the end of the window where the event of the same beginning has come as well.
func (b *builder) ordered(events []int32) []int32 {
	all := b.rec.Events
	open := func(i int32) int {
		if all[i].Flags&event.Open != 0 {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(events, func(i, j int32) int {
		return cmp.Or(cmp.Compare(all[i].TS, all[j].TS), cmp.Compare(open(i), open(j)))
	})
	return slices.CompactFunc(events, func(i, before int32) bool {
		x, y := &all[i], &all[before]
		return x.TS == y.TS && x.Flags&event.Open != 0 && x.Flags&event.Mark == y.Flags&event.Mark &&
			(x.Flags&event.Mark == 0 || x.Func == y.Func)
	})
}

// lastBreath returns until when the thread can have run at most: its process's end.
func (m *maker) lastBreath() uint64 {
	last := m.to
	for _, l := range m.lives[m.t.PID] {
		if l.died < m.to && l.died >= m.at {
			last = l.died
		}
		if l.died >= m.to {
			return m.to
		}
	}
	return last
}

// rest covers the time up to t with what the thread did where nothing else is known.
func (m *maker) rest(t uint64) {
	state := Running
	if !m.alive {
		state = Absent
	}
	m.cover(t, state, None, none)
}

// cover appends an interval up to t.
func (m *maker) cover(t uint64, state State, why Reason, event int32) {
	if t = min(t, m.to); t <= m.at {
		return
	}
	if n := len(m.t.Intervals); n > 0 && event == none {
		if last := &m.t.Intervals[n-1]; last.State == state && last.Wait == none {
			last.To, m.at = t, t
			return
		}
	}
	m.t.Intervals = append(m.t.Intervals, Interval{From: m.at, To: t, State: state, Reason: why, Wait: event})
	m.at = t
}

func (m *maker) take(i int32) {
	e := &m.rec.Events[i]
	if e.Flags&event.Mark != 0 {
		m.mark(i, e)
		return
	}
	m.rest(e.TS)
	m.alive = true
	m.count(e)
	if e.Flags&event.Preempted != 0 {
		m.cover(end(e), Runnable, None, i)
		return
	}
	woken := end(e)
	if e.Args[0] != 0 {
		woken = min(woken, plus(e.TS, e.Args[0]))
	}
	m.cover(woken, Blocked, m.why.reason(e), i)
	m.cover(end(e), Runnable, None, i)
}

func (m *maker) mark(i int32, e *event.Event) {
	switch event.OffCPUMark(e.Func) {
	case event.Born:
		m.alive = false
		m.rest(e.TS)
		m.alive = true
		m.cover(end(e), Runnable, None, i)
	case event.Waited:
		m.rest(e.TS)
		m.alive = true
		m.cover(end(e), Runnable, None, i)
	case event.Died:
		m.rest(e.TS)
		m.alive = false
	case event.Runs:
		m.rest(e.TS)
		m.alive = true
	case event.Short:
		m.sums = append(m.sums, i)
	}
}

// count counts a switch where it happened in the window.
func (m *maker) count(e *event.Event) {
	if e.TS < m.from {
		return
	}
	if e.Flags&event.Preempted != 0 {
		m.t.Switches.Involuntary++
	} else {
		m.t.Switches.Voluntary++
	}
	if left, took := uint16(e.Ret), uint16(e.Ret>>16); left != took {
		m.t.Switches.Migrations++
	}
}

// total adds the intervals up, and takes out of the running time what sums say.
func (m *maker) total() {
	for i := range m.t.Intervals {
		iv := &m.t.Intervals[i]
		m.t.Totals[iv.State] += iv.Dur()
		if iv.State == Blocked {
			m.t.Reasons[iv.Reason] += iv.Dur()
		}
	}
	for _, i := range m.sums {
		m.sum(&m.rec.Events[i])
	}
}

// sum spreads a sum evenly over its stretch, as far as that lies in the window, and
// never takes more than the time for which the thread ran there.
func (m *maker) sum(e *event.Event) {
	ran := uint64(0)
	for i := range m.t.Intervals {
		iv := &m.t.Intervals[i]
		if iv.State == Running && iv.To > e.TS && iv.From < end(e) {
			iv.Mixed = true
			ran += min(iv.To, end(e)) - max(iv.From, e.TS)
		}
	}
	left, whole := min(ran, m.t.Totals[Running]), end(e)-e.TS
	inside := min(end(e), m.to) - min(max(e.TS, m.from), m.to)
	for _, part := range []struct {
		ns    uint64
		state State
		sum   *uint64
	}{{e.Args[0], Blocked, &m.t.Summed.Blocked}, {e.Args[1], Runnable, &m.t.Summed.Runnable}} {
		ns := min(left, share(part.ns, inside, whole))
		left -= ns
		m.t.Totals[Running] -= ns
		m.t.Totals[part.state] += ns
		*part.sum += ns
	}
	m.t.Summed.Count = plus(m.t.Summed.Count, share(e.Args[2], inside, whole))
}

// share returns n * part / whole.
func share(n, part, whole uint64) uint64 {
	if whole == 0 || part >= whole {
		return n
	}
	high, low := bits.Mul64(n, part)
	quotient, _ := bits.Div64(high, low, whole)
	return quotient
}
