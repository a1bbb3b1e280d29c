package gap

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// key tells threads apart, as events name them.
type key struct{ pid, tid uint32 }

// thread is all that is known of one thread.
type thread struct {
	key
	index          int32
	recorder       bool // it is there because the program is watched
	ops            calls
	intervals      []threads.Interval // nil: scheduling was not recorded, or not of this thread
	samples        []sample           // when the thread ran, by time
	traced         []sample           // stacks of imported recordings, by time: each holds from there on
	stacks         *threads.Stacks    // of its waits
	launchInterval uint64             // ns: see walker.launchInterval
	captures       []capture          // by time; nil: none

	// Where the last search ended: neighbouring gaps are neighbours here too.
	opAt, intervalAt, sampleAt int
	asked                      asked // see letGo
}

// sample is where a running thread was. Each thread has its own in a row: in the recording they lie among those of all
// others.
type sample struct {
	at    uint64 // ns
	stack uint32 // index + 1 into Meta.Stacks; 0: none
}

// gather collects the threads of a recording, ordered by PID and TID.
func (w *walker) gather(scheduled []threads.Thread) {
	w.byKey, w.owners = map[key]int32{}, make([]*thread, len(w.t.Threads))
	for i := range w.t.Threads {
		th := &w.t.Threads[i]
		own := w.thread(key{w.t.Processes[th.Process].PID, th.TID})
		w.owners[i] = own
		own.ops.add(w.t, th)
	}
	for i := range scheduled {
		th := w.thread(key{scheduled[i].PID, scheduled[i].TID})
		th.intervals, th.recorder = scheduled[i].Intervals, scheduled[i].IsRecorder()
	}
	w.gatherSamples()
	byStart := func(x, y int32) int { return cmp.Compare(w.t.Ops[x].Start, w.t.Ops[y].Start) }
	for _, th := range w.threads {
		th.ops.sort(byStart)
		th.stacks = w.waits.Stacks(th.pid, th.tid)
		th.launchInterval = w.launchInterval(&th.ops)
		th.captures = w.capturesOf(&th.ops)
	}
}

// thread returns the thread of a key, which it makes where there is none yet.
func (w *walker) thread(k key) *thread {
	if i, ok := w.byKey[k]; ok {
		return w.threads[i]
	}
	th := &thread{key: k, index: int32(len(w.threads)), asked: asked{first: 1}}
	w.byKey[k] = th.index
	w.threads = append(w.threads, th)
	return th
}

// known returns a thread of the target of which something is known, else nil.
func (w *walker) known(k key) *thread {
	if i, ok := w.byKey[k]; ok {
		return w.threads[i]
	}
	return nil
}

// gatherSamples gives each thread the samples that were taken while it ran. They are counted first: lists that grow
// take several times their memory.
func (w *walker) gatherSamples() {
	w.give(w.t.Index.Samples, func(th *thread) *[]sample { return &th.samples })
	w.give(w.t.Index.Traced, func(th *thread) *[]sample { return &th.traced })
}

// give gives each thread its own of some samples.
func (w *walker) give(all []threads.Sample, list func(th *thread) *[]sample) {
	owners := make([]int32, len(all))
	var last *thread
	for i := range all {
		s := &all[i]
		if owners[i] = None; s.TS > w.t.To || s.TS < w.t.From {
			continue
		}
		if k := (key{s.PID, s.TID}); last == nil || last.key != k {
			last = w.thread(k)
		}
		owners[i] = last.index
	}
	counts := make([]int, len(w.threads))
	for _, owner := range owners {
		if owner != None {
			counts[owner]++
		}
	}
	for i, n := range counts {
		if n > 0 {
			*list(w.threads[i]) = make([]sample, 0, n)
		}
	}
	for i, owner := range owners {
		if owner != None {
			mine := list(w.threads[owner])
			*mine = append(*mine, sample{at: all[i].TS, stack: all[i].Stack})
		}
	}
}

// maxLaunchInterval is the time that a framework is granted from one launch to the next, ns: PyTorch's eager
// mode launches every 22 µs (45,000 a second, H200), and half as fast on a slow host.
const maxLaunchInterval = 50_000

// launchIntervalBin is the width of a bin of launchInterval's histogram, ns.
const launchIntervalBin = 250

// launchInterval returns how long a thread takes from one launch to the next where nothing makes it wait
// between them: the median, at most maxLaunchInterval. That much time after a synchronization is launching, not work of
// the program.
func (w *walker) launchInterval(ops *calls) uint64 {
	var bins [maxLaunchInterval/launchIntervalBin + 1]uint32
	pairs, last := uint32(0), None
	for k := range ops.count {
		i := ops.at(k)
		o := &w.t.Ops[i]
		switch w.classes[o.Func].kind {
		case launchCall:
			if last != None {
				bins[min((o.Start-w.t.Ops[last].Start)/launchIntervalBin, maxLaunchInterval/launchIntervalBin)]++
				pairs++
			}
			last = i
		case quickCall:
		default:
			last = None
		}
	}
	sum := uint32(0)
	for i, n := range bins {
		if sum += n; 2*uint64(sum) >= uint64(pairs) && pairs > 0 {
			return min(uint64(i+1)*launchIntervalBin, maxLaunchInterval)
		}
	}
	return maxLaunchInterval
}

// opFrom returns the place of the first call in th.ops that ends after a time.
func (w *walker) opFrom(th *thread, ts uint64) int {
	if n, ok := step(th.ops.count, th.opAt, func(i int) bool { return w.op(th, i).End() <= ts }); ok {
		th.opAt = n
		return n
	}
	th.opAt = threads.Gallop(th.ops.count, th.opAt, func(i int) bool { return w.op(th, i).End() <= ts })
	return th.opAt
}

// step is threads.Gallop for what is at the hint or just after it, as it nearly always is: the compiler puts it, and
// before, in its place.
func step(n, hint int, before func(int) bool) (int, bool) {
	if hint > 0 && !before(hint-1) {
		return 0, false
	}
	for i := hint; i < hint+2; i++ {
		if i >= n || !before(i) {
			return min(i, n), true
		}
	}
	return 0, false
}

// intervalFrom returns the place of the first interval that ends after a time.
func (th *thread) intervalFrom(ts uint64) int {
	if n, ok := step(len(th.intervals), th.intervalAt, func(i int) bool { return th.intervals[i].To <= ts }); ok {
		th.intervalAt = n
		return n
	}
	th.intervalAt = threads.Gallop(len(th.intervals), th.intervalAt,
		func(i int) bool { return th.intervals[i].To <= ts })
	return th.intervalAt
}

// sampled returns the samples of [from, to).
func (th *thread) sampled(from, to uint64) []sample {
	th.sampleAt = threads.Gallop(len(th.samples), th.sampleAt, func(i int) bool { return th.samples[i].at < from })
	last := th.sampleAt
	for last < len(th.samples) && th.samples[last].at < to {
		last++
	}
	return th.samples[th.sampleAt:last]
}

// op returns the call at a place of th.ops.
func (w *walker) op(th *thread, at int) *timeline.Op { return &w.t.Ops[th.ops.at(at)] }
