package gap

import (
	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/timeline"
)

// Of ten million events five million are gaps of a microsecond between kernels, each with one step that says no more than
// which call ended it. Such a gap is plain: it has no step of its own, and a Reader makes it when it is asked for. A step
// takes 56 bytes, and writing them all to fresh memory took longer than finding out what they say
// (`go test ./internal/diagnose -bench Whole`).

// Reader reads the steps of gaps, best in their order. One goroutine may use it at a time.
type Reader struct {
	w    *Walk
	near threadAt
	one  [1]Step
}

// Reader returns a new reader.
func (w *Walk) Reader() *Reader { return &Reader{w: w} }

// Of returns the steps of a gap. They are good until the next call, and not to be changed.
func (r *Reader) Of(g *Gap) []Step {
	if g.First != g.Last || r.w.t == nil || g.Next == None {
		return r.w.Steps[g.First:g.Last]
	}
	t := r.w.t
	op := t.Outermost(t.Activities[g.Next].Op)
	r.near.find(t, op)
	r.one[0] = plainStep(g, r.near.pid, r.near.tid, op)
	return r.one[:]
}

// plainStep is the step of a plain gap: launching took until its end.
func plainStep(g *Gap, pid, tid uint32, op int32) Step {
	return Step{From: g.From, To: g.To, Cause: cause.LaunchOverhead, PID: pid, TID: tid, Op: op, Wait: None}
}

// threadAt is the thread of the calls [first, last).
type threadAt struct {
	pid, tid    uint32
	first, last int32
}

// find looks for the thread of a call, which mostly is the one before's.
func (a *threadAt) find(t *timeline.Timeline, op int32) {
	if op >= a.first && op < a.last {
		return
	}
	th := &t.Threads[t.ThreadOf(op)]
	*a = threadAt{pid: t.Processes[th.Process].PID, tid: th.TID, first: th.First, last: th.Last}
}

// thin takes the only step of a gap away where it is that of a plain one.
func (w *walker) thin(g *Gap, th *thread, op int32) {
	if n := len(w.out.Steps); n == w.first+1 && w.out.Steps[w.first] == plainStep(g, th.pid, th.tid, op) {
		w.out.Steps = w.out.Steps[:w.first]
	}
}
