package recording

import (
	"math"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// span is the time that a set of events covers, in ns of CLOCK_MONOTONIC.
type span struct {
	first, last uint64 // earliest and latest beginning
	end         uint64 // latest end
}

func emptySpan() span { return span{first: math.MaxUint64} }

func (s *span) add(e *event.Event) {
	s.first = min(s.first, e.TS)
	s.last = max(s.last, e.TS)
	s.end = max(s.end, e.End())
}

// touches reports whether some event of the span may overlap [from, to].
func (s *span) touches(from, to uint64) bool { return s.first <= to && s.end >= from }

// within reports whether every event of the span overlaps [from, to].
func (s *span) within(from, to uint64) bool { return s.first >= from && s.last <= to }

// overlaps reports whether a moment of e lies in [from, to], both included. A call
// that was running when the window opened is part of it: its rest took time there.
func overlaps(e *event.Event, from, to uint64) bool { return e.TS <= to && e.End() >= from }
