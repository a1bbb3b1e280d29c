package threads

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// Holders finds who held the GIL. It is made once for a recording.
type Holders struct {
	rec        *record.Recording
	classifier *Classifier
	samples    map[uint32][]int32 // running Python threads of a process, by TS
}

// NewHolders prepares the search: it looks at the samples of running threads that have
// Python frames and are not themselves waiting for the GIL.
func NewHolders(rec *record.Recording, c *Classifier) *Holders {
	h := &Holders{rec: rec, classifier: c, samples: map[uint32][]int32{}}
	python := map[uint64]bool{}
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.Sample || e.Func != uint16(event.Clock) {
			continue
		}
		has, ok := python[e.Args[0]]
		if !ok {
			has = slices.ContainsFunc(Frames(rec, e.Args[0]), func(f record.Frame) bool { return f.Kind == record.PythonFrame }) &&
				c.Of(e.Args[0]) != GIL
			python[e.Args[0]] = has
		}
		if has {
			h.samples[e.PID] = append(h.samples[e.PID], int32(i))
		}
	}
	return h
}

// Holder is a thread that ran Python while another waited for the GIL.
type Holder struct {
	TID     uint32
	Samples int    // of this thread within the wait
	All     int    // of all threads that ran Python within the wait
	Stack   uint64 // one of them, index + 1 into Meta.Stacks
}

// Of returns who most likely held the GIL of process pid while thread tid waited for it in
// [from, to] (ns): the other thread with the most samples in Python. The thread that
// woke the waiter has released the GIL and is the better witness for short waits. false
// where there is no sample. A thread that runs native code with Python frames beneath
// may have released the GIL: Samples and All say how clear it is.
func (h *Holders) Of(pid, tid uint32, from, to uint64) (Holder, bool) {
	samples := h.samples[pid]
	i, _ := slices.BinarySearchFunc(samples, from, func(i int32, ts uint64) int { return cmp.Compare(h.rec.Events[i].TS, ts) })
	count := map[uint32]Holder{}
	all := 0
	for ; i < len(samples) && h.rec.Events[samples[i]].TS <= to; i++ {
		e := &h.rec.Events[samples[i]]
		if e.TID == tid {
			continue
		}
		all++
		one := count[e.TID]
		count[e.TID] = Holder{TID: e.TID, Samples: one.Samples + 1, Stack: e.Args[0]}
	}
	var best Holder
	for _, one := range count {
		if one.Samples > best.Samples || one.Samples == best.Samples && one.TID < best.TID {
			best = one
		}
	}
	best.All = all
	return best, all > 0
}
