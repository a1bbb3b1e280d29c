package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Meeting is a collective operation that ends on no rank before it has begun on all.
type Meeting struct {
	Begin  uint64 // ns, CLOCK_MONOTONIC: of the rank of the recording that begins last
	End    uint64 // of the one that ends first
	Kernel string
	// Sequence is its place among the calls of its communicator, from 1: a rank of another recording may count from
	// another call on. Where calls do not tell it is the place among those recorded.
	Sequence int
	Made     bool // Sequence counts from the making of the communicator
}

// Meetings returns the operations of each communicator that were found on all ranks of a recording, in their order.
func Meetings(t *timeline.Timeline) [][]Meeting {
	c, _ := comparison(t, timeline.Span{From: t.From, To: t.To}, 1)
	if c == nil {
		return nil
	}
	by := map[uint64][]Meeting{}
	c.compare(func(set []timeline.Activity) {
		k := t.KernelIndex(&set[c.least])
		name := t.Rec.Meta.GPU.Kernels[k].Name
		switch timeline.Collective(name) {
		case "AllReduce", "ReduceScatter", "AllGather", "AllToAll":
		default:
			return // a root may end before others begin
		}
		m := Meeting{Begin: set[0].Start, End: set[0].End, Kernel: name}
		for i := range set {
			m.Begin, m.End = max(m.Begin, set[i].Start), min(m.End, set[i].End)
		}
		p := c.comms[set[c.least].Op]
		m.Sequence = p.sequence
		m.Made = p.sequence > 0 && c.made[local{t.Processes[c.members[c.least].Process].PID, p.comm}] == 1
		by[p.comm] = append(by[p.comm], m)
	})
	var out [][]Meeting
	for _, list := range by {
		slices.SortFunc(list, func(x, y Meeting) int { return cmp.Compare(x.Begin, y.Begin) })
		if slices.ContainsFunc(list, func(m Meeting) bool { return m.Sequence == 0 }) {
			for i := range list {
				list[i].Sequence, list[i].Made = i+1, false
			}
		}
		out = append(out, list)
	}
	slices.SortFunc(out, func(x, y []Meeting) int {
		return cmp.Or(cmp.Compare(len(y), len(x)), cmp.Compare(x[0].Begin, y[0].Begin))
	})
	return out
}
