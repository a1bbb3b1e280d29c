package record

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/loss"
)

// Bounds of a Recorder.
const (
	MinBudget   = 1_000_000 // bytes; less would not hold a tenth of a second of a busy target
	maxChunk    = 16_384    // events in a chunk: 1 MiB
	minChunks   = 32        // a small budget is cut into this many chunks
	reserveFrac = 8         // one chunk of this many is kept from the live ones
	writerNeeds = 2         // chunks that no snapshot may hold: the one being filled, and the next
	spare       = 8         // chunks that keep their memory though nothing is in them: a steady rate takes none anew
)

// Recorder keeps the last events within a byte budget. One goroutine appends;
// any number read snapshots and statistics meanwhile.
//
// Events lie in chunks. When the budget is used up, the oldest chunk makes room;
// a chunk that a Snapshot shows is not written again before its release. An
// eighth of the chunks is held back from the live ones, so that the writer and
// the next snapshots go on while a reader holds all that was live: a slow reader
// makes the window shorter, and never makes the recorder lose new events or take
// more memory.
type Recorder struct {
	budget    int64
	keep      uint64 // ns; 0: no limit
	perChunk  int    // events
	maxChunks int    // live, pinned and free together
	maxLive   int
	maxPinned int

	memory memory

	mu        sync.Mutex
	live      []*chunk // oldest first; the last one is being filled
	free      []*chunk // neither live nor pinned
	cold      []*chunk // likewise, and without memory
	allocated int      // chunks that have memory
	pinned    int      // chunks that snapshots show
	tally     Tally
	stats     Stats
}

// chunk is a stretch of events in the order of their arrival. What a snapshot
// shows of it is never written: the writer only appends behind it.
type chunk struct {
	events []event.Event
	span   span
	pins   int  // snapshots that show it
	live   bool // in Recorder.live
}

// Stats is the state of a Recorder.
type Stats struct {
	Budget      int64  // bytes
	Used        int64  // bytes of memory taken for events, never more than Budget
	Events      uint64 // held now
	Appended    uint64 // since the start
	Overwritten uint64 // events that made room within the budget
	Expired     uint64 // events that were older than what is to be kept
	Since       uint64 // ns, CLOCK_MONOTONIC: every event that began at or after it is held; 0: every event
	Newest      uint64 // ns, CLOCK_MONOTONIC: the latest beginning of an event; 0: none yet
	Pinned      int64  // bytes that snapshots hold
}

// NewRecorder makes a recorder that takes at most budget bytes for its events and
// lets go of events that are older than keep, a chunk at a time (keep 0: only the
// budget counts). Memory is taken as it is needed, and given back when what was in it
// has expired. It is an error if there is not so much address space, if budget is
// below MinBudget or keep is negative.
func NewRecorder(budget int64, keep time.Duration) (*Recorder, error) {
	if budget < MinBudget {
		return nil, fmt.Errorf("a recorder of %d bytes is too small: give at least %d (--trace-size-mb 1)", budget, MinBudget)
	}
	if keep < 0 {
		return nil, fmt.Errorf("a recorder cannot keep events for %v: give a positive time (--keep 60s)", keep)
	}
	perChunk := wholePages(min(maxChunk, int(budget/minChunks/event.Size)))
	chunks := int(budget / int64(perChunk*event.Size))
	r := &Recorder{
		budget: budget, keep: uint64(keep), perChunk: perChunk,
		maxChunks: chunks, maxLive: chunks - chunks/reserveFrac, maxPinned: chunks - writerNeeds,
	}
	return r, r.reserve()
}

// reserve makes the chunks, without memory.
func (r *Recorder) reserve() (err error) {
	if r.memory, err = newMemory(r, r.maxChunks*r.perChunk); err != nil {
		return err
	}
	for i := range r.maxChunks {
		r.cold = append(r.cold, &chunk{events: r.memory.events(i*r.perChunk, r.perChunk)})
	}
	return nil
}

// Append adds events in the order in which they ended. It copies them, takes no
// memory once the budget is used, and holds the lock for as long as the copy takes.
// In batches of 512 an event costs 12 ns, one at a time 22 ns (BenchmarkAppend).
func (r *Recorder) Append(events ...event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Appended += uint64(len(events))
	for len(events) > 0 {
		c := r.tail()
		n := min(len(events), r.perChunk-len(c.events))
		c.events = append(c.events, events[:n]...)
		c.span.addAll(events[:n])
		r.tally.addAll(events[:n])
		r.stats.Newest = max(r.stats.Newest, c.span.last)
		events = events[n:]
	}
}

// tail returns the chunk that has room for the next event.
func (r *Recorder) tail() *chunk {
	if n := len(r.live); n > 0 && len(r.live[n-1].events) < r.perChunk {
		return r.live[n-1]
	}
	c := r.take()
	*c = chunk{events: c.events[:0], span: emptySpan(), live: true}
	r.live = append(r.live, c)
	return c
}

// take returns an unused chunk: a free one, else new memory, else the oldest that
// no snapshot shows. There always is one, because snapshots together never hold
// more than maxPinned chunks.
func (r *Recorder) take() *chunk {
	r.expire()
	for len(r.live) >= r.maxLive || (len(r.free) == 0 && r.allocated == r.maxChunks) {
		r.stats.Overwritten += r.evict()
	}
	if c := pop(&r.free); c != nil {
		return c
	}
	r.allocated++
	return pop(&r.cold)
}

// wholePages returns a number of events, no more than n, that fills pages, if there is one: only pages can be given back.
func wholePages(n int) int {
	inPage := os.Getpagesize() / event.Size
	return max(n/inPage*inPage, min(n, inPage))
}

// pop takes the last chunk out of a list; nil: there is none.
func pop(list *[]*chunk) *chunk {
	n := len(*list)
	if n == 0 {
		return nil
	}
	c := (*list)[n-1]
	*list = (*list)[:n-1]
	return c
}

// expire lets go of chunks in which every event ended before the time to keep.
func (r *Recorder) expire() {
	if r.keep == 0 || r.stats.Newest < r.keep {
		return
	}
	for len(r.live) > 0 && r.live[0].span.end < r.stats.Newest-r.keep {
		r.stats.Expired += r.evict()
	}
	for len(r.free) > spare {
		c := pop(&r.free)
		r.memory.release(c.events)
		r.cold = append(r.cold, c)
		r.allocated--
	}
}

// evict lets go of the oldest chunk and returns how many events that were.
func (r *Recorder) evict() uint64 {
	c := r.live[0]
	r.live = slices.Delete(r.live, 0, 1)
	c.live = false
	r.stats.Since = max(r.stats.Since, c.span.last+1)
	if c.pins == 0 {
		r.free = append(r.free, c)
	}
	return uint64(len(c.events))
}

// Since returns the time (ns, CLOCK_MONOTONIC) from which the recorder is
// complete: every event that was appended and began then or later is held.
// 0 means that nothing was ever let go.
func (r *Recorder) Since() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats.Since
}

// Stats returns the state of the recorder.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	chunkBytes := int64(r.perChunk) * event.Size
	s.Budget, s.Used, s.Pinned = r.budget, int64(r.allocated)*chunkBytes, int64(r.pinned)*chunkBytes
	s.Events = s.Appended - s.Overwritten - s.Expired
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

// Losses returns what the recorder let go for want of room since the start.
// Whether it concerns a window, Snapshot.Since says.
func (r *Recorder) Losses() []loss.Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats.Overwritten == 0 {
		return nil
	}
	return []loss.Loss{{Reason: loss.Overwritten, Count: r.stats.Overwritten}}
}
