package diagnose

import (
	"math/bits"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// doing is what a device does at one instant. Where several things run at once, the first of this
// order counts: what a kernel hides is hidden, and a kernel that uses the device well hides one
// that does not.
type doing uint8

const (
	fullKernel    doing = iota // a kernel of which nothing bad is known
	memoryKernel               // one that waits for memory, by its name
	smallKernel                // one with fewer blocks than half the multiprocessors
	tinyKernel                 // one that is over sooner than it was launched
	communicating              // one that exchanges data with other GPUs: what no kernel above hides is exposed
	heldToDevice               // a copy that is pageable or synchronous: it holds its caller
	freeToDevice               // one that need not
	heldToHost
	freeToHost
	peerCopy   // between GPUs
	resultCopy // a few bytes to the host: a way to wait for a result, as .item() does
	ownCopy    // inside the device
	setting    // a memset
	doings
)

// sweep measures for how long a device did each of the doings, inside spans of time. Activities
// come in the order of their beginnings; it needs no memory.
type sweep struct {
	inside cutter
	both   cutter
	copied uint64 // ns: copies from and to somewhere else, hidden or not
	talked uint64 // ns: communication, hidden or not
	talks  uint64 // up to where communication is counted
	third  cutter
	until  uint64         // up to where copies are counted
	now    uint64         // up to where all is counted
	open   uint16         // doings that have not ended, a bit for each
	ends   [doings]uint64 // when each ends, as far as is known
	Time   [doings]uint64
}

// add notes that the device does what from one time on until another.
func (s *sweep) add(what doing, from, to uint64) {
	if what >= heldToDevice && what <= resultCopy && to > s.until {
		s.copied += s.both.cut(max(from, s.until), to)
		s.until = to
	}
	if what == communicating && to > s.talks {
		s.talked += s.third.cut(max(from, s.talks), to)
		s.talks = to
	}
	s.advance(from)
	if to > s.now {
		s.ends[what] = max(s.ends[what], to)
		s.open |= 1 << what
	}
}

// finish counts what still runs.
func (s *sweep) finish() { s.advance(^uint64(0)) }

// advance counts everything up to a time.
func (s *sweep) advance(to uint64) {
	for s.open != 0 && s.now < to {
		first := doing(bits.TrailingZeros16(s.open))
		if s.ends[first] <= s.now {
			s.open &^= 1 << first
			continue
		}
		end := min(to, s.ends[first])
		s.Time[first] += s.inside.cut(s.now, end)
		s.now = end
	}
	s.now = max(s.now, to)
}

// cutter cuts stretches of time that come in order to spans.
type cutter struct {
	spans timeline.Spans
	at    int
}

// cut returns how much of [from, to) lies in the spans.
func (c *cutter) cut(from, to uint64) uint64 {
	for c.at < len(c.spans) && c.spans[c.at].To <= from {
		c.at++
	}
	n := uint64(0)
	for i := c.at; i < len(c.spans) && c.spans[i].From < to; i++ {
		n += min(to, c.spans[i].To) - max(from, c.spans[i].From)
	}
	return n
}
