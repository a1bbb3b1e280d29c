package diagnose

import (
	"fmt"
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// A recording in windows is a sample of the time: what they say is as sure as they are many and alike.

// mostWindows bounds how many windows are told apart.
const mostWindows = 4096

// inWindow adds time of a step to the window that it lies in.
func (g *group) inWindow(a *analysis, s *gap.Step, in *gap.Gap, ns uint64) {
	if in == nil || in.Device < 0 || int(in.Device) >= len(a.w.Covered) {
		return
	}
	spans := a.w.Covered[in.Device]
	if i := spans.At(s.From); len(spans) > 1 && i < min(len(spans), mostWindows) {
		if g.windows == nil {
			g.windows = make([]uint64, min(len(spans), mostWindows))
		}
		if i < len(g.windows) {
			g.windows[i] += ns
		}
	}
}

// few is the number of windows below which their spread says little.
const few = 4

// sampleOf is what a share rests on: windows in a longer time.
type sampleOf struct {
	windows   int
	low, high float64 // the least and the largest share of one
	off       float64 // standard error of the mean, relative to it
}

// sampleOf returns what the share of a group rests on; no windows where all of the time was recorded, or where its time
// is not known by window.
func (a *analysis) sampleOf(g *group) sampleOf {
	var spans timeline.Spans
	for _, c := range a.w.Covered {
		if len(c) > len(spans) {
			spans = c
		}
	}
	if share(a.total.Time, a.total.Window) > leastContinuous || len(spans) == 0 {
		return sampleOf{}
	}
	s := sampleOf{windows: len(spans), low: 1}
	sum := uint64(0)
	for _, n := range g.windows {
		sum += n
	}
	if len(spans) == 1 || 10*sum < 9*g.cost { // gaps that are known in sums only
		s.low, s.high = 0, 0
		return s
	}
	mean, squares, n := float64(sum)/float64(spans.Total()), 0.0, 0.0
	for i := range g.windows {
		x := float64(g.windows[i]) / float64(max(1, spans[i].To-spans[i].From))
		s.low, s.high = min(s.low, x), max(s.high, min(1, x))
		squares += (x - mean) * (x - mean)
		n++
	}
	s.off = math.Sqrt(squares/max(1, n-1)/n) / max(mean, 1e-9)
	return s
}

// leastContinuous is the share of the time from which on what was recorded is no sample of it.
const leastContinuous = 0.5

// believed lowers a confidence where windows are few, or differ.
func (s *sampleOf) believed(because *[]string) float64 {
	if s.windows == 0 {
		return 1
	}
	by := 1.0
	if s.windows < few {
		by = 0.7 + 0.1*float64(s.windows-1)
		*because = append(*because, fmt.Sprintf("it rests on %s only", format.Plural(s.windows, "window", "windows")))
	}
	const noted = 0.1
	if s.off > noted {
		by *= max(0.5, 1-s.off)
		*because = append(
			*because,
			fmt.Sprintf("its share differs between %s: from %s to %s", format.Plural(s.windows, "window", "windows"),
				format.Percent(s.low), format.Percent(s.high)),
		)
	}
	return by
}

// insideMean is how long an iteration takes on average in the time that is broken down, ns: what is recorded in windows
// divides by the iterations in them. It is Mean where iterations were not recorded all the time.
func (a *analysis) insideMean(it *Iteration) uint64 {
	known := len(it.Starts) == len(it.Durations)
	if len(it.Durations) == 0 || !known && (!it.Always || !it.tiled()) {
		return it.Mean
	}
	var time uint64
	count := 0.0
	for _, spans := range a.w.Covered {
		at, k := it.From, 0
		for i, d := range it.Durations {
			if known {
				at = it.Starts[i]
			}
			end := at + d
			for ; k < len(spans) && spans[k].To <= at; k++ {
			}
			for j := k; j < len(spans) && spans[j].From < end; j++ {
				inside := min(end, spans[j].To) - min(end, max(at, spans[j].From))
				time += inside
				count += float64(inside) / float64(max(1, d))
			}
			at = end
		}
	}
	if count < 1 {
		return it.Mean
	}
	return uint64(float64(time) / count)
}

// outside returns the share of the time that is broken down in which nothing repeats. The iterations at its two ends are
// cut off, and count as iterations.
func (a *analysis) outside(it *Iteration) float64 {
	known := a.w.Covered
	if a.subject != aboutGPUs {
		known = []timeline.Spans{{a.within}}
	}
	cut := min(it.Max, 2*it.P50) // one long one says nothing of those at the ends
	iterating := timeline.Spans{{From: it.From - min(it.From, cut), To: it.To + cut}}
	var time, inside uint64
	for _, spans := range known {
		time += spans.Total()
		inside += spans.Both(iterating).Total()
	}
	return share(time-inside, time)
}

// throughout keeps what windows say within what was recorded all the time: that a thread had no CPU for most of one
// window is chance where it is not of the time as a whole.
func (a *analysis) throughout(f *Finding, id cause.ID) {
	if a.subject != aboutGPUs || a.total.recorded() > leastContinuous {
		return
	}
	if id == cause.NoWork && a.total.excess > 0 {
		windows := share(a.total.excess+a.total.Idle[id], a.total.Time+a.total.excess)
		f.Because = append(
			f.Because,
			fmt.Sprintf("the windows say %s; requests, which are recorded all the time, say %s",
				format.Percent(windows), format.Percent(f.Share)),
		)
	}
	within := func(whole float64, by string) {
		if whole >= f.Share {
			return
		}
		f.Because = append(
			f.Because,
			fmt.Sprintf("the windows say %s, and %s for %s", format.Percent(f.Share), by, format.Percent(whole)),
		)
		f.Share, f.Cost = whole, uint64(whole*float64(a.total.Time))
	}
	if id != cause.NoCPU && id != cause.Throttled || f.TID == 0 {
		return
	}
	for i := range a.cpu.Threads {
		th := &a.cpu.Threads[i]
		if th.PID != f.PID || th.TID != f.TID {
			continue
		}
		lived := th.Running + th.Runnable + th.Blocked
		if lived > 0 {
			within(share(th.Runnable, lived), "scheduling, which is recorded all the time, that its thread had no CPU")
		}
		return
	}
}

// asked returns for how much of the time that is broken down somebody asked for something, ns.
func (a *analysis) asked() uint64 { return a.total.Time - a.total.Idle[cause.NoWork] }

// noWork returns the share of the time in which nobody asked for anything.
func (a *analysis) noWork() float64 { return share(a.total.Idle[cause.NoWork], a.total.Time) }

// boundNoWork leaves out of the devices' time in which nobody asked for anything what windows hold of it beyond its
// share of the recording as a whole, which requests tell. What remains are the shares of windows drawn from both kinds
// of time in the right proportion.
func (a *analysis) boundNoWork(devices []measured) {
	g := a.groups[cause.NoWork]
	if g == nil || g.cost == 0 {
		return
	}
	var sum measured
	for i := range devices {
		sum.add(&devices[i])
	}
	if sum.recorded() > leastContinuous {
		return
	}
	whole, known := a.unasked()
	asked := float64(sum.Time - sum.Idle[cause.NoWork])
	if !known || whole >= share(sum.Idle[cause.NoWork], sum.Time) || asked == 0 {
		return
	}
	left := whole / (1 - whole) * asked / float64(sum.Idle[cause.NoWork])
	for i := range devices {
		m := &devices[i]
		excess := uint64((1 - left) * float64(m.Idle[cause.NoWork]))
		m.Idle[cause.NoWork] -= excess
		m.Time -= excess
		m.excess += excess
	}
	g.shrink(left)
}
