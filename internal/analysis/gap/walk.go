package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// explainPart is explain for a time in which no graph was captured.
func (w *walker) explainPart(th *thread, from, to uint64) {
	if from >= to {
		return
	}
	i := w.opFrom(th, from)
	for at := from; at < to; {
		if i < th.ops.count && w.op(th, i).Start <= at {
			if end := min(w.op(th, i).End(), to); end > at {
				w.inCall(th, th.ops.at(i), at, end)
				at = end
			}
			if w.op(th, i).End() <= at {
				i++
			}
			continue
		}
		end := to
		if i < th.ops.count {
			end = min(to, w.op(th, i).Start)
		}
		w.between(th, i, at, end)
		at = end
	}
}

// inCall explains [from, to), in which a thread is in a call.
func (w *walker) inCall(th *thread, op int32, from, to uint64) {
	if from >= to {
		return
	}
	c, sure := w.callCause(op)
	slow := sure == Inferred
	if w.unobservable && c == cause.HostSync {
		c, sure = cause.Unknown, Guessed
	}
	if until := min(to, w.otherGPU(op)); until > from {
		w.emit(from, until, cause.PipelineBubble, detail{th: th, op: op + 1})
		from = until
	}
	w.states(th, from, to, func(u, v uint64, iv *threads.Interval) {
		switch {
		case iv != nil && iv.State == threads.Runnable && !w.waking(iv):
			w.runnable(th, iv, u, v)
		case iv != nil && iv.State == threads.Blocked && slow && iv.Reason == threads.Futex:
			w.blocked(th, iv, u, v)
		default:
			w.emit(u, v, c, detail{th: th, sure: sure, op: op + 1})
		}
	})
}

// between explains [from, to), in which a thread is in no call; next is the place of the next one in th.ops.
func (w *walker) between(th *thread, next int, from, to uint64) {
	g := w.grant(th, next)
	g.sampleClass.quiet = w.isQuiet(th, from, to)
	w.states(th, from, to, func(u, v uint64, iv *threads.Interval) {
		switch {
		case iv == nil || iv.State == threads.Running:
			w.ranSince(th, &g, u, v)
		case iv.State == threads.Runnable:
			w.woken(th, iv, u, v)
		case iv.State == threads.Blocked:
			w.blocked(th, iv, u, v)
		default:
			w.emit(u, v, cause.Unknown, detail{th: th, sure: Guessed})
		}
	})
}

// grant is what holds for a stretch between two calls: until when the thread is taken to launch, and with which
// other stretches it shares its samples.
type grant struct {
	until       uint64 // ns
	cause       cause.ID
	op          int32 // the call whose price it is
	sampleClass sampleClass
}

func (w *walker) grant(th *thread, next int) grant {
	g := grant{sampleClass: sampleClass{thread: th.index}}
	g.until, g.cause, g.op = w.granted(th, next)
	if next > 0 {
		g.sampleClass.before = w.op(th, next-1).Func + 1
	}
	if next < th.ops.count {
		g.sampleClass.after = w.op(th, next).Func + 1
	}
	return g
}

// ranSince explains [from, to), in which a thread ran.
func (w *walker) ranSince(th *thread, g *grant, from, to uint64) {
	if end := min(to, g.until); end > from {
		w.emit(from, end, g.cause, detail{th: th, op: g.op + 1})
		from = end
	}
	w.ran(th, g.sampleClass, from, to)
}

// granted returns until when after a call the thread is taken to launch, whatever it runs, and the cause of that: after
// a synchronization the queue is empty, and what launching the next takes is the synchronization's price, as is the way
// from a copy that reads a result to the wait for it. op is the call whose price it is.
func (w *walker) granted(th *thread, next int) (until uint64, c cause.ID, op int32) {
	if next == 0 || next >= th.ops.count {
		return 0, cause.Unknown, None
	}
	before := th.ops.at(next - 1)
	end := w.t.Ops[before].End()
	switch {
	case w.isRead(before):
		return end + th.launchInterval, cause.HostSync, before
	case !w.launches(th.ops.at(next)):
		return 0, cause.Unknown, None
	case w.waitsForGPU(before):
		return end + th.launchInterval, cause.HostSync, before
	case w.isCopy(before) && w.isCopy(th.ops.at(next)):
		return 0, cause.Unknown, None // what is between two copies makes the data of the second: samples tell
	case w.launches(before):
		return end + maxLaunchInterval, cause.LaunchOverhead, th.ops.at(next)
	}
	return 0, cause.Unknown, None
}

// isCopy reports whether a call copies.
func (w *walker) isCopy(op int32) bool { return w.classes[w.t.Ops[op].Func].kind == copyCall }

// launches reports whether a call puts something into a queue of the GPU.
func (w *walker) launches(op int32) bool {
	k := w.classes[w.t.Ops[op].Func].kind
	return k == launchCall || k == quickCall || k == copyCall
}

// states visits the stretches of [from, to) in which a thread was in one state; nil: not known, it ran.
func (w *walker) states(th *thread, from, to uint64, visit func(u, v uint64, iv *threads.Interval)) {
	if from >= to {
		return
	}
	at := from
	for i := th.intervalFrom(from); i < len(th.intervals) && at < to; i++ {
		iv := &th.intervals[i]
		if start := min(iv.From, to); start > at {
			visit(at, start, nil)
			at = start
		}
		if end := min(iv.To, to); end > at {
			visit(at, end, iv)
			at = end
		}
	}
	if at < to {
		visit(at, to, nil)
	}
}

// detail is what a step has beside its times and its cause. Indices are one more than they are in a
// Step, so that 0 is none.
type detail struct {
	th       *thread
	who      key // whose doing it was, where that is not th
	sure     Confidence
	stack    uint64
	op, wait int32
}

// emit adds a step.
func (w *walker) emit(from, to uint64, c cause.ID, d detail) {
	if from >= to {
		return
	}
	s := Step{From: from, To: to, Cause: c, Sure: max(d.sure, w.floor), Stack: d.stack, Op: d.op - 1, Wait: d.wait - 1}
	if d.th != nil {
		s.PID, s.TID = d.th.pid, d.th.tid
	}
	if len(w.chain) > 0 {
		first := &w.chain[0]
		s.WaiterPID, s.WaiterTID = first.th.pid, first.th.tid
		if c != cause.NoWork && !(lacksCPU(c) && d.th != nil && d.th.recorder) {
			s.Cause, s.Inner = first.cause, c
		}
	}
	if d.who != (key{}) {
		if s.WaiterTID == 0 {
			s.WaiterPID, s.WaiterTID = s.PID, s.TID
		}
		s.PID, s.TID = d.who.pid, d.who.tid
	}
	w.add(&s)
}

// lacksCPU reports whether a cause is that a thread had no CPU. Where that is the recorder's own thread, which nobody
// knows who reads the report, those that wait for it lack a CPU as well.
func lacksCPU(c cause.ID) bool { return c == cause.Throttled || c == cause.NoCPU }

// add appends a step to those of this gap, or makes the last one longer where they say the same.
func (w *walker) add(s *Step) {
	if n := len(w.out.Steps); n > w.first && s.Cause != cause.Count && s.Inner != cause.Count &&
		w.out.Steps[n-1].same(s) {
		w.out.Steps[n-1].To = s.To
		return
	}
	if n := len(w.out.Steps); n == cap(w.out.Steps) {
		w.out.Steps = slices.Grow(
			w.out.Steps,
			max(n, 64),
		) // append alone grows by a quarter, and takes five times what it holds in the end
	}
	w.out.Steps = append(w.out.Steps, *s)
}
