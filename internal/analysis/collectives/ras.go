package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// Late is a rank that NCCL's RAS says has launched fewer operations of a kind than another rank of its communicator, or
// that did not answer.
type Late struct {
	Communicator string
	Rank         recording.RASRank
	Operation    string // "": it did not answer
	Count, Most  uint64 // what it launched, and the most of any rank
}

// Lates returns the ranks that RAS says are behind; those that do not answer first. RAS asks ranks one after the other:
// one that is behind for a moment only is among them.
func Lates(r *recording.RAS) []Late {
	if r == nil {
		return nil
	}
	var out []Late
	for i := range r.Communicators {
		c := &r.Communicators[i]
		for _, m := range c.Missing {
			out = append(out, Late{Communicator: c.Hash, Rank: m})
		}
		most := map[string]uint64{}
		for name, n := range c.Most {
			most[name] = n
		}
		for _, x := range c.Ranks {
			for name, n := range x.Counts {
				most[name] = max(most[name], n)
			}
		}
		for _, x := range c.Ranks {
			for name, n := range x.Counts {
				if n < most[name] {
					out = append(out, Late{Communicator: c.Hash, Rank: x, Operation: name, Count: n, Most: most[name]})
				}
			}
		}
	}
	slices.SortFunc(out, func(x, y Late) int {
		return cmp.Or(cmp.Compare(x.Operation, y.Operation), cmp.Compare(x.Communicator, y.Communicator),
			cmp.Compare(x.Rank.Rank, y.Rank.Rank))
	})
	return out
}
