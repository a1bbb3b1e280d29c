package daemon

import (
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/loss"
)

// samplePeriod is how often the loss counters are read, in ns. Four map lookups
// a second are too little to measure.
const samplePeriod = 1_000_000_000

// maxSamples bounds the history: as only changes are kept, losing events all the
// time fills it in over an hour.
const maxSamples = 4096

// lossKey tells losses apart that are counted one by one.
type lossKey struct {
	reason loss.Reason
	where  string
}

// sample is a set of counters as they were read at a time. It is never changed.
type sample struct {
	at     uint64 // ns
	counts map[lossKey]loss.Loss
}

// lossHistory knows what was lost in a window: a ring that was full an hour ago
// must not cast doubt on what is seen now. Losses that are a state and no event,
// such as a function that cannot be probed, count in every window.
type lossHistory struct {
	read func() []loss.Loss // all counters, since the start

	mu      sync.Mutex
	samples []sample // ascending; each differs from the one before
	last    uint64   // when the counters were last read
}

func newLossHistory(read func() []loss.Loss) *lossHistory { return &lossHistory{read: read} }

// tick reads the counters if it is time.
func (h *lossHistory) tick(now uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now-h.last >= samplePeriod {
		h.sample(now)
	}
}

// sample reads the counters and keeps them if they changed.
func (h *lossHistory) sample(now uint64) sample {
	s := sample{at: now, counts: map[lossKey]loss.Loss{}}
	for _, l := range h.read() {
		k := lossKey{l.Reason, l.Where}
		l.Count += s.counts[k].Count
		s.counts[k] = l
	}
	h.last = now
	if n := len(h.samples); n > 0 && sameCounts(h.samples[n-1], s) {
		return s
	}
	if len(h.samples) >= maxSamples {
		h.samples = slices.Delete(h.samples, 0, maxSamples/4)
	}
	h.samples = append(h.samples, s)
	return s
}

func sameCounts(a, b sample) bool {
	if len(a.counts) != len(b.counts) {
		return false
	}
	for k, l := range b.counts {
		if a.counts[k].Count != l.Count {
			return false
		}
	}
	return true
}

// within returns what was lost in [from, to], in the registry's order. Counters
// are read once a second, so a loss up to a second outside is taken for one inside.
func (h *lossHistory) within(now, from, to uint64) []loss.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sample(now)
	var before map[lossKey]loss.Loss
	var upTo sample
	for _, s := range h.samples {
		if s.at <= from {
			before = s.counts
		}
		upTo = s
		if s.at >= to {
			break
		}
	}
	var out []loss.Loss
	for k, l := range upTo.counts {
		if isEvent(k.reason) {
			l.Count -= min(before[k].Count, l.Count)
		}
		if l.Count > 0 {
			out = append(out, l)
		}
	}
	return ordered(out)
}

// total returns what was lost since the start.
func (h *lossHistory) total(now uint64) []loss.Loss { return h.within(now, 0, now) }

// isEvent says whether a reason counts things that happen at a time. The others
// describe how the target is probed, which holds for any window.
func isEvent(r loss.Reason) bool {
	switch r {
	case loss.ProbeFailed, loss.ExpensivePoint, loss.LibraryRefused, loss.LateProbe:
		return false
	}
	return true
}

// ordered sorts losses as reports list them: by the registry, then by place.
func ordered(losses []loss.Loss) []loss.Loss {
	rank := map[loss.Reason]int{}
	for i, k := range loss.Kinds() {
		rank[k.Reason] = i - len(loss.Kinds())
	}
	slices.SortFunc(losses, func(a, b loss.Loss) int {
		if a.Reason != b.Reason {
			if d := rank[a.Reason] - rank[b.Reason]; d != 0 {
				return d
			}
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
