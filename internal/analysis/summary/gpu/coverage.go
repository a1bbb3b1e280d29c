package gpu

import "github.com/inferscope/inferscope/internal/analysis/timeline"

// cover describes spans of time in which what some processes did was recorded.
func cover(t *timeline.Timeline, spans timeline.Spans, processes []int32) Coverage {
	c := Coverage{Time: spans.Total(), Windows: len(spans)}
	c.Share = share(c.Time, t.To-t.From)
	var unsure []timeline.Span
	for _, p := range processes {
		unsure = append(unsure, t.Seen[p].Unsure.Both(spans)...)
		if len(t.Seen[p].Lossy.Both(spans)) > 0 {
			c.Dropped += t.Seen[p].Dropped
		}
	}
	c.Unsure = timeline.Join(unsure).Total()
	return c
}

// all returns the indices of all processes.
func all(t *timeline.Timeline) []int32 {
	var out []int32
	for p := range t.Seen {
		out = append(out, int32(p))
	}
	return out
}

// either returns the union of the spans of all processes.
func either(t *timeline.Timeline, spans func(*timeline.Seen) timeline.Spans) timeline.Spans {
	var list []timeline.Span
	for p := range t.Seen {
		list = append(list, spans(&t.Seen[p])...)
	}
	return timeline.Join(list)
}

func activityOf(s *timeline.Seen) timeline.Spans { return s.Activity }

func callsOf(s *timeline.Seen) timeline.Spans { return s.Calls }

// together returns the time in which all of the processes were recorded: only then is it known
// what a device did.
func together(t *timeline.Timeline, processes []int32) timeline.Spans {
	var out timeline.Spans
	for i, p := range processes {
		if i == 0 {
			out = t.Seen[p].Activity
			continue
		}
		out = out.Both(t.Seen[p].Activity)
	}
	return out
}

// share returns part of whole, 0 where there is no whole.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
