package gpu

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/histogram"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// asked follows the calls that activities are linked to, from the call to the end of the last activity.
type asked struct {
	t       *timeline.Timeline
	last    []int32 // by op: index + 1 of that of its activities that ended last; 0: it has none
	order   order   // of the activities
	latency histogram.Histogram
	ops     int    // with activities
	graphs  uint64 // ops
	nodes   uint64 // their activities
}

// order says of the activities, in the order in which they came, whether they ended in that order, and whether those
// that came first of their calls were asked for in it.
type order struct {
	endsApart, startsApart bool
	end, start             uint64 // ns, of the last one
}

func newAsked(t *timeline.Timeline) *asked {
	q := &asked{t: t, last: make([]int32, len(t.Ops))}
	clear(q.last) // fresh memory that is read before it is written is mapped twice
	return q
}

// add notes the activity at index i. Those of one call come in the order of their beginnings.
func (q *asked) add(i int32, act *timeline.Activity) {
	if act.Op == timeline.None {
		return
	}
	if act.Link == timeline.ByGraph {
		q.nodes++
	}
	q.order.endsApart = q.order.endsApart || act.End < q.order.end || act.End < q.t.Ops[act.Op].Start
	q.order.end = act.End
	if last := &q.last[act.Op]; *last != 0 {
		if act.End > q.t.Activities[*last-1].End {
			*last = i + 1
		}
		return
	}
	q.last[act.Op] = i + 1
	q.first(act)
}

// first notes the first activity of a call.
func (q *asked) first(act *timeline.Activity) {
	start := q.t.Ops[act.Op].Start
	q.order.startsApart = q.order.startsApart || start < q.order.start
	q.order.start = start
	q.ops++
	if act.Link == timeline.ByGraph {
		q.graphs++
	}
	// Of a graph with lost records the first node may be another one.
	sound := !act.Graph || q.t.Seen[q.t.Streams[act.Stream].Process].Dropped == 0
	if act.Kind == timeline.Kernel && act.Start >= start && sound {
		q.latency.Add(act.Start - start)
	}
}

// result is the queue where both calls and activities were recorded.
func (q *asked) result(t *timeline.Timeline) queue {
	both := either(t, func(s *timeline.Seen) timeline.Spans { return s.Activity.Both(s.Calls) })
	return q.queue(cover(t, both, all(t)), both)
}

// queue sweeps over the calls that were launched and had not ended.
func (q *asked) queue(c Coverage, spans timeline.Spans) queue {
	ends, starts := q.ends(), q.starts()
	out := queue{Coverage: c}
	w := sweep{spans: spans}
	depth := uint64(0)
	start, more := starts()
	for end, ok := ends(); ok; end, ok = ends() {
		for ; more && start <= end; start, more = starts() {
			w.advance(start, depth)
			depth++
			out.Max = max(out.Max, depth)
		}
		w.advance(end, depth)
		depth--
	}
	if n := len(spans); n > 0 {
		w.advance(spans[n-1].To, depth)
	}
	total := spans.Total()
	out.Empty = share(w.empty, total)
	if total > 0 {
		out.Mean = w.area / float64(total)
	}
	return out
}

// sweep sums a depth over the time inside spans.
type sweep struct {
	spans timeline.Spans
	at    int
	now   uint64
	area  float64 // depth times ns
	empty uint64  // ns
}

// advance goes on to a time; the depth was the same until then.
func (w *sweep) advance(to, depth uint64) {
	if to <= w.now {
		return
	}
	for w.at < len(w.spans) {
		s := w.spans[w.at]
		if from, end := max(w.now, s.From), min(to, s.To); from < end {
			w.area += float64(depth) * float64(end-from)
			if depth == 0 {
				w.empty += end - from
			}
		}
		if s.To > to {
			break
		}
		w.at++
	}
	w.now = to
}

// launches counts the calls that started something in the windows in which they were recorded.
func (a *analysis) launches(c Coverage) launches {
	t := a.t
	out := launches{Coverage: c}
	var times histogram.Histogram
	perProcess := make([]uint64, len(t.Seen))
	kinds := a.starters()
	for i := range t.Threads {
		th := &t.Threads[i]
		w := clipper{spans: t.Seen[th.Process].Calls}
		for op := th.First; op < th.Last; op++ {
			o := &t.Ops[op]
			kind := kinds[o.Func]
			if kind == startsNothing || !o.Outer() || t.Early(o) || !w.holds(o.Start) {
				continue
			}
			perProcess[th.Process]++
			if kind == startsKernel {
				out.Kernels++
			} else {
				out.Graphs++
			}
			if o.Timed {
				times.Add(o.Dur)
				out.Timed++
				out.CallTime += o.Dur
			}
		}
	}
	for p, n := range perProcess {
		out.PerSecond += share(n, t.Seen[p].Calls.Total()) * 1e9
	}
	out.P50, out.P99 = times.Percentile(50), times.Percentile(99)
	return out
}

// holds reports whether a time lies in the spans. Times come in order.
func (c *clipper) holds(ts uint64) bool {
	for c.at < len(c.spans) && c.spans[c.at].To <= ts {
		c.at++
	}
	return c.at < len(c.spans) && c.spans[c.at].From <= ts
}

// starter is what calls of a function start.
type starter uint8

const (
	startsNothing starter = iota
	startsKernel
	startsGraph
)

// starters returns, for each function of the recording, what it starts.
func (a *analysis) starters() []starter {
	out := make([]starter, len(a.t.Rec.Meta.Functions))
	for i := range out {
		switch f := &a.t.Rec.Meta.Functions[i]; {
		case f.Group == "launch":
			out[i] = startsKernel
		case f.Group == "graph" && strings.HasSuffix(f.Base, "GraphLaunch"):
			out[i] = startsGraph
		}
	}
	return out
}
