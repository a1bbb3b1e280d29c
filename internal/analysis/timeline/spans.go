package timeline

import (
	"cmp"
	"slices"
)

// Span is an interval [From, To), ns of CLOCK_MONOTONIC.
type Span struct{ From, To uint64 }

// Spans are intervals in ascending order that do not touch each other.
type Spans []Span

// Join makes Spans of any spans: it sorts them, which changes list, and puts together
// those that touch. Empty ones are left out.
func Join(list []Span) Spans {
	slices.SortFunc(list, func(x, y Span) int { return cmp.Compare(x.From, y.From) })
	var out Spans
	for _, s := range list {
		switch {
		case s.To <= s.From:
		case len(out) > 0 && s.From <= out[len(out)-1].To:
			out[len(out)-1].To = max(out[len(out)-1].To, s.To)
		default:
			out = append(out, s)
		}
	}
	return out
}

// Total returns how long the spans are together, in ns.
func (s Spans) Total() uint64 {
	n := uint64(0)
	for _, p := range s {
		n += p.To - p.From
	}
	return n
}

// At returns the index of the span that holds ts, else of the first one after it.
func (s Spans) At(ts uint64) int {
	i, _ := slices.BinarySearchFunc(s, ts, func(p Span, ts uint64) int {
		if p.To <= ts {
			return -1
		}
		return 1
	})
	return i
}

// Holds reports whether ts lies in one of the spans.
func (s Spans) Holds(ts uint64) bool {
	i := s.At(ts)
	return i < len(s) && s[i].From <= ts
}

// Both returns what s and o have in common.
func (s Spans) Both(o Spans) Spans {
	var out Spans
	for i, j := 0, 0; i < len(s) && j < len(o); {
		from, to := max(s[i].From, o[j].From), min(s[i].To, o[j].To)
		if from < to {
			out = append(out, Span{from, to})
		}
		if s[i].To < o[j].To {
			i++
		} else {
			j++
		}
	}
	return out
}

// Without returns what of s is not in o.
func (s Spans) Without(o Spans) Spans {
	var out Spans
	j := 0
	for _, p := range s {
		for j < len(o) && o[j].To <= p.From {
			j++
		}
		from := p.From
		for k := j; k < len(o) && o[k].From < p.To; k++ {
			if o[k].From > from {
				out = append(out, Span{from, o[k].From})
			}
			from = max(from, o[k].To)
		}
		if from < p.To {
			out = append(out, Span{from, p.To})
		}
	}
	return out
}
