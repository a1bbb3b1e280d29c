package overhead

import "math"

// Target is what the governor sees of a target: a process with its children.
type Target interface {
	PID() uint32
	// Runs returns what a source did in all its processes so far.
	Runs(Source) Runs
	// CPU returns the CPU time of its processes so far, ns.
	CPU() uint64
	// Threads returns those that do most, at a moment.
	Threads() []Thread
	// Progress counts what it does again and again.
	Progress() *Progress
	// Disturbed reports whether something that comes and goes by itself slowed it down within [from, to] (ns): a window
	// of GPU records.
	Disturbed(from, to uint64) bool
}

// Thread is what the kernel accounts of one thread, so far.
type Thread struct {
	TID      uint32
	CPU      uint64 // ns
	Switches uint64 // times that it left its CPU because it waited for something
}

// yardstick is by what a target's progress is measured: repeated calls. How often its threads are switched does not
// tell: a server that is slower finds more to do when it wakes, and is switched less often for the same work.
type yardstick struct {
	ok   bool // false: it cannot be
	key  Key
	each uint64 // ns: of stretches in which it is even enough
	pace bool   // progress by time tells; else CPU time by progress, because the target waits for others
	seen uint64 // ns: when it was last good enough
}

// counters are what is read of a target at the borders of slices.
type counters struct {
	at, cpu uint64
	ns      []uint64   // Runs by source
	levels  [][]uint64 // Runs by source and level; nil: not known
}

// slice is a stretch of time at certain levels.
type slice struct {
	from, to counters
	on       []bool // by source: not reduced
}

// pair is two neighbouring slices that wait for their events to be drained.
type pair struct {
	a, b    slice
	effects []effect
	apart   bool
}

// Bounds of what is remembered.
const (
	maxRows    = 240
	maxPending = 16
	rowsLast   = 15 * 60 * 1_000_000_000 // ns: a cost that was measured longer ago may have changed
)

// dated is a contrast with its time.
type dated struct {
	contrast
	at uint64
}

// watched is what the governor knows of one target.
type watched struct {
	target    Target
	yard      yardstick
	rows      []dated
	pending   []pair
	last      counters
	threads   map[uint32]Thread
	calls     map[uint32]uint64 // by thread: ns in calls so far
	inCalls   map[uint32]uint64 // likewise, since the look before the last
	predicted []float64         // by source: share of its time, at the level in force
	lower     [][]float64       // likewise, since the last look, by level; nil: not known
	floor     []float64         // likewise in slices in which the source is reduced
	known     int               // looks at predicted
	basis     float64           // sum of predicted when a pair of slices was last compared, or a level changed
	undecided bool
	apart     bool // it pays too much, and it is not known yet for which source
	verdict   verdict
	checked   uint64  // ns: when measuring last came to an end
	load      float64 // CPUs that it used between the last two looks
	waits     float64 // share of that time for which a thread waited in calls, without a CPU
	idle      bool
	seen      bool   // in the present look
	since     uint64 // ns: when it was first looked at
}

func (w *watched) read(now uint64, sources []*governed) counters {
	c := counters{
		at: now, cpu: w.target.CPU(), ns: make([]uint64, len(sources)), levels: make([][]uint64, len(sources)),
	}
	for i, s := range sources {
		runs := w.target.Runs(s.Source)
		c.ns[i], c.levels[i] = runs.NS, runs.At
	}
	return c
}

// leastCPU is the share of a CPU that a target is taken to use at least where its budget is at stake: what costs next
// to nothing may be much of the CPU time of one that is nearly idle. Below idleCPU it does nothing.
const leastCPU, idleCPU = 0.25, 0.01

// predict notes what sources took of the target's time since the last look, from what their programs counted.
func (w *watched) predict(now counters, sources []*governed, others float64) {
	defer func() { w.last = now }()
	took := float64(now.at - w.last.at)
	if w.last.at == 0 || took < 1e8 || now.cpu < w.last.cpu {
		return
	}
	cpu := float64(now.cpu-w.last.cpu) / took
	w.idle = cpu < idleCPU
	for i := range sources {
		payers := w.payers(sources[i], cpu, others)
		ns := float64(now.ns[i] - min(now.ns[i], w.last.ns[i]))
		share := ns / took / payers
		w.lower[i] = nil
		for level, ns := range now.levels[i] {
			if before := w.last.levels[i]; before != nil {
				w.lower[i] = append(w.lower[i], float64(ns-min(ns, before[level]))/took/payers)
			}
		}
		if w.known == 0 || share > 2*w.predicted[i] || share < w.predicted[i]/2 {
			w.predicted[i] = share // it has changed: no mean of both
		} else {
			w.predicted[i] += 0.3 * (share - w.predicted[i])
		}
	}
	w.load = cpu
	if w.known == 0 { // a level has changed, not what the target does
		w.basis = max(w.basis, total(w.predicted))
	}
	w.known++
}

// payers is how many CPUs' time pays for a source: that of all threads where they pay alike (samples come
// by CPU time), that of as many as make the calls or the switches where few make most. For one that waits for its GPU
// in calls, what it pays is a share of that time too: a step takes as long as both.
func (w *watched) payers(s *governed, cpu, makers float64) float64 {
	if !s.even {
		cpu = min(cpu, max(1, makers))
	}
	return max(w.busy(cpu), leastCPU)
}

// busy is for how much of a CPU's time a target that uses so much of it gets on: it runs, or waits in calls.
func (w *watched) busy(cpu float64) float64 { return max(cpu, min(1, cpu+w.waits)) }

// idleness is how many times the target's own time leastCPU is, where it is more.
func (w *watched) idleness() float64 {
	if w.load == 0 {
		return 1
	}
	return max(1, leastCPU/max(w.busy(w.load), idleCPU))
}

// noteCalls notes for how long threads were in calls since the last look, and for how much of that the one that waited
// longest had no CPU: what is more than it ran.
func (w *watched) noteCalls(took float64, before map[uint32]Thread) {
	calls := w.target.Progress().inCalls()
	w.inCalls, w.waits = make(map[uint32]uint64, len(calls)), 0
	for tid, ns := range calls {
		waited := ns - min(ns, w.calls[tid])
		w.inCalls[tid] = waited
		t, b := w.threads[tid], before[tid]
		if ran := t.CPU - min(t.CPU, b.CPU); tid != 0 && took > 0 && waited > ran {
			w.waits = max(w.waits, min(1, float64(waited-ran)/took))
		}
	}
	w.calls = calls
}

// makers is among how many threads their switches since the last look are spread (the inverse of Simpson's index).
func (w *watched) makers(threads []Thread) float64 {
	sum, square := 0.0, 0.0
	next := make(map[uint32]Thread, len(threads))
	for _, t := range threads {
		next[t.TID] = t
		before, ok := w.threads[t.TID]
		if !ok {
			continue
		}
		n := float64(t.Switches - min(t.Switches, before.Switches))
		sum, square = sum+n, square+n*n
	}
	w.threads = next
	if square == 0 {
		return 1
	}
	return sum * sum / square
}

// notePair keeps two slices until their events have come.
func (w *watched) notePair(p pair) {
	if len(w.pending) < maxPending {
		w.pending = append(w.pending, p)
	}
}

// settle compares the pairs whose events have come.
func (w *watched) settle(now uint64) {
	for len(w.pending) > 0 && w.pending[0].b.to.at+undrained <= now {
		p := w.pending[0]
		w.pending = w.pending[1:]
		if d, ok := w.compare(&p); ok {
			w.rows = append(w.rows, dated{contrast{p.effects, p.apart, d}, p.b.to.at})
			w.basis = total(w.predicted)
		}
	}
	old := 0
	for old < len(w.rows) && (len(w.rows)-old > maxRows || now-w.rows[old].at > rowsLast) {
		old++
	}
	w.rows = w.rows[old:]
}

// forget drops what was measured while the target did something else: by prediction it pays far more now.
func (w *watched) forget(budget float64) {
	if now := total(w.predicted); len(w.rows) > 0 && now > 2*w.basis && now > budget/2 {
		w.rows, w.checked = nil, 0
	}
}

func total(shares []float64) float64 {
	sum := 0.0
	for _, s := range shares {
		sum += s
	}
	return sum
}

// together returns what sources cost together by the pairs that switched just these, at these levels.
func (w *watched) together(of []column) interval {
	var added []float64
	for i := range w.rows {
		if r := &w.rows[i]; r.together(of) {
			added = append(added, r.effects[0].sign*r.slower)
		}
	}
	return estimate(added)
}

// alone returns what a source costs at a level.
func (w *watched) alone(of column) interval {
	var added []float64
	for i := range w.rows {
		if v, ok := w.rows[i].alone(of); ok {
			added = append(added, v)
		}
	}
	return estimate(added)
}

// compare returns how much slower the target was in the first slice of a pair: the log of the ratio.
func (w *watched) compare(p *pair) (slower float64, ok bool) {
	if w.target.Disturbed(p.a.from.at, p.b.to.at) {
		return 0, false
	}
	a, aOK := w.rate(&p.a)
	b, bOK := w.rate(&p.b)
	if !aOK || !bOK {
		return 0, false
	}
	slower = math.Log(b / a)
	if !w.yard.pace && w.load > 0 {
		slower *= w.load / max(w.busy(w.load), leastCPU) // it is of CPU time
	}
	return slower, true
}

// rate returns progress by time, or by CPU time.
func (w *watched) rate(s *slice) (float64, bool) {
	took := float64(s.to.at - s.from.at)
	rate, ok := w.target.Progress().rateOf(w.yard.key, s.from.at, s.to.at)
	if !ok || w.yard.pace {
		return rate, ok
	}
	cpu := float64(s.to.cpu-min(s.to.cpu, s.from.cpu)) / took
	if cpu < idleCPU {
		return 0, false
	}
	return rate / cpu, true
}

// busyShare is for how much of its time a thread must run or be in calls to be one that gets on as fast as it can: only
// then is it slower by what it pays.
const busyShare = 0.7

// choose looks by what the target's progress can be measured now. What was measured by another yardstick stays: all
// tell by which share the target was slower. One that is still good enough is kept.
func (w *watched) choose(now uint64, took float64, before map[uint32]Thread) {
	next := w.find(now, took, before)
	if !next.ok && w.yard.ok && now-w.yard.seen < longestPause {
		return
	}
	next.seen = now
	w.yard = next
}

// longestPause is for how long a yardstick that is gone is waited for, ns.
const longestPause = 5_000_000_000

func (w *watched) find(now uint64, took float64, before map[uint32]Thread) yardstick {
	busy := func(tid uint32) bool {
		t, ran := w.threads[tid]
		b, known := before[tid]
		return ran && known && float64(t.CPU-min(t.CPU, b.CPU)+w.inCalls[tid]) >= busyShare*took
	}
	if best, ok := w.target.Progress().steadiest(now, func(k Key) bool { return k.TID != 0 && busy(k.TID) }); ok {
		return yardstick{ok: true, key: best.key, each: best.each, pace: true}
	}
	if best, ok := w.target.Progress().steadiest(now, func(k Key) bool { return k.TID == 0 }); ok {
		return yardstick{ok: true, key: best.key, each: best.each}
	}
	return yardstick{}
}
