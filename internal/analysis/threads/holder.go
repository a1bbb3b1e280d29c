package threads

import (
	"github.com/inferscope/inferscope/internal/recording"
)

// Holders finds who held the GIL. It is made once for a recording.
type Holders struct {
	index   *Index
	samples map[uint32][]int32 // running Python threads of a process, by TS: indexes into Index.Samples
	at      int                // near which the last wait began
	count   []Holder           // of one wait
}

// Holders prepares the search: it looks at the samples of running threads that have
// Python frames and are not themselves waiting for the GIL.
func (x *Index) Holders(c *Classifier) *Holders {
	h := &Holders{index: x, samples: map[uint32][]int32{}}
	python := map[uint32]bool{}
	for i := range x.Samples {
		s := &x.Samples[i]
		has, ok := python[s.Stack]
		if !ok {
			has = hasPython(x.Rec, uint64(s.Stack)) && c.Of(uint64(s.Stack)) != GIL
			python[s.Stack] = has
		}
		if has {
			h.samples[s.PID] = append(h.samples[s.PID], int32(i))
		}
	}
	return h
}

func hasPython(rec *recording.Recording, stack uint64) bool {
	for f := range Walk(rec, stack) {
		if rec.Meta.Frames[f].Kind == recording.PythonFrame {
			return true
		}
	}
	return false
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
// may have released the GIL: Samples and All say how clear it is. It is fast where
// the waits are asked for in the order of time.
func (h *Holders) Of(pid, tid uint32, from, to uint64) (Holder, bool) {
	samples := h.samples[pid]
	all := h.index.Samples
	h.at = Gallop(len(samples), h.at, func(i int) bool { return all[samples[i]].TS < from })
	h.count = h.count[:0]
	others := 0
	for i := h.at; i < len(samples) && all[samples[i]].TS <= to; i++ {
		if s := &all[samples[i]]; s.TID != tid {
			others++
			h.note(s)
		}
	}
	var best Holder
	for _, one := range h.count {
		if one.Samples > best.Samples || one.Samples == best.Samples && one.TID < best.TID {
			best = one
		}
	}
	best.All = others
	return best, others > 0
}

func (h *Holders) note(s *Sample) {
	for i := range h.count {
		if one := &h.count[i]; one.TID == s.TID {
			one.Samples++
			one.Stack = uint64(s.Stack)
			return
		}
	}
	h.count = append(h.count, Holder{TID: s.TID, Samples: 1, Stack: uint64(s.Stack)})
}
