package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// A collective operation ends when its last rank has taken part, at nearly one time on all of them; it begins on each
// when that one is ready. So the rank that begins last is the one that the others wait for, and the others wait from
// their own beginning until its (as in AMD's TraceLens: wait = the latest start - the own start).

// Arrivals is when ranks came to the collectives in which all of them took part.
type Arrivals struct {
	Members []member
	Sets    int    // collectives that were found on all
	Wait    uint64 // ns for which members waited for the last one, summed over members
	Skews   []uint64
	Load    load // what they computed in between
}

// member is one rank: a process on one of its GPUs.
type member struct {
	Process int32           // index into Timeline.Processes
	Device  int32           // index into Timeline.Devices
	Last    int             // how often it came last
	Held    uint64          // ns for which the others waited for it, summed over them
	Late    []timeline.Span // from the first rank's beginning to its own, of collectives to which it came last
	Behind  []uint64        // by collective: ns from the first rank's beginning to its own
}

const (
	// leastSets is in how many collectives a rank must have been compared with the others.
	leastSets = 5
	// endsWithin is by how much the ends of one collective differ on its ranks, ns, and endsPart the part of its
	// length: what differs more is not the same one, or the clocks of the hosts do not fit.
	endsWithin = 100_000
	endsPart   = 4
)

// Arrive compares when ranks began each collective within a time; nil where there are not two that communicate.
func Arrive(t *timeline.Timeline, within timeline.Span) *Arrivals {
	c, out := compared(t, within)
	if c == nil {
		return out
	}
	loads := newLoading(t, out.Members, within)
	c.compare(func(set []timeline.Activity) {
		out.take(set)
		loads.take(set)
	})
	out.Load = loads.out
	return out
}

// compared prepares the comparison of the members that communicate within a time; nil where there are not two.
func compared(t *timeline.Timeline, within timeline.Span) (*comparing, *Arrivals) {
	return comparison(t, within, 2)
}

// comparison is compared where there are at least so many members.
func comparison(t *timeline.Timeline, within timeline.Span, least int) (*comparing, *Arrivals) {
	talks := t.Communicates()
	if talks == nil {
		return nil, nil
	}
	type rank struct{ process, device int32 }
	lists := map[rank][]timeline.Activity{}
	for i := range t.Activities {
		act := &t.Activities[i]
		if k := t.KernelIndex(act); k != timeline.None && talks[k] && act.Start >= within.From && act.End <= within.To {
			s := &t.Streams[act.Stream]
			lists[rank{s.Process, s.Device}] = append(lists[rank{s.Process, s.Device}], *act)
		}
	}
	if len(lists) < least {
		return nil, nil
	}
	out := &Arrivals{}
	for r := range lists {
		out.Members = append(out.Members, member{Process: r.process, Device: r.device})
	}
	slices.SortFunc(out.Members, func(x, y member) int {
		return cmp.Or(cmp.Compare(x.Process, y.Process), cmp.Compare(x.Device, y.Device))
	})
	calls := sum(t)
	c := &comparing{
		t: t, comms: calls.places(), ways: calls.ways(), made: calls.made, members: out.Members,
		lists: make([][]timeline.Activity, len(out.Members)),
	}
	for i, m := range out.Members {
		c.lists[i] = lists[rank{m.Process, m.Device}]
		slices.SortFunc(c.lists[i], func(x, y timeline.Activity) int { return cmp.Compare(x.Start, y.Start) })
		if len(c.lists[i]) < len(c.lists[c.least]) {
			c.least = i
		}
	}
	c.pairs = make([]map[uint64]uint64, len(c.lists))
	c.learn()
	return c, out
}

// comparing finds the collectives of one member on all others. Ranks call one communicator by addresses of their own,
// and a recording may begin at another operation on each. So collectives are first found by their times: one runs on
// all ranks at once and ends on all at nearly one time. That tells which communicators belong together, and by how much
// their sequences are apart; from then on the sequence decides, as far as it is known.
type comparing struct {
	t          *timeline.Timeline
	members    []member
	comms      map[int32]place // by operation: the call of its launch, where it is known
	ways       map[int32]way   // by operation: whether it sends or receives; none: both, neither, or not known
	made       map[local]int   // how often the making of a communicator was recorded
	least      int             // the member that communicates least, which the others are compared with
	lists      [][]timeline.Activity
	pairs      []map[uint64]uint64  // by member: its communicator, by that of the least one
	offsets    []map[uint64]aligned // by member, likewise; nil: not known yet
	bySequence []map[place]int      // by member: index into its list; -1: several
	certain    bool                 // of the last collective: at most one of each member could be it, by its time
}

// learn finds which communicators of other members are those of the least one.
func (c *comparing) learn() {
	votes, offsets := make([]map[[2]uint64]int, len(c.lists)), make([]map[[2]uint64]map[int]int, len(c.lists))
	for m := range votes {
		votes[m], offsets[m] = map[[2]uint64]int{}, map[[2]uint64]map[int]int{}
	}
	c.compare(func(set []timeline.Activity) {
		own := c.comms[set[c.least].Op]
		for m := range set {
			other := c.comms[set[m].Op]
			if own.comm == 0 || other.comm == 0 {
				continue
			}
			pair := [2]uint64{own.comm, other.comm}
			votes[m][pair]++
			if own.sequence > 0 && other.sequence > 0 && c.certain {
				if offsets[m][pair] == nil {
					offsets[m][pair] = map[int]int{}
				}
				offsets[m][pair][other.sequence-own.sequence]++
			}
		}
	})
	for m, of := range votes {
		most := map[uint64]uint64{}
		for pair, n := range of {
			best, known := most[pair[0]]
			before := of[[2]uint64{pair[0], best}]
			if !known || n > before || n == before && pair[1] < best {
				most[pair[0]] = pair[1]
			}
		}
		c.pairs[m] = most
	}
	c.align(offsets)
}

// compare passes on each collective of the least member that was found on all others, by member.
func (c *comparing) compare(take func([]timeline.Activity)) {
	at := make([]int, len(c.lists)) // where each has come to
	used := make([]map[int]bool, len(c.lists))
	for m := range used {
		used[m] = map[int]bool{}
	}
	set, found := make([]timeline.Activity, len(c.lists)), make([]int, len(c.lists))
	for _, own := range c.lists[c.least] {
		whole := true
		c.certain = true
		for m, list := range c.lists {
			if set[m] = own; m == c.least {
				continue
			}
			for at[m] < len(list) && list[at[m]].End <= own.Start {
				at[m]++
			}
			if found[m] = c.same(&own, m, at[m], used[m]); found[m] < 0 {
				whole = false
				break
			}
			set[m] = list[found[m]]
		}
		if !whole {
			continue
		}
		for m := range c.lists {
			used[m][found[m]] = m != c.least
		}
		take(set)
	}
}

// same returns which activity of a member, from one on, is the same collective as one of the least member, -1 where
// none is: by the sequence where that is known, else it has the same kernel, runs at the same time and ends with it. Of
// several it is the one that ends nearest.
func (c *comparing) same(own *timeline.Activity, m, from int, used map[int]bool) int {
	if i, known := c.next(own, m); known {
		return i
	}
	best, nearest, beside := -1, uint64(0), false
	pair, paired := c.pairs[m][c.comms[own.Op].comm]
	for i := from; i < len(c.lists[m]) && c.lists[m][i].Start < own.End; i++ {
		x := &c.lists[m][i]
		if x.End <= own.Start || c.t.KernelIndex(x) != c.t.KernelIndex(own) {
			continue
		}
		c.certain = c.certain && !beside
		beside = true
		if used[i] {
			continue
		}
		if other := c.comms[x.Op].comm; paired && other != 0 && other != pair {
			continue
		}
		apart := max(x.End, own.End) - min(x.End, own.End)
		near := apart <= max(endsWithin, min(x.End-x.Start, own.End-own.Start)/endsPart)
		if near && (best < 0 || apart < nearest) {
			best, nearest = i, apart
		}
	}
	return best
}

// take counts one collective. Where several came last at one time nobody was waited for alone.
func (r *Arrivals) take(set []timeline.Activity) {
	first, last, tied := 0, 0, false
	for m := range set {
		if m > 0 && set[m].Start == set[last].Start {
			tied = true
		}
		if set[m].Start > set[last].Start {
			last, tied = m, false
		}
		if set[m].Start < set[first].Start {
			first = m
		}
	}
	r.Sets++
	if !tied {
		r.Members[last].Last++
		r.Members[last].Late = append(r.Members[last].Late, timeline.Span{From: set[first].Start, To: set[last].Start})
	}
	r.Skews = append(r.Skews, set[last].Start-set[first].Start)
	for m := range set {
		// A rank that only gives, as the root of a broadcast, may end before the last one begins.
		n := min(set[last].Start, max(set[m].Start, set[m].End)) - set[m].Start
		if !tied {
			r.Members[last].Held += n
		}
		r.Wait += n
		r.Members[m].Behind = append(r.Members[m].Behind, set[m].Start-set[first].Start)
	}
}

// Enough reports whether so many collectives were compared that they say something.
func (r *Arrivals) Enough() bool { return r != nil && r.Sets >= leastSets }

// Straggler returns the index of the member that the others wait for: it comes last to most collectives, and most of
// the waiting is for it. False where it is now the one and now the other.
func (r *Arrivals) Straggler() (int, bool) {
	if !r.Enough() {
		return 0, false
	}
	best := 0
	for m := range r.Members {
		if r.Members[m].Held > r.Members[best].Held {
			best = m
		}
	}
	enough := r.Sets/2 + 1
	if len(r.Members) == 2 { // one of two is last half of the time by chance
		enough = (4*r.Sets + 4) / 5
	}
	return best, r.Members[best].Last >= enough && 2*r.Members[best].Held > r.Wait
}

// rank is when one rank came to the collectives of all ranks.
type rank struct {
	PID    uint32 `json:"pid"`
	Device uint8  `json:"device"` // as the process counts
	Last   int    `json:"came_last"`
	Waited uint64 `json:"waited_ns"`     // in all, for the last rank of each
	Median uint64 `json:"behind_p50_ns"` // from the first rank's beginning to its own
	P99    uint64 `json:"behind_p99_ns"`
}

// Skew is how far apart ranks come to collectives.
type Skew struct {
	Collectives int    `json:"collectives"` // that were found on all ranks
	Median      uint64 `json:"p50_ns"`      // from the first to the last rank's beginning
	P99         uint64 `json:"p99_ns"`
	Ranks       []rank `json:"ranks"`
}

// skew sums arrivals up; nil where too little was seen.
func (r *Arrivals) skew(t *timeline.Timeline) *Skew {
	if !r.Enough() {
		return nil
	}
	skews := slices.Sorted(slices.Values(r.Skews))
	out := &Skew{Collectives: r.Sets, Median: quantile.Of(skews, 50), P99: quantile.Of(skews, 99)}
	for i := range r.Members {
		m := &r.Members[i]
		sorted := slices.Sorted(slices.Values(m.Behind))
		rank := rank{
			PID: t.Processes[m.Process].PID, Device: t.Devices[m.Device].ID, Last: m.Last,
			Median: quantile.Of(sorted, 50), P99: quantile.Of(sorted, 99),
		}
		for set, behind := range m.Behind {
			rank.Waited += r.Skews[set] - behind
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}
