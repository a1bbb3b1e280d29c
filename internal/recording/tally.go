package recording

import "github.com/inferscope/inferscope/internal/recording/event"

// Count is the running total of one function.
type Count struct {
	Calls  uint64 // events of kind Call
	Timed  uint64 // of these, with a duration
	Failed uint64 // of the timed ones, with a result other than 0 (CUDA_SUCCESS, cudaSuccess)
	Nanos  uint64 // sum of the durations, ns
}

// Tally counts calls by function index. An array answers in one load, and a
// recording names some hundred functions, so it stays within a few pages.
// Its zero value is empty. It is not safe for use by several goroutines.
type Tally struct {
	counts []Count
}

// Add counts e, if it is a call.
func (t *Tally) Add(e *event.Event) {
	if e.Kind != event.Call && e.Kind != event.Skipped {
		return
	}
	if int(e.Func) >= len(t.counts) {
		t.grow(int(e.Func) + 1)
	}
	c := &t.counts[e.Func]
	if e.Kind == event.Skipped {
		c.skip(e.Args[0] + e.Args[1])
		return
	}
	c.Calls++
	if e.Flags&event.Timed != 0 {
		c.Timed++
		c.Nanos += e.Dur
		if e.Ret != 0 && e.Flags&event.Correlated == 0 { // the agent's calls have no result
			c.Failed++
		}
	}
}

// skip counts calls without events. They take as long as those that have one do, by chance.
func (c *Count) skip(calls uint64) {
	c.Calls += calls
	if c.Timed > 0 {
		c.Nanos += uint64(float64(c.Nanos) / float64(c.Timed) * float64(calls))
		c.Timed += calls
	}
}

// grow makes room for n functions; 65,536 is the most that event.Func can name.
func (t *Tally) grow(n int) {
	if n <= cap(t.counts) {
		t.counts = t.counts[:n]
		return
	}
	counts := make([]Count, n, max(2*cap(t.counts), n, 64))
	copy(counts, t.counts)
	t.counts = counts
}

// Counts returns the totals by function index. The slice is the tally's own.
func (t *Tally) Counts() []Count { return t.counts }
