package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Covered returns for each device the time in which all that it did for the target was seen, and what threads did
// meanwhile.
func Covered(t *timeline.Timeline) []timeline.Spans {
	out, paused := make([]timeline.Spans, len(t.Devices)), pausedOf(t)
	for d := range t.Devices {
		out[d] = coveredOf(t, &t.Devices[d]).Without(paused)
	}
	return called(t, out)
}

// leastCalled is for how long calls must have been recorded of the time that is covered otherwise, ns, for the rest of
// it to be left out: some hundred steps of usual programs.
const leastCalled = 100_000_000

// called leaves out when calls were not recorded, where enough is left on each device: an agent records launches and
// copies, but no synchronization, so that a program which waits there for the GPU seems to launch slowly.
func called(t *timeline.Timeline, covered []timeline.Spans) []timeline.Spans {
	pauses := pausesOf(t, recording.CallsSource)
	if len(pauses) == 0 {
		return covered
	}
	out := make([]timeline.Spans, len(covered))
	for d, all := range covered {
		out[d] = all.Without(pauses)
		if out[d].Total() < min(leastCalled, all.Total()) {
			return covered
		}
	}
	return out
}

// maxPausedShare is the share of a recording up to which pauses of a source are left out. If a source was off for
// longer, what is left says less than the GPU's side does about all of the time.
const maxPausedShare = 0.5

// pausedOf returns when sources were off, or reduced to measure what they cost, that say what threads did.
func pausedOf(t *timeline.Timeline) timeline.Spans {
	var out timeline.Spans
	for _, source := range []string{recording.SchedulingSource, recording.SamplesSource} {
		if of := pausesOf(t, source); float64(of.Total()) <= maxPausedShare*float64(t.To-t.From) {
			out = append(out, of...)
		}
	}
	return timeline.Join(out)
}

// pausesOf returns when a source was off or reduced.
func pausesOf(t *timeline.Timeline, source string) timeline.Spans {
	var out []timeline.Span
	for _, p := range t.Rec.Meta.Overhead.PausedOf(source) {
		out = append(out, timeline.Span{From: max(p.From, t.From), To: min(p.To, t.To)})
	}
	return timeline.Join(out)
}

// coveredOf returns when all that a device did was seen: by all of its users at once.
func coveredOf(t *timeline.Timeline, d *timeline.Device) timeline.Spans {
	all := timeline.Join([]timeline.Span{{From: t.From, To: t.To}})
	for _, u := range d.Users {
		if int(u) >= len(t.Seen) {
			return nil
		}
		s := &t.Seen[u]
		all = all.Both(s.Activity).Without(s.Unsure).Without(s.Lossy)
	}
	return all
}

// find visits the gaps of all devices, by device, then From, without steps, until visit says that it is enough. It
// takes O(n) for n activities, and no memory.
func find(t *timeline.Timeline, covered []timeline.Spans, visit func(g *Gap) bool) {
	for d := range min(len(t.Devices), len(covered)) {
		f := finder{t: t, covered: covered[d], prev: None, visit: visit, gap: Gap{Device: int32(d)}}
		if !f.sweep(t.Devices[d].First, t.Devices[d].Last) {
			return
		}
	}
}

// finder sweeps over the activities of one device.
type finder struct {
	t       *timeline.Timeline
	covered timeline.Spans
	at      int // the span of covered that the last gap touched
	prev    int32
	gap     Gap // the last one
	visit   func(g *Gap) bool
}

func (f *finder) sweep(first, last int32) bool {
	end := uint64(0)
	for i := first; i < last; i++ {
		a := &f.t.Activities[i]
		if a.Start > end && !f.idle(end, a.Start, i) {
			return false
		}
		if a.End >= end {
			end, f.prev = a.End, i
		}
	}
	return f.idle(end, ^uint64(0), None)
}

// idle visits what of [from, to) was covered.
func (f *finder) idle(from, to uint64, next int32) bool {
	for f.at < len(f.covered) && f.covered[f.at].To <= from {
		f.at++
	}
	for i := f.at; i < len(f.covered) && f.covered[i].From < to; i++ {
		g := &f.gap
		g.From, g.To, g.Prev, g.Next = max(from, f.covered[i].From), min(to, f.covered[i].To), None, None
		if g.From >= g.To {
			continue
		}
		if g.From == from {
			g.Prev = f.prev
		}
		if g.To == to {
			g.Next = next
		}
		if !f.visit(g) {
			return false
		}
	}
	return true
}
