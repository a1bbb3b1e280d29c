package diagnose

import (
	"cmp"
	"slices"
)

// tally sums time by a number. Neighbouring steps mostly have the same one, so that
// the map is rarely asked.
type tally struct {
	times   map[uint64]uint64 // ns
	last    uint64
	pending uint64 // ns of last that are not in times yet
	all     uint64 // ns
}

func (t *tally) add(key, ns uint64) {
	t.all += ns
	if key != t.last {
		t.flush()
		t.last = key
	}
	t.pending += ns
}

func (t *tally) flush() {
	if t.pending == 0 {
		return
	}
	if t.times == nil {
		t.times = map[uint64]uint64{}
	}
	t.times[t.last] += t.pending
	t.pending = 0
}

// merge adds all of o.
func (t *tally) merge(o *tally) {
	for _, e := range o.sorted() {
		t.add(e.key, e.time)
	}
}

// entry is one number with its time.
type entry struct{ key, time uint64 }

// sorted returns all numbers, those of most time first; of equals the least.
func (t *tally) sorted() []entry {
	t.flush()
	out := make([]entry, 0, len(t.times))
	for k, n := range t.times {
		out = append(out, entry{k, n})
	}
	slices.SortFunc(out, func(x, y entry) int { return cmp.Or(cmp.Compare(y.time, x.time), cmp.Compare(x.key, y.key)) })
	return out
}

// most returns the number of most time; the zero entry where there is none.
func (t *tally) most() entry {
	t.flush()
	var best entry
	for k, n := range t.times {
		if n > best.time || n == best.time && k < best.key {
			best = entry{k, n}
		}
	}
	return best
}

// threadKey is a thread as the key of a tally.
func threadKey(pid, tid uint32) uint64 { return uint64(pid)<<32 | uint64(tid) }
