package daemon

import (
	"slices"
	"sort"
	"sync"

	"github.com/inferscope/inferscope/internal/recording/loss"
)

// samplePeriod is the interval at which loss counters are read, in ns. Four map lookups a second have no measurable
// cost.
const samplePeriod = 1_000_000_000

// Limits of the history of losses. The oldest entries are dropped.
const (
	maxLossChanges = 8192
	maxEndedStates = 4096
)

// lossKey identifies a loss that is counted separately.
type lossKey struct {
	reason loss.Reason
	pid    uint32
	cpu    loss.CPU
	where  string // the file, of those that have one
}

// lossChange is the increase of one counter between two readings.
type lossChange struct {
	after, at uint64    // ns: the readings
	grew      loss.Loss // Count is the growth
}

// lossState is a loss that is a state and not an event, such as a function that cannot be probed: it counts in every
// window that it overlaps.
type lossState struct {
	loss        loss.Loss
	first, last uint64 // ns: the reading before it came up, and the last one that found it
}

// lossHistory stores losses over time, so that a recording has only those of its own window: a ring that overflowed an
// hour ago says nothing about current data.
type lossHistory struct {
	// read returns all counters since the start. With an error it returns those that could be read.
	read func() ([]loss.Loss, error)
	// needed returns the time (ns) before which no window begins; 0: unknown.
	needed func() uint64

	mu          sync.Mutex
	last        uint64 // when the counters were last read
	failed      error  // of the last reading
	counted     map[lossKey]counted
	changes     []lossChange // ascending
	states      map[lossKey]lossState
	ended       []lossState
	endedCounts map[loss.Reason]uint64 // counts of all states and counters that ended
}

// counted is a counter of the last reading.
type counted struct {
	read uint64    // its count
	sum  loss.Loss // with that of earlier counters of the same name, as of a process that had the same pid
}

func newLossHistory(needed func() uint64, read func() ([]loss.Loss, error)) *lossHistory {
	return &lossHistory{
		read:        read,
		needed:      needed,
		counted:     map[lossKey]counted{},
		states:      map[lossKey]lossState{},
		endedCounts: map[loss.Reason]uint64{},
	}
}

// tick reads the counters if it is due.
func (h *lossHistory) tick(now uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now-h.last >= samplePeriod {
		h.sample(now)
	}
}

// sample reads the counters and stores the changes. The caller holds the lock.
func (h *lossHistory) sample(now uint64) {
	losses, err := h.read()
	h.failed = err
	present := map[lossKey]loss.Loss{}
	for _, l := range losses {
		k := lossKey{l.Reason, l.PID, l.CPU, l.Where}
		l.Count += present[k].Count
		present[k] = l
	}
	for k, l := range present {
		if !k.reason.IsState() {
			h.count(k, l, now)
			continue
		}
		st, known := h.states[k]
		if !known {
			st.first = h.last
		}
		st.loss, st.last = l, now
		h.states[k] = st
	}
	for k, st := range h.states {
		if _, still := present[k]; !still {
			h.end(k, st)
		}
	}
	for k, c := range h.counted {
		if _, still := present[k]; !still && err == nil { // with an error it may only not have been read
			delete(h.counted, k)
			h.endedCounts[k.reason] += c.sum.Count
		}
	}
	h.last = now
	h.forget(h.needed())
}

// forget drops entries that ended before a time (ns), in batches.
func (h *lossHistory) forget(oldest uint64) {
	old := func(n int, at func(i int) uint64) int {
		return sort.Search(n, func(i int) bool { return at(i) >= oldest })
	}
	if n := old(len(h.changes), func(i int) uint64 { return h.changes[i].at }); n > len(h.changes)/4 {
		h.changes = slices.Clone(h.changes[n:])
	}
	if n := old(len(h.ended), func(i int) uint64 { return h.ended[i].last }); n > len(h.ended)/4 {
		h.ended = slices.Clone(h.ended[n:])
	}
}

func (h *lossHistory) count(k lossKey, l loss.Loss, now uint64) {
	c := h.counted[k]
	grew := l.Count - c.read
	if l.Count < c.read {
		grew = l.Count // it began anew
	}
	before := c.sum.Count
	c.read, c.sum = l.Count, l
	c.sum.Count = before + grew
	h.counted[k] = c
	if grew == 0 {
		return
	}
	l.Count = grew
	if len(h.changes) >= maxLossChanges {
		h.changes = slices.Delete(h.changes, 0, maxLossChanges/4)
	}
	h.changes = append(h.changes, lossChange{after: h.last, at: now, grew: l})
}

// end records that a state is over because its process has ended.
func (h *lossHistory) end(k lossKey, st lossState) {
	delete(h.states, k)
	h.endedCounts[k.reason] += st.loss.Count
	if len(h.ended) >= maxEndedStates {
		h.ended = slices.Delete(h.ended, 0, maxEndedStates/4)
	}
	h.ended = append(h.ended, st)
}

// within returns what was lost in [from, to], in the registry's order. Counters
// are read once a second, so a loss up to a second outside is taken for one inside.
func (h *lossHistory) within(now, from, to uint64) []loss.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sample(now)
	sums := map[lossKey]loss.Loss{}
	add := func(l loss.Loss) {
		k := lossKey{l.Reason, l.PID, l.CPU, l.Where}
		l.Count += sums[k].Count
		sums[k] = l
	}
	for _, c := range h.changes {
		if c.at > from && c.after < to {
			add(c.grew)
		}
	}
	for _, st := range h.ended {
		if st.last >= from && st.first <= to {
			add(st.loss)
		}
	}
	for _, st := range h.states {
		if st.first <= to {
			add(st.loss)
		}
	}
	return h.listed(sums)
}

// total returns the losses since the start; those of ended processes are combined to one row a reason. No reason's sum
// ever shrinks.
func (h *lossHistory) total(now uint64) []loss.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sample(now)
	sums := map[lossKey]loss.Loss{}
	for k, c := range h.counted {
		if c.sum.Count > 0 {
			sums[k] = c.sum
		}
	}
	for k, st := range h.states {
		sums[k] = st.loss
	}
	for reason, n := range h.endedCounts {
		k := lossKey{reason: reason, where: "processes that are gone"}
		sums[k] = loss.Loss{Reason: reason, Where: k.where, Count: n}
	}
	return h.listed(sums)
}

// listed sorts losses, and adds one if counters cannot be read.
func (h *lossHistory) listed(sums map[lossKey]loss.Loss) []loss.Loss {
	var out []loss.Loss
	for _, l := range sums {
		out = append(out, l)
	}
	if h.failed != nil {
		out = append(out, loss.Loss{
			Reason: loss.RingFull, Count: 1, Where: "unknown",
			Detail: "it is not known whether events were lost: " + h.failed.Error(),
		})
	}
	return ordered(out)
}

// ordered sorts losses as reports list them: by the registry, then by place.
func ordered(losses []loss.Loss) []loss.Loss {
	rank := map[loss.Reason]int{}
	for i, k := range loss.Kinds() {
		rank[k.Reason] = i - len(loss.Kinds()) // a reason that is not there has 0: it comes last
	}
	slices.SortFunc(losses, func(a, b loss.Loss) int {
		if d := rank[a.Reason] - rank[b.Reason]; d != 0 {
			return d
		}
		return compareNatural(a.Where, b.Where)
	})
	return losses
}

// compareNatural puts "cpu 2" before "cpu 10".
func compareNatural(a, b string) int {
	if len(a) != len(b) && stem(a) == stem(b) {
		return len(a) - len(b)
	}
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func stem(s string) string {
	end := len(s)
	for end > 0 && s[end-1] >= '0' && s[end-1] <= '9' {
		end--
	}
	return s[:end]
}
