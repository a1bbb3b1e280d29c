package recording

import (
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Bounds of a Recorder.
const (
	MinBudget   = 1_000_000 // bytes; less would not hold a tenth of a second of a busy target
	maxSegment  = 256 << 10 // bytes: some 50,000 events
	minSegments = 32        // a small budget is cut into this many segments
	reserveFrac = 8         // one segment of this many is kept from the live ones
	writerNeeds = 2         // segments that no snapshot may hold: the one being filled, and the next
	maxUnsummed = 4096      // bytes of a segment that its checksum does not cover yet; a snapshot makes up for them
	spare       = 8         // segments and packers that keep their memory though unused: a steady rate takes none anew
)

// Recorder keeps the last events within a byte budget. One goroutine appends;
// any number read snapshots and statistics meanwhile.
//
// Events lie packed in segments, each target's in its own. When the budget is used up, the oldest
// segment of the user who has most makes room (share.go); a segment that a Snapshot shows is not
// written again before its release. An eighth of the segments is held back from the live ones, so
// that the writer and the next snapshots go on while a reader holds all that was live: a slow
// reader makes the window shorter, and never makes the recorder lose new events or take more
// memory.
type Recorder struct {
	budget      int64
	keep        uint64 // ns; 0: no limit
	perSegment  int    // bytes
	maxSegments int    // live, pinned and free together
	maxLive     int
	maxPinned   int

	memory memory

	mu        sync.Mutex
	histories []*history // those of targets, and the first: of events that are nobody's
	of        map[uint32]assignment
	ended     []uint32   // processes that have ended, whose last events may still come
	free      []*segment // neither live nor pinned
	cold      []*segment // likewise, and without memory
	live      int        // segments that are live
	allocated int        // segments that have memory
	pinned    int        // segments that snapshots show
	states    []*state   // of packers that nobody uses, spare at most
	limit     uint64     // events a second of one target; 0: no limit
	passed    uint64     // ns: when shares of the limit were last given out
	forgotten uint64     // ns: since when histories are complete that were let go of
	tally     Tally
	stats     Stats
}

// segment is a stretch of one target's events in the order of their arrival. What a snapshot
// shows of it is never written: the writer only appends behind it.
type segment struct {
	room    []byte
	used    int    // bytes
	count   int    // events
	sum     uint32 // CRC-32C of the first summed bytes
	summed  int
	span    span
	history *history
	pins    int  // snapshots that show it
	live    bool // in history.live
}

// Stats is the state of a Recorder.
type Stats struct {
	Budget      int64  // bytes
	Used        int64  // bytes of memory taken for events, never more than Budget
	Events      uint64 // held now
	Appended    uint64 // since the start
	Overwritten uint64 // events that made room within the budget
	Expired     uint64 // events that were older than what is to be kept
	Throttled   uint64 // events that were not taken, because their target made too many
	Damaged     uint64 // events that did not match their checksum when they were read
	Since       uint64 // ns, CLOCK_MONOTONIC: every event that began at or after it is held; 0: every event
	Newest      uint64 // ns, CLOCK_MONOTONIC: the latest beginning of an event; 0: none yet
	Pinned      int64  // bytes that snapshots hold
}

// NewRecorder makes a recorder that takes at most budget bytes for its events and
// lets go of events that are older than keep, a segment at a time (keep 0: only the
// budget counts). Memory is taken as it is needed, and given back when what was in it
// has expired. It is an error if there is not so much address space, if budget is
// below MinBudget or keep is negative.
func NewRecorder(budget int64, keep time.Duration) (*Recorder, error) {
	if budget < MinBudget {
		return nil, fmt.Errorf("a recorder of %d bytes is too small: give at least %d (--trace-size-mb 1)",
			budget, MinBudget)
	}
	if keep < 0 {
		return nil, fmt.Errorf("a recorder cannot keep events for %v: give a positive time (--keep 60s)", keep)
	}
	perSegment := wholePages(int(min(maxSegment, budget/minSegments)))
	return newRecorder(budget, keep, perSegment)
}

func newRecorder(budget int64, keep time.Duration, perSegment int) (*Recorder, error) {
	n := int(budget / int64(perSegment))
	r := &Recorder{
		budget: budget, keep: uint64(keep), perSegment: perSegment,
		maxSegments: n, maxLive: n - n/reserveFrac, maxPinned: n - writerNeeds,
		histories: []*history{{owner: nobody}}, of: map[uint32]assignment{},
	}
	var err error
	if r.memory, err = newMemory(r, n*perSegment); err != nil {
		return nil, err
	}
	for i := range n {
		r.cold = append(r.cold, &segment{room: r.memory.space[i*perSegment : (i+1)*perSegment : (i+1)*perSegment]})
	}
	return r, nil
}

// Append adds events in the order in which they ended. It packs them (BenchmarkPack), takes no
// memory once the budget is used, and holds the lock meanwhile.
func (r *Recorder) Append(events ...event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(events) > 0 {
		h, n := r.run(events)
		if taken := h.grant(n); taken > 0 {
			r.add(h, events[:taken])
		}
		events = events[n:]
	}
}

// add packs events of one history.
func (r *Recorder) add(h *history, events []event.Event) {
	r.stats.Appended += uint64(len(events))
	for len(events) > 0 {
		s := r.tail(h)
		n, at, covers := 0, s.used, s.span
		for n < len(events) && at+maxPacked <= len(s.room) {
			e := &events[n]
			if e.Dur > math.MaxInt64 {
				e = instant(*e)
			}
			at += h.state.pack(s.room[at:], e)
			covers.add(e)
			r.tally.Add(e)
			n++
		}
		s.used, s.span = at, covers
		s.count += n
		if at-s.summed >= maxUnsummed {
			s.checksum()
		}
		r.stats.Newest = max(r.stats.Newest, covers.last)
		events = events[n:]
	}
}

// instant returns an event that ended before it began as one that took no time: bpf_ktime_get_ns reads the clock
// without a lock, and may step back where the kernel corrects it (ktime_get_mono_fast_ns, kernel/time/timekeeping.c).
func instant(e event.Event) *event.Event {
	e.Dur = 0
	return &e
}

// checksum brings the checksum up to what is used.
func (s *segment) checksum() {
	s.sum = crc32.Update(s.sum, castagnoli, s.room[s.summed:s.used])
	s.summed = s.used
}

// tail returns the segment of a history that has room for the next event.
func (r *Recorder) tail(h *history) *segment {
	if n := len(h.live); n > 0 && h.live[n-1].used+maxPacked <= r.perSegment {
		return h.live[n-1]
	}
	s := r.take()
	*s = segment{room: s.room, span: emptySpan(), history: h, live: true}
	h.live = append(h.live, s)
	r.live++
	if h.state == nil {
		h.state = r.newState()
	}
	h.state.reset()
	return s
}

// newState returns the state of a packer, one that is spare if there is.
func (r *Recorder) newState() *state {
	if s := pop(&r.states); s != nil {
		return s
	}
	return new(state)
}

// take returns an unused segment: a free one, else new memory, else the oldest of who has most.
// There always is one, because snapshots together never hold more than maxPinned segments.
func (r *Recorder) take() *segment {
	r.expire()
	for r.live >= r.maxLive || (len(r.free) == 0 && r.allocated == r.maxSegments) {
		h := r.largest()
		n := r.evict(h)
		h.overwritten += n
		r.stats.Overwritten += n
	}
	if s := pop(&r.free); s != nil {
		return s
	}
	r.allocated++
	return pop(&r.cold)
}

// wholePages returns a number of bytes, no more than n, that fills pages, if there is one: only pages can be given
// back.
func wholePages(n int) int {
	page := os.Getpagesize()
	return max(n/page*page, min(n, page))
}

// pop takes the last element out of a list; nil: there is none.
func pop[T any](list *[]*T) *T {
	n := len(*list)
	if n == 0 {
		return nil
	}
	last := (*list)[n-1]
	*list = (*list)[:n-1]
	return last
}

// expire lets go of segments in which every event ended before the time to keep.
func (r *Recorder) expire() {
	oldest := r.oldest()
	for _, h := range r.histories {
		for len(h.live) > 0 && h.live[0].span.end < oldest {
			r.stats.Expired += r.evict(h)
		}
	}
	for len(r.free) > spare {
		s := pop(&r.free)
		r.memory.release(s.room)
		r.cold = append(r.cold, s)
		r.allocated--
	}
}

// oldest returns the time (ns) before which events have expired. What a target claims to have done later than now
// makes nobody's events older.
func (r *Recorder) oldest() uint64 {
	now := r.stats.Newest
	if r.passed > 0 {
		now = min(now, r.passed)
	}
	if r.keep == 0 {
		return 0
	}
	return now - min(now, r.keep)
}

// evict lets go of the oldest segment of a history and returns how many events that were.
func (r *Recorder) evict(h *history) uint64 {
	s := h.live[0]
	h.live = slices.Delete(h.live, 0, 1)
	r.live--
	s.live = false
	h.since = max(h.since, s.span.last+1)
	r.stats.Since = max(r.stats.Since, h.since)
	if s.pins == 0 {
		r.free = append(r.free, s)
	} else {
		h.retained++
	}
	if len(h.live) == 0 {
		if len(r.states) < spare {
			r.states = append(r.states, h.state)
		}
		h.state = nil
	}
	return uint64(s.count)
}

// Since returns the time (ns, CLOCK_MONOTONIC) from which the recorder is
// complete: every event that was appended and began then or later is held.
// 0 means that nothing was ever let go.
func (r *Recorder) Since() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats.Since
}

// Needed returns the time (ns, CLOCK_MONOTONIC) before which nothing that is held began, but for
// what is older than the time to keep: what only earlier events refer to can be forgotten. 0: nothing can.
func (r *Recorder) Needed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	needed := r.stats.Since
	for _, h := range r.histories {
		if len(h.live) > 0 {
			needed = min(needed, h.since)
		}
	}
	return max(needed, r.oldest())
}

// Stats returns the state of the recorder.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	per := int64(r.perSegment)
	s.Budget, s.Used, s.Pinned = r.budget, int64(r.allocated)*per, int64(r.pinned)*per
	s.Events = s.Appended - s.Overwritten - s.Expired
	for _, h := range r.histories {
		s.Throttled += h.throttled
	}
	return s
}

// Counts appends the running totals of every function index seen so far to dst
// and returns it; the index into the result's new part is event.Func. They count
// everything ever appended, not only what is still held.
func (r *Recorder) Counts(dst []Count) []Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(dst, r.tally.Counts()...)
}
