package threads

import (
	"cmp"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// none stands where an interval has no event.
const none int32 = -1

// key identifies a thread. A tid that a later process reuses is another thread.
type key struct{ pid, tid uint32 }

// builder holds what all threads need.
type builder struct {
	rec      *recording.Recording
	index    []int32 // scheduling events
	from, to uint64
	lists    []*list // by pid and tid
	names    map[key]string
	lives    map[uint32][]life
	paused   []recording.Pause // in which scheduling was not recorded, in their order
	seen     func() map[key]sighting
	ended    map[uint32]bool // processes that ended before the window
	why      classifier
}

// list is the events of one thread.
type list struct {
	key
	events    []int32 // indexes into rec.Events
	count     int     // of events
	intervals int     // that they make at most
}

// sighting is from the first to the last event of a thread that is not of scheduling, ns.
type sighting struct{ from, to uint64 }

// life is when a process was there.
type life struct{ born, died uint64 }

func newBuilder(x *Index) *builder {
	rec := x.Rec
	b := &builder{
		rec: rec, index: x.OffCPU, from: rec.Meta.From, to: max(rec.Meta.From, rec.Meta.To),
		names: map[key]string{}, lives: map[uint32][]life{}, ended: map[uint32]bool{}, why: newClassifier(rec),
	}
	b.seen = sync.OnceValue(b.seenOtherwise)
	b.paused = inOrder(rec.Meta.Overhead.PausedOf(recording.SchedulingSource))
	for _, t := range rec.Meta.Threads {
		b.names[key{t.PID, t.TID}] = t.Name
	}
	for _, p := range rec.Meta.Processes {
		died := p.Died
		if died == 0 {
			died = math.MaxUint64
		}
		b.lives[p.PID] = append(b.lives[p.PID], life{p.Born, died})
		gone, known := b.ended[p.PID]
		b.ended[p.PID] = died < b.from && (gone || !known)
	}
	b.deal()
	return b
}

// deal gives each thread its events. They are counted first: a full recorder has more than a million, and lists that
// grow take several times their memory. Who they are of is kept meanwhile: they lie far apart, and each is fetched from
// memory anew.
func (b *builder) deal() {
	owner := b.owners()
	for _, l := range b.lists {
		l.events = make([]int32, 0, l.count)
	}
	for at, i := range b.index {
		if n := owner[at]; n != none {
			b.lists[n].events = append(b.lists[n].events, i)
		}
	}
	slices.SortFunc(b.lists,
		func(x, y *list) int { return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.tid, y.tid)) })
}

// owners makes the lists of threads, and returns the place of its own for each scheduling event; none outside of the
// window. found is by pid << 32 | tid: maps are fastest with such keys.
func (b *builder) owners() []int32 {
	out, found, last := make([]int32, len(b.index)), map[uint64]int32{}, none
	for at, i := range b.index {
		e := &b.rec.Events[i]
		if out[at] = none; e.TS > b.to || end(e) < b.from || b.ended[e.PID] {
			continue
		}
		if last == none || b.lists[last].key != (key{e.PID, e.TID}) {
			k := uint64(e.PID)<<32 | uint64(e.TID)
			known, ok := found[k]
			if last = known; !ok {
				last = int32(len(b.lists))
				found[k] = last
				b.lists = append(b.lists, &list{key: key{e.PID, e.TID}})
			}
		}
		out[at] = last
		b.lists[last].count++
		b.lists[last].intervals += intervalsOf(e)
	}
	return out
}

// intervalsOf returns how many intervals an event makes at most: what it says, and the
// running time before it.
func intervalsOf(e *event.Event) int {
	if e.Flags&(event.Mark|event.Preempted) != 0 {
		return 2
	}
	return 3
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

// maker builds the intervals of one thread from left to right.
type maker struct {
	*builder
	t     *Thread
	at    uint64 // everything before is covered
	alive bool
	cpu   int     // that it runs on; -1: not known
	sums  []int32 // events that are sums
	pause int     // the first of paused that is not over
}

// threads builds all threads, on all CPUs.
func (b *builder) threads() []Thread {
	out := make([]Thread, len(b.lists))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(len(b.lists), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(out)); i = next.Add(1) - 1 {
				out[i] = b.thread(b.lists[i])
			}
		})
	}
	workers.Wait()
	return out
}

func (b *builder) thread(l *list) Thread {
	t := Thread{PID: l.pid, TID: l.tid, Name: b.names[l.key], Reasons: map[Reason]uint64{}}
	t.Intervals = make([]Interval, 0, l.intervals+2) // and the time after the last event
	t.CPUs = map[uint16]uint64{}
	m := &maker{builder: b, t: &t, at: b.from, alive: !b.bornLater(l.pid), cpu: -1}
	events := b.ordered(l.events)
	if m.alive && len(events) > 0 {
		m.arrive(b.rec.Events[events[0]].TS)
	}
	for _, i := range events {
		m.take(i)
	}
	m.depart()
	m.rest(m.lastBreath())
	m.alive = false
	m.rest(b.to)
	m.total()
	return t
}

// arrive leaves out the time up to the last pause before a thread was first seen: it can have been made in the pause.
func (m *maker) arrive(first uint64) {
	last := -1
	for i, p := range m.paused {
		if p.To > m.from && p.From < first {
			last = i
		}
	}
	if last < 0 {
		return
	}
	if seen, ok := m.seen()[key{m.t.PID, m.t.TID}]; ok && seen.from < m.paused[last].From {
		m.arrive(seen.from)
		return
	}
	m.cover(min(m.paused[last].To, first), Absent, None, none)
	m.pause = last
}

// depart leaves out the time from a pause on after which a thread was not seen: it can have ended in the pause. One
// that waits or runs at the end of the recording has an event of that.
func (m *maker) depart() {
	for _, p := range m.paused[min(m.pause, len(m.paused)):] {
		if p.To <= m.at {
			continue
		}
		if m.seen()[key{m.t.PID, m.t.TID}].to <= p.To {
			m.rest(p.From)
			m.alive = false
			return
		}
	}
}

// seenOtherwise finds threads by their calls and samples.
func (b *builder) seenOtherwise() map[key]sighting {
	out := map[key]sighting{}
	for i := range b.rec.Events {
		e := &b.rec.Events[i]
		if e.Kind == event.OffCPU {
			continue
		}
		k := key{e.PID, e.TID}
		at, ok := out[k]
		if !ok {
			at.from = e.TS
		}
		to := e.TS
		if e.Kind == event.Call && e.Flags&event.Timed != 0 {
			to = end(e)
		}
		out[k] = sighting{from: min(at.from, e.TS), to: max(at.to, to)}
	}
	return out
}

// bornLater reports whether the process was made in the window: then its threads are
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
	order := func(i, j int32) int { return cmp.Or(cmp.Compare(all[i].TS, all[j].TS), cmp.Compare(open(i), open(j))) }
	if !slices.IsSortedFunc(events, order) {
		slices.SortStableFunc(events, order)
	}
	sent := uint64(math.MaxUint64) // the last beginning of sums that have come: there is one of each reason
	return slices.CompactFunc(events, func(i, before int32) bool {
		x, y := &all[i], &all[before]
		if isSum(y) && y.Flags&event.Open == 0 {
			sent = y.TS
		}
		if isSum(x) {
			return x.Flags&event.Open != 0 && x.TS == sent
		}
		return x.TS == y.TS && x.Flags&event.Open != 0 && x.Flags&event.Mark == y.Flags&event.Mark &&
			(x.Flags&event.Mark == 0 || x.Func == y.Func)
	})
}

func isSum(e *event.Event) bool {
	return e.Flags&event.Mark != 0 && event.OffCPUMark(e.Func) == event.Short
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

// inOrder sorts pauses, which anybody can have written.
func inOrder(list []recording.Pause) []recording.Pause {
	byFrom := func(x, y recording.Pause) int { return cmp.Compare(x.From, y.From) }
	if slices.IsSortedFunc(list, byFrom) {
		return list
	}
	return slices.SortedFunc(slices.Values(list), byFrom)
}

// rest covers the time up to t with what the thread did where nothing else is known: in pauses nothing is.
func (m *maker) rest(t uint64) {
	for ; m.pause < len(m.paused) && m.paused[m.pause].From < t; m.pause++ {
		p := m.paused[m.pause]
		m.between(p.From)
		m.cover(min(p.To, t), Absent, None, none)
		if p.To > t {
			return
		}
	}
	m.between(t)
}

// between covers the time up to t, in which scheduling was recorded.
func (m *maker) between(t uint64) {
	state := Running
	if !m.alive {
		state = Absent
	} else if end := min(t, m.to); m.cpu >= 0 && end > m.at {
		m.t.CPUs[uint16(m.cpu)] += end - m.at
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
	m.cpu = int(left(e)) // it was there since it took it
	m.rest(e.TS)
	m.cpu = int(took(e))
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
		m.cpu = int(took(e))
	case event.Waited:
		m.rest(e.TS)
		m.alive = true
		m.cover(end(e), Runnable, None, i)
		m.cpu = int(took(e))
	case event.Died:
		m.rest(e.TS)
		m.alive = false
	case event.Runs:
		if e.Flags&event.Open != 0 {
			m.cpu = int(left(e)) // it has been there since it came back
		}
		m.rest(e.TS)
		m.cpu = int(left(e))
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
	if left(e) != took(e) {
		m.t.Switches.Migrations++
		if a, b := m.node(left(e)), m.node(took(e)); a != b && a >= 0 && b >= 0 {
			m.t.Switches.Crossings++
		}
	}
}

// left and took return the CPU that an interval began on, and the one that it ended on.
func left(e *event.Event) uint16 { return uint16(e.Ret) }
func took(e *event.Event) uint16 { return uint16(e.Ret >> 16) }

// node returns the NUMA node of a CPU; -1: not known.
func (b *builder) node(cpu uint16) int {
	if nodes := b.rec.Meta.Host.NodeOf; int(cpu) < len(nodes) {
		return nodes[cpu]
	}
	return -1
}

// total adds the intervals up, and takes out of the running time what sums say.
func (m *maker) total() {
	var reasons [Reasons]uint64
	for i := range m.t.Intervals {
		iv := &m.t.Intervals[i]
		m.t.Totals[iv.State] += iv.Dur()
		if iv.State == Blocked {
			reasons[iv.Reason] += iv.Dur()
		}
	}
	for r, ns := range reasons {
		if ns > 0 {
			m.t.Reasons[Reason(r)] = ns
		}
	}
	if len(m.sums) == 0 {
		return
	}
	ran := newRunning(m.t.Intervals)
	for _, i := range m.sums {
		m.sum(&m.rec.Events[i], ran)
	}
	ran.mark()
}

// sum spreads a sum evenly over its stretch, as far as that lies in the window, and
// never takes more than the time for which the thread ran there.
func (m *maker) sum(e *event.Event, ran *running) {
	left, whole := min(ran.within(e.TS, end(e)), m.t.Totals[Running]), end(e)-e.TS
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
		if one, _, known := event.ShortOf(e); known && part.state == Blocked && ns > 0 {
			if m.t.Summed.Reasons == nil {
				m.t.Summed.Reasons = map[Reason]uint64{}
			}
			m.t.Summed.Reasons[m.why.reason(&one)] += ns
		}
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
