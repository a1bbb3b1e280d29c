package gap

import (
	"sort"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// capture is a time in which a thread recorded launches into a graph: they start nothing.
type capture struct {
	from, to uint64 // ns
	op       int32  // the call that began it
}

// capturesOf returns when a thread captured graphs, from the return of cudaStreamBeginCapture to the beginning of
// cudaStreamEndCapture. A capture whose end was not recorded is none.
func (w *walker) capturesOf(ops *calls) []capture {
	if !w.capturing {
		return nil
	}
	var out []capture
	begun := None
	for k := range ops.count {
		i := ops.at(k)
		switch o := &w.t.Ops[i]; {
		case w.classes[o.Func].begins:
			begun = i
		case w.classes[o.Func].ends && begun != None:
			out = append(out, capture{from: w.t.Ops[begun].End(), to: max(o.Start, w.t.Ops[begun].End()), op: begun})
			begun = None
		}
	}
	return out
}

// beginCapture and endCapture are in the names of the calls that begin and end a capture.
const beginCapture, endCapture = "BeginCapture", "EndCapture"

// marksCapture reports whether a call begins a capture of a graph, or ends one.
func marksCapture(base string) (begins, ends bool) {
	return strings.Contains(base, beginCapture), strings.Contains(base, endCapture)
}

// explain makes the steps of what a thread did in [from, to).
func (w *walker) explain(th *thread, from, to uint64) {
	w.outsideCaptures(th, from, to, func(u, v uint64) { w.explainPart(th, u, v) })
}

// outsideCaptures visits the stretches of [from, to) in which a thread captured no graph, and makes the steps of the
// others: what it did then made the graph, and was no launching that a graph could save.
func (w *walker) outsideCaptures(th *thread, from, to uint64, visit func(u, v uint64)) {
	for i := th.captureFrom(from); i < len(th.captures) && th.captures[i].from < to; i++ {
		c := &th.captures[i]
		if c.from > from {
			visit(from, c.from)
		}
		w.emit(max(from, c.from), min(to, c.to), cause.Compilation, detail{th: th, op: c.op + 1})
		from = min(to, c.to)
	}
	if from < to {
		visit(from, to)
	}
}

// captureFrom returns the place of the first capture of a thread that ends after a time.
func (th *thread) captureFrom(at uint64) int {
	return sort.Search(len(th.captures), func(i int) bool { return th.captures[i].to > at })
}

// capturing reports whether a thread captured a graph at a time.
func (th *thread) capturing(at uint64) bool {
	i := th.captureFrom(at)
	return i < len(th.captures) && th.captures[i].from <= at
}
