package gap

import (
	"iter"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Of ten million events five million are gaps of a microsecond between kernels, each with one step that says no more
// than which call ended it. Such a gap is plain, and is not kept: whoever reads a walk finds it again. A gap takes 40
// bytes and a step 56, and writing them all to fresh memory took longer than finding out what they say (`go test
// ./internal/analysis/diagnose -bench Whole`).

// All returns all gaps, by device, then From, each with its steps. Both are good until the next, and not to be changed.
func (w *Walk) All() iter.Seq2[*Gap, []Step] {
	return func(yield func(*Gap, []Step) bool) {
		if w.t == nil { // made by hand: no gap is plain
			for i := range w.Gaps {
				if g := &w.Gaps[i]; !yield(g, w.Steps[g.First:g.Last]) {
					return
				}
			}
			return
		}
		r := reader{w: w}
		find(w.t, w.Covered, func(g *Gap) bool { return r.visit(g, yield) })
	}
}

// reader goes over the gaps that are found and those that are kept.
type reader struct {
	w    *Walk
	next int // into Walk.Gaps
	near threadAt
	one  [1]Step
}

func (r *reader) visit(g *Gap, yield func(*Gap, []Step) bool) bool {
	if r.next < len(r.w.Gaps) {
		if kept := &r.w.Gaps[r.next]; kept.From == g.From && kept.Device == g.Device {
			r.next++
			return yield(kept, r.w.Steps[kept.First:kept.Last])
		}
	}
	t := r.w.t
	op := t.Outermost(t.Activities[g.Next].Op)
	r.near.find(t, op)
	r.one[0] = plainStep(g, r.near.pid, r.near.tid, op)
	return yield(g, r.one[:])
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

// plain says, without making the steps, of most gaps that are plain that they are: the call that ended it had returned
// before and its kernel began soon, or the thread launched that, and had nothing else to do since the launch before.
func (w *walker) plain(g *Gap, th *thread, op, activity int32) bool {
	l := &w.t.Ops[op]
	kind := w.classes[l.Func].kind
	if w.floor != Seen || kind == copyCall || g.To-min(max(l.End(), g.From), g.To) > slowStart ||
		len(w.edgesTo(activity)) > 0 {
		return false
	}
	if l.End() <= g.From {
		return true
	}
	return kind == launchCall && l.Dur <= slowLaunch && w.ranAlways(th, g.From, min(l.End(), g.To)) &&
		(l.Start <= g.From || w.launchedOn(g, th, op))
}

// ranAlways reports whether nothing else is known of [from, to) than that a thread ran.
func (w *walker) ranAlways(th *thread, from, to uint64) bool {
	i := th.intervalFrom(from)
	if i == len(th.intervals) {
		return true
	}
	iv := &th.intervals[i]
	return iv.From >= to || iv.State == threads.Running && iv.To >= to
}

// launchedOn reports whether a thread made one launch after the other: when a gap began it was in no call, the next one
// ended the gap, and what it did since the one before is taken for launching.
func (w *walker) launchedOn(g *Gap, th *thread, op int32) bool {
	i := w.opFrom(th, g.From)
	if i == 0 || i >= th.ops.count || th.ops.at(i) != op {
		return false
	}
	until, c, _ := w.granted(th, i)
	return c == cause.LaunchOverhead && until >= min(w.t.Ops[op].Start, g.To)
}

// keep adds a gap with its steps, which are those from w.first on, unless it is a plain one: it has none, or the only
// one that can be made again. th made op, the call that ended it.
func (w *walker) keep(g *Gap, th *thread, op int32) {
	n := len(w.out.Steps)
	if n == w.first+1 && th != nil && op != None && w.out.Steps[w.first] == plainStep(g, th.pid, th.tid, op) {
		w.out.Steps, n = w.out.Steps[:w.first], w.first
	}
	if n == w.first {
		w.plainly(g, th, op)
		return
	}
	g.First, g.Last = int32(w.first), int32(n)
	w.out.Gaps = append(w.out.Gaps, *g)
}
