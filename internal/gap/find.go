package gap

import "github.com/inferscope/inferscope/internal/timeline"

// Find returns the gaps of all devices, by device, then From, without steps, and for each device
// the time in which all that it did for the target was seen. It takes O(n) for n activities.
func Find(t *timeline.Timeline) ([]Gap, []timeline.Spans) {
	gaps := make([]Gap, 0, countGaps(t))
	covered := Covered(t)
	for d := range t.Devices {
		f := finder{t: t, device: int32(d), covered: covered[d], gaps: gaps, prev: None}
		f.sweep(t.Devices[d].First, t.Devices[d].Last)
		gaps = f.gaps
	}
	return gaps, covered
}

// Covered returns for each device the time in which all that it did for the target was seen.
func Covered(t *timeline.Timeline) []timeline.Spans {
	out := make([]timeline.Spans, len(t.Devices))
	for d := range t.Devices {
		out[d] = coveredOf(t, &t.Devices[d])
	}
	return out
}

// countGaps returns how many gaps there are where all is covered, and room for the edges of what is.
func countGaps(t *timeline.Timeline) int {
	n := 0
	for d := range t.Devices {
		end := uint64(0)
		for i := t.Devices[d].First; i < t.Devices[d].Last; i++ {
			a := &t.Activities[i]
			if a.Start > end {
				n++
			}
			end = max(end, a.End)
		}
	}
	return n + 64
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

// finder sweeps over the activities of one device.
type finder struct {
	t       *timeline.Timeline
	device  int32
	covered timeline.Spans
	at      int // the span of covered that the last gap touched
	gaps    []Gap
	prev    int32
}

func (f *finder) sweep(first, last int32) {
	end := uint64(0)
	for i := first; i < last; i++ {
		a := &f.t.Activities[i]
		if a.Start > end {
			f.idle(end, a.Start, i)
		}
		if a.End >= end {
			end, f.prev = a.End, i
		}
	}
	f.idle(end, ^uint64(0), None)
}

// idle adds what of [from, to) was covered.
func (f *finder) idle(from, to uint64, next int32) {
	for f.at < len(f.covered) && f.covered[f.at].To <= from {
		f.at++
	}
	for i := f.at; i < len(f.covered) && f.covered[i].From < to; i++ {
		g := Gap{From: max(from, f.covered[i].From), To: min(to, f.covered[i].To), Device: f.device, Prev: None, Next: None}
		if g.From >= g.To {
			continue
		}
		if g.From == from {
			g.Prev = f.prev
		}
		if g.To == to {
			g.Next = next
		}
		f.gaps = append(f.gaps, g)
	}
}
