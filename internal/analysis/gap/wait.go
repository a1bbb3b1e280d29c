package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// maxChain bounds how many threads wait for each other. A request that goes through a server's process,
// its engine's and a worker's, each with a thread of its own for messages, makes six.
const maxChain = 8

// wakingUp is for how long a thread that was woken can be without a CPU and yet nobody has kept it from one, ns: coming
// out of an idle CPU's sleep takes up to that, and who has to wait for another's time slice waits longer: a slice is
// 0.7 ms at the least (sysctl_sched_base_slice, kernel/sched/fair.c).
const wakingUp = 200_000

// waking reports whether a thread that could run was just waking up: that belongs to what it waited for.
func (w *walker) waking(iv *threads.Interval) bool {
	if iv.Wait < 0 || iv.Dur() > wakingUp {
		return false
	}
	return w.t.Rec.Events[iv.Wait].Flags&(event.Mark|event.Preempted) == 0
}

// woken explains [from, to), in which a thread could run: where it was just waking up, by what it woke up from.
func (w *walker) woken(th *thread, iv *threads.Interval, from, to uint64) {
	before := th.intervalFrom(iv.From) - 1
	if before < 0 || !w.waking(iv) || th.intervals[before].Wait != iv.Wait {
		w.runnable(th, iv, from, to)
		return
	}
	if n := len(w.out.Steps); n > w.first && w.out.Steps[n-1].To == from {
		w.out.Steps[n-1].To = to // the end of that wait
		return
	}
	w.blocked(th, &th.intervals[before], from, to)
}

// runnable explains [from, to), in which a thread could have run and had no CPU.
func (w *walker) runnable(th *thread, iv *threads.Interval, from, to uint64) {
	c, d := w.withoutCPU(iv)
	d.th, d.wait = th, iv.Wait+1
	w.emit(from, to, c, d)
}

// withoutCPU reports why a thread that could run had no CPU, and who had it.
func (w *walker) withoutCPU(iv *threads.Interval) (cause.ID, detail) {
	c, d := cause.NoCPU, detail{}
	if iv.Wait >= 0 {
		e := &w.t.Rec.Events[iv.Wait]
		displaced := e.Flags&(event.Mark|event.Preempted) == event.Preempted
		switch {
		case displaced && e.Args[1] == 0 && !w.unlimited: // and the CPU went idle
			c = cause.Throttled
		case displaced && e.Args[1] == 0:
			d.sure = Inferred // a real-time thread that has used its share of the period up (sched_rt_runtime_us)
		case w.throttled[iv.Wait]:
			c, d.sure = cause.Throttled, Inferred
		case displaced:
			d.who = key{uint32(e.Args[1] >> 32), uint32(e.Args[1])}
		}
	}
	return c, d
}

// blocked explains [from, to), in which a thread waited for something.
func (w *walker) blocked(th *thread, iv *threads.Interval, from, to uint64) {
	c, d, others := w.why(th, iv)
	explain := func(from, to uint64) {
		switch {
		case from >= to:
		case others:
			w.waited(th, iv, c, from, to, d)
		default:
			w.emit(from, to, c, d)
		}
	}
	if len(w.chain) == 0 && offers(c) {
		w.asked(th, from, to, explain)
		return
	}
	explain(from, to)
}

// why reports what a wait was for, and whether another thread can have ended it.
func (w *walker) why(th *thread, iv *threads.Interval) (c cause.ID, d detail, others bool) {
	d = detail{th: th, wait: iv.Wait + 1}
	if iv.Wait < 0 {
		return cause.Unknown, d, false
	}
	d.stack = th.stacks.Of(iv.Wait)
	switch iv.Reason {
	case threads.Disk:
		return cause.Disk, d, false
	case threads.MajorFault:
		return w.stacks.faultCause(d.stack), d, false
	case threads.MinorFault:
		return cause.PageFaults, d, false
	case threads.Sleep:
		return cause.Sleep, d, false
	case threads.Nvidia:
		return cause.LaunchOverhead, d, false
	case threads.Stop, threads.Device, threads.Unexplained:
		return cause.Unknown, d, false
	case threads.FileLock:
		return cause.Lock, d, true
	case threads.Futex:
		c, d.sure, d.stack = w.inFutexOf(th, iv.Wait, d.stack)
		return c, d, true
	}
	return cause.Worker, d, true
}

// waited explains a wait that another thread can have ended.
func (w *walker) waited(th *thread, iv *threads.Interval, c cause.ID, from, to uint64, d detail) {
	by := w.waker(th, iv)
	switch {
	case by != nil:
	case c == cause.GIL:
		by = w.holder(th, iv, from, to)
	case iv.Reason == threads.Child:
		by = w.child(th.pid, from, to)
	}
	switch {
	case by == nil:
		c, d = w.notWoken(iv, c, d)
		w.emit(from, to, c, d)
	case len(w.chain) >= maxChain || slices.ContainsFunc(w.chain, func(l link) bool { return l.th == by }):
		w.emit(from, to, c, d)
	default:
		w.chain = append(w.chain, link{th, c})
		w.explain(by, from, to)
		w.chain = w.chain[:len(w.chain)-1]
	}
}

// waker returns the thread of the target that ended a wait, nil where that was somebody else. An interrupt that ran on
// the time of one of the target's threads can have come from it: that is how a message to the same host goes.
func (w *walker) waker(th *thread, iv *threads.Interval) *thread {
	e := &w.t.Rec.Events[iv.Wait]
	if e.Args[0] == 0 || e.Flags&event.Open != 0 {
		return nil
	}
	if e.Flags&event.FromIRQ != 0 && iv.Reason != threads.Socket && iv.Reason != threads.Poll {
		return nil
	}
	by := w.known(key{uint32(e.Args[1] >> 32), uint32(e.Args[1])})
	if by == th {
		return nil
	}
	return by
}

// child returns the main thread of the only child that a process had in [from, to]; nil where it had none or several,
// of which a call can wait for any.
func (w *walker) child(pid uint32, from, to uint64) *thread {
	var only *recording.Process
	for i := range w.t.Rec.Meta.Processes {
		p := &w.t.Rec.Meta.Processes[i]
		if p.Parent != pid || p.Born >= to || p.Died != 0 && p.Died <= from {
			continue
		}
		if only != nil {
			return nil
		}
		only = p
	}
	if only == nil {
		return nil
	}
	return w.known(key{only.PID, only.PID})
}

// holder returns the thread that most likely held the GIL while nobody woke who waited for it: it gives up
// waiting every 5 ms to ask for it. Samples say who ran Python; without one, it is who let it go in the end.
func (w *walker) holder(th *thread, iv *threads.Interval, from, to uint64) *thread {
	if h, ok := w.stacks.holders().Of(th.pid, th.tid, from, to); ok {
		return w.known(key{th.pid, h.TID})
	}
	return w.letGo(th, th.intervalFrom(iv.To))
}

// letGo returns who ended the next of a thread's waits from its interval at first on that some thread of its process
// ended.
func (w *walker) letGo(th *thread, first int) *thread {
	if s := &th.asked; first >= s.first && first <= s.last {
		return s.by
	}
	last := min(first+maxAsked, len(th.intervals))
	th.asked = asked{first: first, last: (first + last) / 2}
	for i := first; i < last; i++ {
		iv := &th.intervals[i]
		if iv.State != threads.Blocked || iv.Reason != threads.Futex || iv.Wait < 0 {
			continue
		}
		if by := w.waker(th, iv); by != nil && by.pid == th.pid {
			th.asked.last, th.asked.by = i, by
			break
		}
	}
	return th.asked.by
}

// asked is what letGo has found for all waits from an interval to another one.
type asked struct {
	first, last int
	by          *thread
}

// maxAsked is how many intervals after a wait are looked at for who let the GIL go: four for each time that
// it is asked for, so that it covers a second.
const maxAsked = 800

// notWoken returns the cause of a wait that no thread of the target ended.
func (w *walker) notWoken(iv *threads.Interval, c cause.ID, d detail) (cause.ID, detail) {
	switch iv.Reason {
	case threads.Socket, threads.Poll, threads.Event, threads.Pipe:
		c, d.sure = w.sockets.cause(&w.t.Rec.Events[iv.Wait], iv.Reason)
	case threads.Signal:
		c = cause.Sleep
	case threads.Call:
		c, d.sure = cause.Unknown, Guessed
	default:
		d.sure = Inferred
	}
	return c, d
}
