package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// windowed counts launches where they are recorded in windows.
type windowed struct {
	out        Windows
	perProcess []uint64         // launches
	seen       []timeline.Spans // when they were recorded, by process
}

// windowsOf returns the windows in which launches were recorded; nil where they were all the time,
// as in a recording that nobody asked GPU activity of.
func windowsOf(t *timeline.Timeline) *windowed {
	if t.Rec.Meta.GPU == nil {
		return nil
	}
	w := &windowed{perProcess: make([]uint64, len(t.Processes)), seen: make([]timeline.Spans, len(t.Processes))}
	var list []timeline.Span
	for p := range t.Seen {
		w.seen[p] = t.Seen[p].Calls
		list = append(list, t.Seen[p].Calls...)
	}
	joined := timeline.Join(list)
	w.out.Time, w.out.Count = joined.Total(), len(joined)
	return w
}

// count counts a launch.
func (w *windowed) count(o *op) {
	w.out.Launches++
	w.perProcess[o.process]++
}

// result returns what is said of the windows, nil where there are none.
func (w *windowed) result(win Window) *Windows {
	if w == nil {
		return nil
	}
	out := w.out
	out.Share = share(out.Time, win.Observed)
	for p, launches := range w.perProcess {
		out.PerSecond += perSecond(launches, w.seen[p].Total())
	}
	return &out
}

// rate returns how many of n operations there were per second: launches in the time in which
// they were recorded, all others in the observed part of the window.
func (w *Windows) rate(n uint64, win Window) float64 {
	if w == nil {
		return perSecond(n, win.Observed)
	}
	return perSecond(n-w.Launches, win.Observed) + w.PerSecond
}

// span measures the union of intervals that come in the order of their beginnings.
type span struct{ end uint64 }

// add returns how much [from, to) adds to the union, in ns.
func (s *span) add(from, to uint64) uint64 {
	from = max(from, s.end)
	if to <= from {
		return 0
	}
	s.end = to
	return to - from
}

// interval is a stretch of time, in ns.
type interval struct{ from, to uint64 }

// union returns how much time the intervals cover together, in ns. It sorts them.
func union(list []interval) uint64 {
	slices.SortFunc(list, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	var s span
	total := uint64(0)
	for _, iv := range list {
		total += s.add(iv.from, iv.to)
	}
	return total
}
