package importer

import (
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// A file that is larger than memory is read all the same: of more rows than fit, the later half is given up, as often
// as it takes. What is left is the beginning of the trace, whole, and says so.

// room makes room for one more event, row or span; false where the time of it is given up already.
func (b *builder) room(ts uint64) (bool, error) {
	b.ends = max(b.ends, ts)
	if ts >= b.until {
		b.late++
		return false, nil
	}
	for b.held() >= b.limits.Events {
		if b.spans.count > b.limits.Events/2 {
			b.spans.least = max(shortest, 2*b.spans.least)
			b.shorten()
			continue
		}
		if !b.cut() {
			return false, fmt.Errorf("it has more than %d events at one time, the limit: %w",
				b.limits.Events, memlimit.ErrExceeded)
		}
	}
	if ts >= b.until {
		b.late++
		return false, nil
	}
	return true, nil
}

// held is how many events, rows and spans are kept.
func (b *builder) held() int { return len(b.events) + len(b.rows) + b.spans.count }

// cut gives up the later half of what is kept. False where there is none: all is of one time.
func (b *builder) cut() bool {
	const sample = 1 << 16
	every := max(1, b.held()/sample)
	var times []uint64
	for i := 0; i < len(b.events); i += every {
		times = append(times, b.events[i].TS)
	}
	for i := 0; i < len(b.rows); i += every {
		times = append(times, b.rows[i].TS)
	}
	for _, list := range b.spans.byThread {
		for i := 0; i < len(list); i += every {
			times = append(times, list[i].from)
		}
	}
	slices.Sort(times)
	until := times[len(times)/2]
	if until == times[0] { // more than half began at once
		return false
	}
	before := b.held()
	b.until = until
	late := func(e event.Event) bool { return e.TS >= until }
	b.events, b.rows = slices.DeleteFunc(b.events, late), slices.DeleteFunc(b.rows, late)
	b.spans.count = 0
	for k, list := range b.spans.byThread {
		list = slices.DeleteFunc(list, func(s span) bool { return s.from >= until })
		b.spans.byThread[k] = list
		b.spans.count += len(list)
	}
	b.late += uint64(before - b.held())
	return b.held() < before
}

// cutText describes what was dropped; "" if nothing was.
func (b *builder) cutText() string {
	if b.until == math.MaxUint64 {
		return ""
	}
	from := b.meta.From
	return fmt.Sprintf(
		"the file has more rows than fit into the memory that may be used (--max-memory): its first %.3f s of %.3f s "+
			"are read, %d later rows are not",
		float64(b.until-min(from, b.until))/1e9,
		float64(b.ends-min(from, b.ends))/1e9,
		b.late,
	)
}
