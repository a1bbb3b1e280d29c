package gap

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// A sample is taken 99 times a second, and a thread often runs for less than the time between two samples. Intervals of
// one class therefore share their samples: each sample stands for an equal part of the class's time, and an interval
// without a sample of its own goes to the sample with the least time so far. The sums are then in proportion to the
// samples, and the steps still cover their gaps exactly.
//
// For Names, each sample of a longer interval stands for half a period to either side. What is left at an edge goes to
// samples of the class that lie nearer to that edge, so that a function there has its share. Gaps are not divided so
// finely: each is explained by its own samples.

// sampleClass is what the intervals of a class have in common: the thread, the calls before and after
// (index into Meta.Functions + 1), the length within a factor of two, and whether nothing was launched for long.
type sampleClass struct {
	thread        int32
	before, after uint16
	length        uint8
	quiet         bool
	edge          edge
}

// edge is where in its interval a step lies that is no whole interval.
type edge uint8

const (
	noEdge edge = iota
	firstEdge
	lastEdge
)

// attributor keeps the intervals that wait for a cause.
type attributor struct {
	classes []classSamples
	byClass map[sampleClass]int32
	last    sampleClass
	lastAt  int32
	pending []pending
}

// pending is a step that waits for its cause.
type pending struct {
	step, class int32
	sample      int32 // its own entry in the class; None
}

// classSamples are the samples of a class.
type classSamples struct {
	thread  int32
	quiet   bool
	edge    bool
	entries []entry
	heap    []int32 // entries, the one with the least time first; made when the first is attributed
}

// entry is a sample and the time attributed to it so far.
type entry struct {
	stack uint64
	time  uint64
}

func newAttributor() attributor { return attributor{byClass: map[sampleClass]int32{}, lastAt: None} }

// class returns the index of a class, which it adds if it is new.
func (d *attributor) class(s sampleClass) int32 {
	if d.lastAt != None && d.last == s {
		return d.lastAt
	}
	at, ok := d.byClass[s]
	if !ok {
		at = int32(len(d.classes))
		d.classes = append(d.classes, classSamples{thread: s.thread, quiet: s.quiet, edge: s.edge != noEdge})
		d.byClass[s] = at
	}
	d.last, d.lastAt = s, at
	return at
}

// usualPeriod is the time between two samples of a running thread where nobody knows it, ns: 99 a second.
const usualPeriod = 10_101_010

// samplePeriod is how much running time a sample stands for, ns: that of all threads that have samples, by these.
func (w *walker) samplePeriod() uint64 {
	ran, n := uint64(0), uint64(0)
	for _, th := range w.threads {
		if th.recorder || len(th.samples) == 0 {
			continue
		}
		n += uint64(len(th.samples))
		for i := range th.intervals {
			if th.intervals[i].State == threads.Running {
				ran += th.intervals[i].Dur()
			}
		}
	}
	if n == 0 || ran == 0 {
		return usualPeriod
	}
	return ran / n
}

// ran explains [from, to), in which a thread ran and was in no call.
func (w *walker) ran(th *thread, s sampleClass, from, to uint64) {
	if from >= to {
		return
	}
	if th.traced != nil && th.samples == nil {
		w.wasIn(th, from, to)
		return
	}
	samples := th.sampled(from, to)
	switch {
	case len(samples) == 0, len(samples) == 1 && (w.period == 0 || to-from <= w.period):
		w.later(th, s, from, to, samples)
		return
	case w.period == 0:
		w.divide(th, s.quiet, from, to, samples)
		return
	}
	s.length = uint8(bits.Len64(to - from))
	first, last := samples[0].at, samples[len(samples)-1].at
	begin, end := max(from, first-min(first, w.period/2)), min(to, last+w.period/2)
	w.edge(th, s, firstEdge, timeline.Span{From: from, To: begin}, entry{uint64(samples[0].stack), first - begin})
	w.divide(th, s.quiet, begin, end, samples)
	w.edge(th, s, lastEdge, timeline.Span{From: end, To: to}, entry{uint64(samples[len(samples)-1].stack), end - last})
}

// edge leaves what no sample of an interval stands for to samples at the same edge, of which it adds one.
func (w *walker) edge(th *thread, s sampleClass, at edge, left timeline.Span, near entry) {
	s.edge = at
	i := w.attribution.class(s)
	class := &w.attribution.classes[i]
	class.entries = append(class.entries, near)
	if left.From < left.To {
		w.attribution.pending = append(w.attribution.pending, pending{int32(len(w.out.Steps)), i, None})
		w.emit(left.From, left.To, cause.Count, detail{th: th})
	}
}

// divide divides [from, to) among its samples.
func (w *walker) divide(th *thread, quiet bool, from, to uint64, samples []sample) {
	for i, x := range samples {
		end := to
		if i+1 < len(samples) {
			end = x.at + (samples[i+1].at-x.at)/2
		}
		stack := uint64(x.stack)
		w.emit(from, end, w.workCause(th, stack, quiet), detail{th: th, stack: stack})
		from = max(from, end)
	}
}

// wasIn explains [from, to) by the ranges that another tool recorded: they say what a thread was in all of the time.
func (w *walker) wasIn(th *thread, from, to uint64) {
	i, found := slices.BinarySearchFunc(th.traced, from, func(s sample, at uint64) int { return cmp.Compare(s.at, at) })
	if !found {
		i--
	}
	for from < to {
		stack, end := uint64(0), to
		if i >= 0 {
			stack = uint64(th.traced[i].stack)
		}
		if i+1 < len(th.traced) {
			end = min(to, th.traced[i+1].at)
		}
		if stack == 0 {
			w.emit(from, end, cause.Unknown, detail{th: th, sure: Guessed})
		} else {
			w.emit(from, end, w.workCause(th, stack, false), detail{th: th, stack: stack})
		}
		from, i = end, i+1
	}
}

// later leaves [from, to), which has at most one sample, to be attributed by resolve.
func (w *walker) later(th *thread, s sampleClass, from, to uint64, samples []sample) {
	s.length = uint8(bits.Len64(to - from))
	at := w.attribution.class(s)
	p := pending{step: int32(len(w.out.Steps)), class: at, sample: None}
	w.emit(from, to, cause.Count, detail{th: th})
	if len(samples) == 1 {
		class := &w.attribution.classes[at]
		p.sample = int32(len(class.entries))
		class.entries = append(class.entries, entry{stack: uint64(samples[0].stack), time: to - from})
	}
	w.attribution.pending = append(w.attribution.pending, p)
}

// resolve gives each step that waits for one its cause.
func (d *attributor) resolve(w *walker) {
	whole := d.byThread(w)
	for i := range d.pending {
		p := &d.pending[i]
		s := &w.out.Steps[p.step]
		class, sure := &d.classes[p.class], Inferred
		th := w.threads[class.thread]
		var stack uint64
		switch {
		case p.sample != None:
			stack, sure = class.entries[p.sample].stack, Seen
		case len(class.entries) > 0:
			stack = class.take(s.To - s.From)
		default:
			var ok bool
			if stack, ok = whole[class.thread].take(w, th, s.To-s.From); ok {
				break
			}
			if th.intervals == nil { // not even that it ran is known
				s.settle(cause.Unknown, 0, Guessed)
				continue
			}
			sure = Guessed
		}
		s.settle(w.workCause(th, stack, class.quiet), stack, sure)
	}
}

// threadSamples are all samples of a thread's classes or, if these have none, all samples that were taken of it outside
// of calls. Those are found one at a time, when a step needs a sample that has no time yet.
type threadSamples struct {
	classSamples
	attributed bool // its classes have samples
	sample     int  // into thread.samples: those before are looked at
	op         int  // into thread.ops: where the last of them was
}

func (d *attributor) byThread(w *walker) []threadSamples {
	out := make([]threadSamples, len(w.threads))
	for i := range d.classes {
		p := &d.classes[i]
		if p.edge {
			continue
		}
		for _, e := range p.entries {
			x := &out[p.thread]
			x.entries, x.attributed = append(x.entries, entry{stack: e.stack}), true
		}
	}
	return out
}

// take is classSamples.take; false where there is no sample at all.
func (x *threadSamples) take(w *walker, th *thread, ns uint64) (stack uint64, ok bool) {
	if !x.attributed {
		if stack, ok = x.next(w, th); ok {
			x.entries = append(x.entries, entry{stack: stack, time: ns})
			return stack, true
		}
	}
	if len(x.entries) == 0 {
		return 0, false
	}
	return x.classSamples.take(ns), true
}

// next returns the stack of the next sample of a thread that was taken while it was in no call.
func (x *threadSamples) next(w *walker, th *thread) (stack uint64, ok bool) {
	for x.sample < len(th.samples) {
		s := th.samples[x.sample]
		x.sample++
		for x.op < th.ops.count && w.op(th, x.op).End() <= s.at {
			x.op++
		}
		if x.op == th.ops.count || w.op(th, x.op).Start > s.at {
			return uint64(s.stack), true
		}
	}
	return 0, false
}

// settle gives a step its cause.
func (s *Step) settle(c cause.ID, stack uint64, sure Confidence) {
	s.Stack, s.Sure = stack, max(s.Sure, sure)
	if s.Cause == cause.Count {
		s.Cause = c
		return
	}
	s.Inner = c
}

// take gives more time to the sample that has least, and returns its stack.
func (p *classSamples) take(ns uint64) uint64 {
	if p.heap == nil {
		p.heap = make([]int32, len(p.entries))
		for i := range p.heap {
			p.heap[i] = int32(i)
		}
		for i := len(p.heap)/2 - 1; i >= 0; i-- {
			p.sink(i)
		}
	}
	top := &p.entries[p.heap[0]]
	top.time += ns
	stack := top.stack
	p.sink(0)
	return stack
}

// sink restores the heap below i.
func (p *classSamples) sink(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(p.heap) && p.less(p.heap[child], p.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		p.heap[i], p.heap[least] = p.heap[least], p.heap[i]
		i = least
	}
}

func (p *classSamples) less(x, y int32) bool {
	if p.entries[x].time != p.entries[y].time {
		return p.entries[x].time < p.entries[y].time
	}
	return x < y
}
