// Package observer learns what a window of GPU records adds to the program: the same calls, and the same steps, take
// longer inside of windows than outside, and the difference is the observer's and not the program's. It is a pure
// function of a timeline.
package observer

import (
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Effect is what windows add.
type Effect struct {
	// Calls is, by function of the recording's table, the share of the time in its calls inside of windows that is the
	// observer's. Functions that are not timed outside of windows are not in it.
	Calls map[uint16]Share
	Steps Share // of the time of steps inside of windows
	// Timed are the steps of the whole recording, where those outside of windows are known; Measure leaves them out.
	Timed []Step
}

// Share is a share with its interval, which holds the true one 9 times in 10. Nothing that can be told from chance has
// no Mean and no Low, and in High what it is at most. The zero Share: nothing is known.
type Share struct {
	Mean, Low, High float64
}

// Bounds of what is compared.
const (
	leastCalls = 20         // calls of a function inside of windows, and as many outside
	leastSteps = 10         // likewise steps
	settled    = 20_000_000 // ns around a window that belong to neither: CUPTI is being subscribed, or buffers are flushed
	sigmas     = 1.64       // standard deviations that hold 9 of 10 values
	// maxAddedShare bounds what is believed: 283 µs inside and 12 µs outside were measured for cudaGraphLaunch (H200,
	// vLLM).
	maxAddedShare = 0.97
	// unmeasurable is a share that no comparison excludes: steps inside and outside are not the same steps.
	unmeasurable = 0.005
)

// Step is something that the program does again and again.
type Step struct{ From, To uint64 } // ns, CLOCK_MONOTONIC

// Measure compares calls, and steps in their order, inside and outside of the windows of a recording; steps may be
// none. Of a recording without windows, or without time outside of them, nothing is known.
func Measure(t *timeline.Timeline, steps []Step) *Effect {
	e := &Effect{Calls: map[uint16]Share{}}
	gpu := t.Rec.Meta.GPU
	if _, imported := t.Rec.Meta.ImportedFrom(); gpu == nil || imported || gpu.Mode == "continuous" {
		return e
	}
	var inside, near []timeline.Span
	for i := range gpu.Windows {
		w := &gpu.Windows[i]
		near = append(near, timeline.Span{From: w.From - min(w.From, settled), To: w.To + settled})
	}
	for i := range t.Seen {
		inside = append(inside, t.Seen[i].Activity...)
	}
	in, around := timeline.Join(inside), timeline.Join(near)
	if len(in) == 0 {
		return e
	}
	e.calls(t, in, around)
	var within, without []float64
	for _, s := range steps {
		switch place(in, around, s.From, s.To) {
		case insideOf:
			within = append(within, float64(s.To-s.From))
		case outsideOf:
			without = append(without, float64(s.To-s.From))
		}
	}
	if len(within) >= leastSteps && len(without) >= leastSteps {
		e.Steps = added(within, without)
	}
	return e
}

type where uint8

const (
	between where = iota
	insideOf
	outsideOf
)

// place reports where a time lies as a whole.
func place(in, around timeline.Spans, from, to uint64) where {
	if i := in.At(from); i < len(in) && in[i].From <= from && to <= in[i].To {
		return insideOf
	}
	if i := around.At(from); i == len(around) || around[i].From >= to {
		return outsideOf
	}
	return between
}

// calls compares the calls that launch graphs or enqueue copies: they are timed all the time, and do not wait.
func (e *Effect) calls(t *timeline.Timeline, in, around timeline.Spans) {
	functions := t.Rec.Meta.Functions
	enqueues := make([]bool, len(functions))
	for i := range functions {
		f := &functions[i]
		enqueues[i] = f.Group == "graph" && strings.Contains(f.Base, "GraphLaunch") ||
			f.Group == "copy" && strings.Contains(f.Base, "Async")
	}
	within, without := map[uint16][]float64{}, map[uint16][]float64{}
	for i := range t.Ops {
		o := &t.Ops[i]
		if !enqueues[o.Func] {
			continue
		}
		switch place(in, around, o.Start, o.End()) {
		case insideOf:
			within[o.Func] = append(within[o.Func], float64(o.Dur))
		case outsideOf:
			without[o.Func] = append(without[o.Func], float64(o.Dur))
		}
	}
	for f, list := range within {
		if len(list) >= leastCalls && len(without[f]) >= leastCalls {
			if s := added(list, without[f]); s.Low > 0 {
				e.Calls[f] = s
			}
		}
	}
	// A call of the runtime is seen in windows, and outside of them the driver's call that it makes.
	for i := range functions {
		if _, known := e.Calls[uint16(i)]; !known && enqueues[i] && len(without[uint16(i)]) == 0 {
			for k := range functions {
				if s, ok := e.Calls[uint16(k)]; ok && family(functions[k].Base) == family(functions[i].Base) {
					e.Calls[uint16(i)] = s
				}
			}
		}
	}
}

// family is what a function of the driver and that of the runtime which calls it have in common.
func family(base string) string {
	if strings.Contains(base, "GraphLaunch") {
		return "GraphLaunch"
	}
	return "copy"
}

// added is the share of what is inside that is not outside, by the medians.
func added(within, without []float64) Share {
	in, inOff := median(within)
	out, outOff := median(without)
	if in <= 0 {
		return Share{}
	}
	share := func(out float64) float64 { return max(0, min(maxAddedShare, 1-out/in)) }
	off := sigmas * math.Hypot(outOff, inOff*out/in)
	s := Share{Mean: share(out), Low: share(out + off), High: share(out - off)}
	if s.Low == 0 {
		return Share{High: max(s.High, unmeasurable)}
	}
	return s
}

// median returns the median of a list and its standard error: that of a normal distribution whose deviation is 1.4826
// times the median absolute deviation (Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation", 1993).
func median(list []float64) (m, off float64) {
	m = quantile.Upper(list)
	away := make([]float64, len(list))
	for i, x := range list {
		away[i] = math.Abs(x - m)
	}
	const deviation, ofMedian = 1.4826, 1.2533
	return m, ofMedian * deviation * quantile.Upper(away) / math.Sqrt(float64(len(list)))
}
