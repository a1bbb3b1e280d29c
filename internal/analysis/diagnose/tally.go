package diagnose

import (
	"cmp"
	"slices"
)

// tally sums time by a number. Neighbouring steps mostly have one of a few, so that the map is rarely asked.
type tally struct {
	times map[uint64]uint64    // ns
	near  [1 << nearBits]entry // times that are not in times yet, each in the place of its number's hash
	all   uint64               // ns
}

const nearBits = 4

func (t *tally) add(key, ns uint64) {
	t.all += ns
	e := &t.near[key*0x9e3779b97f4a7c15>>(64-nearBits)]
	if e.key != key {
		t.put(e)
		e.key = key
	}
	e.time += ns
}

// put moves the time of one number to the map.
func (t *tally) put(e *entry) {
	if e.time == 0 {
		return
	}
	if t.times == nil {
		t.times = map[uint64]uint64{}
	}
	t.times[e.key] += e.time
	e.time = 0
}

func (t *tally) flush() {
	for i := range t.near {
		t.put(&t.near[i])
	}
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
