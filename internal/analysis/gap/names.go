package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Names describes what all threads of a recording did, in gaps or not, by the same rules and samples that
// explain gaps. It keeps where it last looked, so that one goroutine may use it at a time.
type Names struct {
	w     *walker
	lists []running // by index of the thread
}

// running is the steps in which one thread ran outside of calls: Walk.Steps[first:last]; at is where the last
// search ended.
type running struct{ first, last, at int }

// NewNames names what threads ran in a stretch of time. It takes O(n) for n events that are in order.
func NewNames(t *timeline.Timeline, scheduled []threads.Thread, in timeline.Span) *Names {
	return newNames(newWalker(t, scheduled), in)
}

// Names is NewNames out of what the walk was made of, which takes no longer than the stretch. One goroutine may call it
// at a time.
func (w *Walk) Names(in timeline.Span) *Names {
	x := *w.by
	x.out, x.attribution, x.chain, x.floor, x.unobservable = &Walk{t: w.t}, newAttributor(), nil, Seen, false
	return newNames(&x, in)
}

func newNames(w *walker, in timeline.Span) *Names {
	n := &Names{w: w, lists: make([]running, len(w.threads))}
	w.period = w.samplePeriod()
	for i, th := range w.threads {
		w.first = len(w.out.Steps)
		n.lists[i].first = w.first
		w.runs(th, in)
		n.lists[i].last = len(w.out.Steps)
	}
	w.attribution.resolve(w)
	return n
}

// runs makes the steps of the time in which a thread ran outside of calls.
func (w *walker) runs(th *thread, in timeline.Span) {
	at := max(in.From, w.t.From)
	to := min(in.To, w.t.To)
	for i := w.opFrom(th, at); i <= th.ops.count && at < to; i++ {
		end := to
		if i < th.ops.count {
			end = min(end, w.op(th, i).Start)
		}
		if end > at {
			w.outsideCaptures(th, at, end, func(u, v uint64) { w.runsBetween(th, i, u, v) })
		}
		if i < th.ops.count {
			at = max(at, w.op(th, i).End())
		}
	}
}

func (w *walker) runsBetween(th *thread, next int, from, to uint64) {
	g := w.grant(th, next)
	g.sampleClass.quiet = w.isQuiet(th, from, to)
	w.states(th, from, to, func(u, v uint64, iv *threads.Interval) {
		if iv == nil || iv.State == threads.Running {
			w.ranSince(th, &g, u, v)
		}
	})
}

// Running calls yield with stretches that touch each other and cover [from, to), in which a thread ran and was in no
// call. stack is index + 1 into Meta.Stacks, 0 for none.
func (n *Names) Running(
	pid, tid uint32,
	from, to uint64,
	yield func(to uint64, c cause.ID, stack uint64, sure Confidence),
) {
	i, ok := n.w.byKey[key{pid, tid}]
	if !ok {
		yield(to, cause.Unknown, 0, Guessed)
		return
	}
	l, steps := &n.lists[i], n.w.out.Steps
	list := steps[l.first:l.last]
	l.at = threads.Gallop(len(list), l.at, func(i int) bool { return list[i].To <= from })
	for k := l.at; k < len(list) && list[k].From < to; k++ {
		s := &list[k]
		if s.From > from {
			yield(s.From, cause.Unknown, 0, Guessed)
		}
		from = min(s.To, to)
		yield(from, s.Cause, s.Stack, s.Sure)
	}
	if from < to {
		yield(to, cause.Unknown, 0, Guessed)
	}
}

// Blocked names a wait of a thread by itself, whoever ended it, with a stack that shows it.
func (n *Names) Blocked(iv *threads.Interval) (c cause.ID, stack uint64, sure Confidence) {
	th := n.owner(iv)
	if th == nil {
		return cause.Unknown, 0, Guessed
	}
	c, d, others := n.w.why(th, iv)
	if others && n.w.waker(th, iv) == nil {
		c, d = n.w.notWoken(iv, c, d)
	}
	return c, d.stack, d.sure
}

// Stack returns the stack with which the thread of a wait went to sleep, as index + 1 into Meta.Stacks; 0 for none.
// That of Blocked can be another one that shows the same futex.
func (n *Names) Stack(iv *threads.Interval) uint64 {
	if th := n.owner(iv); th != nil && iv.State == threads.Blocked {
		return th.stacks.Of(iv.Wait)
	}
	return 0
}

// Waker returns the thread of the target that ended a wait, and whether there is one.
func (n *Names) Waker(iv *threads.Interval) (pid, tid uint32, ok bool) {
	th := n.owner(iv)
	if th == nil || iv.State != threads.Blocked {
		return 0, 0, false
	}
	if _, _, others := n.w.why(th, iv); !others {
		return 0, 0, false
	}
	by := n.w.waker(th, iv)
	if by == nil {
		return 0, 0, false
	}
	return by.pid, by.tid, true
}

// Runnable names a time in which a thread had no CPU: NoCPU or Throttled.
func (n *Names) Runnable(iv *threads.Interval) (cause.ID, Confidence) {
	c, d := n.w.withoutCPU(iv)
	return c, d.sure
}

// Ousted reports whether a thread had no CPU because another took it away while it computed, and which: 0 for the idle
// task, which means that a quota was used up.
func (n *Names) Ousted(iv *threads.Interval) (pid, tid uint32, ok bool) {
	if iv.Wait < 0 {
		return 0, 0, false
	}
	e := &n.w.t.Rec.Events[iv.Wait]
	if e.Flags&(event.Mark|event.Preempted) != event.Preempted {
		return 0, 0, false
	}
	return uint32(e.Args[1] >> 32), uint32(e.Args[1]), true
}

// WakingUp reports whether a time in which a thread could run is so short that it belongs to the wait before it.
func (n *Names) WakingUp(iv *threads.Interval) bool { return n.w.waking(iv) }

// Call names the time that a thread spends in a call, by index of its outermost op.
func (n *Names) Call(op int32) (cause.ID, Confidence) {
	if n.w.owners[n.w.t.ThreadOf(op)].capturing(n.w.t.Ops[op].Start) {
		return cause.Compilation, Seen
	}
	return n.w.callCause(op)
}

// InCall returns the stack of a sample that was taken in an outermost op, as index + 1 into Meta.Stacks; 0 for none.
func (n *Names) InCall(op int32) uint64 {
	o := &n.w.t.Ops[op]
	if in := n.w.owners[n.w.t.ThreadOf(op)].sampled(o.Start, o.End()); len(in) > 0 {
		return uint64(in[len(in)/2].stack)
	}
	return 0
}

// owner returns the thread of an interval that an event tells of.
func (n *Names) owner(iv *threads.Interval) *thread {
	if iv.Wait < 0 {
		return nil
	}
	e := &n.w.t.Rec.Events[iv.Wait]
	return n.w.known(key{e.PID, e.TID})
}
