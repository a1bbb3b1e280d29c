package whatif

import (
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
)

// recorder is what recording cost the program, as the recording itself shows it: samples of the program's threads in
// the recorder's code, the computing of the recorder's own threads, and times without a CPU that such a thread took
// away. A fix is for the program alone, so that this time is left out before the change and after it. It was 19.5%,
// 4.3% and 0.1% of the time in recordings of an H200 where the program ran at 81%, 87% and 99% of its pace (launches,
// empty-cache, network; docs/accuracy.md).
type recorder struct {
	// share is the share of samples in the recorder's code of those in calls of a name, and with no name of those of
	// the thread in no call.
	share map[function]float64
	// the share of the computing that no sample names: between launches, and after synchronizations
	unnamed map[thread]float64
	cost    float64 // of the time that was replayed
	// added is by name the share of calls' time that windows add, and launching that of launches of kernels, which are
	// not timed outside of windows: what steps take longer beyond those.
	added     map[string]float64
	launching float64
	graphGap  float64 // likewise of the delays between the nodes of graphs
}

// graphNode is what recording a node of a graph costs the GPU at most, ns: 300 kernels of 1 µs took 0.39 ms in place of
// 0.28, and 1,200 15% longer (H200).
const graphNode = 400

// mostLearned bounds which share of what is launching is taken for the recorder's.
const mostLearned = 0.95

// learned takes what comparing calls and steps inside and outside of windows says.
func (r *recorder) learned(t *timeline.Timeline, parts []part, e *observer.Effect) {
	if e == nil {
		return
	}
	r.added = map[string]float64{}
	for f, s := range e.Calls {
		r.added[t.Rec.Meta.Functions[f].Base] = s.Mean
	}
	calls, launches, nodes, gaps, all := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, p := range parts {
		all += float64(p.graph.Observed())
		for i := range p.graph.Whats {
			w, own := &p.graph.Whats[i], float64(p.graph.Times[i].Own)
			switch {
			case w.Graph:
				nodes += graphNode * float64(p.graph.Times[i].Count)
				gaps += float64(p.graph.Times[i].Gap)
			case w.Kind != replay.Call:
			case r.added[w.Name] > 0:
				calls += r.added[w.Name] * own
			case isLaunch(w.Name):
				launches += own
			}
		}
	}
	rest := e.Steps.Mean*all - calls
	if rest <= 0 {
		return
	}
	// Nodes of graphs have their part of it, but no more than they are known to cost.
	ofNodes := min(rest, nodes, gaps)
	if launches > 0 {
		ofNodes *= nodes / (nodes + launches)
		r.launching = min(mostLearned, (rest-ofNodes)/launches)
	}
	if gaps > 0 {
		r.graphGap = min(mostLearned, ofNodes/gaps)
	}
}

// ofCall is the share of the time in a call that is the recorder's.
func (r *recorder) ofCall(w *replay.What) float64 {
	by := max(r.share[function{w.PID, w.TID, w.Name}], r.added[w.Name])
	if isLaunch(w.Name) {
		by = max(by, r.launching)
	}
	return by
}

// sooner is the share of a time without a CPU that goes where a recorder's thread had taken it away. The thread would
// have run on, and been ousted by another later: a scheduler that is fair gives back what was taken, and one that is
// not does not. What it does is between none and all.
const sooner = 0.5

// ofRecorder reports whether a frame is the recorder's: the agent's, CUPTI's, of which it is the one user, or that of a
// probe in the kernel.
func ofRecorder(f *recording.Frame) bool {
	if f.Kind == recording.KernelFrame {
		return strings.Contains(f.Name, "uprobe") || strings.Contains(f.Name, "exc_int3")
	}
	base := path.Base(f.File)
	return f.Kind == recording.NativeFrame &&
		(strings.HasPrefix(base, "memfd:inferscope-agent") || strings.HasPrefix(base, "libcupti.so"))
}

// recorderOf counts the samples of the threads that make calls.
func recorderOf(t *timeline.Timeline, n *namer) recorder {
	r := recorder{share: map[function]float64{}, unnamed: map[thread]float64{}}
	if !slices.ContainsFunc(t.Index.Samples, func(s threads.Sample) bool { return n.ofRecorder(uint64(s.Stack)) }) {
		return r // as of a program without an agent: which calls the others are in need not be looked for
	}
	byThread := map[thread]*timeline.Thread{}
	for i := range t.Threads {
		byThread[thread{t.Processes[t.Threads[i].Process].PID, t.Threads[i].TID}] = &t.Threads[i]
	}
	all := map[function]float64{}
	for i := range t.Index.Samples {
		s := &t.Index.Samples[i]
		th := byThread[thread{s.PID, s.TID}]
		if th == nil {
			continue
		}
		f := function{pid: s.PID, tid: s.TID}
		if op, ok := callAt(t, th, s.TS); ok {
			f.name = t.Rec.Meta.Functions[t.Ops[op].Func].Base
		}
		all[f]++
		if n.ofRecorder(uint64(s.Stack)) {
			r.share[f]++
		}
	}
	for f := range r.share {
		r.share[f] /= all[f]
	}
	return r
}

// spread gives what samples in no call show, and no stretch is named by, to the computing that has no name.
func (r *recorder) spread(parts []part) {
	type sums struct{ all, named, unnamed float64 }
	by := map[thread]*sums{}
	for _, p := range parts {
		for i := range p.graph.Whats {
			w, own := &p.graph.Whats[i], float64(p.graph.Times[i].Own)
			if w.Kind != replay.Run {
				continue
			}
			th := thread{w.PID, w.TID}
			if by[th] == nil {
				by[th] = &sums{}
			}
			by[th].all += own
			switch {
			case w.Recorder:
				by[th].named += own
			case w.Name == "":
				by[th].unnamed += own
			}
		}
	}
	for th, b := range by {
		if rest := r.share[function{pid: th.pid, tid: th.tid}]*b.all - b.named; rest > 0 && b.unnamed > 0 {
			r.unnamed[th] = min(1, rest/b.unnamed)
		}
	}
}

// callAt returns the outermost call that a thread was in at a time.
func callAt(t *timeline.Timeline, th *timeline.Thread, at uint64) (op int32, ok bool) {
	n := int32(sort.Search(int(th.Last-th.First), func(i int) bool { return t.Ops[th.First+int32(i)].Start > at }))
	if n == 0 {
		return timeline.None, false
	}
	op = t.Outermost(th.First + n - 1)
	return op, t.Ops[op].End() > at
}

// leaveOut lets threads compute without what the recorder did.
func (r *recorder) leaveOut(g *replay.Graph, plan *replay.Plan) {
	for i := range g.Whats {
		plan.Changes[i].Scale *= r.others(&g.Whats[i])
		if g.Whats[i].Graph {
			plan.Changes[i].Gap *= 1 - r.graphGap
		}
	}
}

// others is the share of the time of a What that is not the recorder's.
func (r *recorder) others(w *replay.What) float64 {
	switch {
	case w.Kind == replay.Run && w.Recorder:
		return 0
	case w.Kind == replay.Run && w.Name == "":
		return 1 - r.unnamed[thread{w.PID, w.TID}]
	case w.Kind == replay.Call:
		return 1 - r.ofCall(w)
	}
	return 1
}

// slack is by how much more than what steps inside and outside of windows show the recording may seem to cost.
const slack = 0.02

// contradicts reports whether comparing steps inside and outside of windows shows that recording took much less of the
// time than a share. So it is with a quota: what the recorder computes seems to use it up.
func (r *recorder) contradicts(e *observer.Effect, share float64) bool {
	return e != nil && e.Steps.High > 0 && share > 2*e.Steps.High+slack
}

// alwaysReady is the share of the time in which a thread can run from which on it never waits.
const alwaysReady = 0.95

// yield shortens the times without a CPU that the recorder's threads took away. A thread that never waits shares it
// with programs that take as much as they get: how much of it each has does not depend on who took it away first, and
// what those had after the recorder stays.
func (r *recorder) yield(g *replay.Graph, plan *replay.Plan) {
	ready := map[thread]float64{}
	for i := range g.Whats {
		if w := &g.Whats[i]; w.Kind == replay.Run || w.Kind == replay.Call || w.Kind == replay.Ready {
			ready[thread{w.PID, w.TID}] += float64(g.Times[i].Own)
		}
	}
	for i := range g.Whats {
		w := &g.Whats[i]
		if w.Kind != replay.Ready || !w.Recorder {
			continue
		}
		if !w.Beyond || ready[thread{w.PID, w.TID}] < alwaysReady*float64(g.Observed()) {
			plan.Changes[i].Scale *= 1 - sooner
		}
	}
}

// ofRecorder reports whether a stack goes through the recorder's code.
func (n *namer) ofRecorder(stack uint64) bool {
	if stack == 0 || stack >= uint64(len(n.theirs)) {
		return false
	}
	if n.theirs[stack] == 0 {
		n.theirs[stack] = 1
		for i := range threads.Walk(n.t.Rec, stack) {
			if ofRecorder(&n.t.Rec.Meta.Frames[i]) {
				n.theirs[stack] = 2
				break
			}
		}
	}
	return n.theirs[stack] == 2
}

// lessCrowded lets threads have no CPU for less of the time where less is computed: others take it away while it is
// used, and a quota is used up by using it, by all threads of the target. Who has to wait for one after something else
// waits for others that compute: for the target's as far as these do, else for other programs, of which nothing is
// known to change. Where a plan says itself what becomes of that time it is left alone. What the recorder computed
// counts as long as r is nil.
func lessCrowded(g *replay.Graph, plan *replay.Plan, r *recorder) {
	was, is := map[thread]float64{}, map[thread]float64{}
	var allWas, allIs float64
	for i := range g.Whats {
		if w, c := &g.Whats[i], &plan.Changes[i]; w.Kind == replay.Run || w.Kind == replay.Call {
			th, own := thread{w.PID, w.TID}, float64(g.Times[i].Own)
			before := own
			if r != nil {
				before *= r.others(w)
			}
			was[th], allWas, allIs = was[th]+before, allWas+before, allIs+own*c.Scale
			if c.Apart == 0 {
				is[th] += own * c.Scale
			}
		}
	}
	for i := range g.Whats {
		w := &g.Whats[i]
		if w.Kind != replay.Ready || plan.Changes[i] != replay.Keep() {
			continue
		}
		th, c := thread{w.PID, w.TID}, &plan.Changes[i]
		othersWas, othersAre := allWas-was[th], allIs-is[th]
		switch {
		case w.Cause == cause.Throttled:
			if allIs < allWas {
				c.Scale = allIs / allWas
			}
		case w.Ousted && is[th] < was[th]:
			c.Scale = is[th] / was[th]
		case !w.Ousted && othersAre < othersWas:
			c.Scale = 1 - min(1, othersWas/float64(g.Observed()))*(1-othersAre/othersWas)
		}
	}
}
