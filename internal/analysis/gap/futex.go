package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// A stack is taken of some switches only (100 a second of each thread), so that most waits in futexes have none. What a
// futex is does not change from one wait to the next, so the stacks that there are speak for its other waits too; where
// a futex has none, those of the thread's other futexes do, except for the GIL: an interpreter has one, at one address.

// futexes is what is known of futexes by stacks.
type futexes struct {
	byAddress map[futex]*vote
	byThread  map[key]*vote
}

// futex is a place in memory that a process waits at. The two words that a condition of glibc waits at in turns are
// one.
type futex struct {
	pid     uint32
	address uint64
}

// vote counts what stacks say.
type vote struct {
	locks, workers, gil int
	stack               [3]uint64 // the last of each, in this order
}

func (b *vote) add(c cause.ID, stack uint64) {
	switch c {
	case cause.Lock:
		b.locks++
		b.stack[0] = stack
	case cause.GIL:
		b.gil++
		b.stack[2] = stack
	default:
		b.workers++
		b.stack[1] = stack
	}
}

// result returns what most stacks say, and one that says so.
func (b *vote) result() (cause.ID, uint64) {
	switch {
	case b.gil > b.locks && b.gil >= b.workers:
		return cause.GIL, b.stack[2]
	case b.locks > b.workers:
		return cause.Lock, b.stack[0]
	}
	return cause.Worker, b.stack[1]
}

// pairOf is the alignment of what counts as one futex, bytes.
const pairOf = 8

func futexAt(e *event.Event) futex { return futex{e.PID, e.Args[2] / pairOf} }

// poll asks all stacks that show a thread in a futex: those of switches, and those of the sampling clock that were
// taken while it went to sleep or woke up.
func (w *walker) poll() {
	w.futexes = futexes{byAddress: map[futex]*vote{}, byThread: map[key]*vote{}}
	w.t.Index.Stacks(func(s *threads.Sample) {
		stack := uint64(s.Stack)
		if !w.stacks.inFutex(stack) {
			return
		}
		th := w.known(key{s.PID, s.TID})
		if th == nil {
			return
		}
		if wait := w.nearest(th, s.TS); wait != nil {
			w.vote(th, futexAt(wait), w.stacks.futexCause(stack), stack)
		}
	})
}

// nearDistance is how far the edge of a wait may lie from a sample that shows the thread going into or coming out of
// it, ns: both are in the same system call.
const nearDistance = 200_000

// nearest returns the event of the wait in a futex that begins or ends next to a time, nil where there is none.
func (w *walker) nearest(th *thread, ts uint64) *event.Event {
	var best *event.Event
	least := uint64(nearDistance)
	at := th.intervalFrom(ts)
	for i := max(0, at-3); i < min(len(th.intervals), at+4); i++ {
		iv := &th.intervals[i]
		if iv.State != threads.Blocked || iv.Reason != threads.Futex || iv.Wait < 0 {
			continue
		}
		d := min(distance(iv.From, ts), distance(iv.To, ts))
		if d < least {
			best, least = &w.t.Rec.Events[iv.Wait], d
		}
	}
	return best
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

func (w *walker) vote(th *thread, f futex, c cause.ID, stack uint64) {
	b := w.futexes.byAddress[f]
	if b == nil {
		b = &vote{}
		w.futexes.byAddress[f] = b
	}
	b.add(c, stack)
	if c == cause.GIL {
		return
	}
	if b = w.futexes.byThread[th.key]; b == nil {
		b = &vote{}
		w.futexes.byThread[th.key] = b
	}
	b.add(c, stack)
}

// inFutexOf returns what a wait in a futex was for, and a stack that shows it; own is that of this wait. Where other
// stacks show the same futex, most of all decide: a few of each lack the frame that says what it is.
func (w *walker) inFutexOf(th *thread, wait int32, own uint64) (cause.ID, Confidence, uint64) {
	shows := own != 0 && w.stacks.hasCallers(own)
	if b := w.futexes.byAddress[futexAt(&w.t.Rec.Events[wait])]; b != nil {
		c, stack := b.result()
		if shows && w.stacks.futexCause(own) == c {
			stack = own
		}
		return c, Seen, stack
	}
	if shows {
		return w.stacks.futexCause(own), Seen, own
	}
	if b := w.futexes.byThread[th.key]; b != nil {
		c, stack := b.result()
		return c, Inferred, stack
	}
	return cause.Worker, Inferred, own
}
