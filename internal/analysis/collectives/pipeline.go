package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Stages of a pipeline are ranks that pass data on from one to the next by ncclSend and ncclRecv. The two ends of a
// transfer end at nearly one time, so that the one that begins first waits for the other: a receive for the stage
// before it, or a send for one that is not done with what it got before.

// Pipeline is what stages waited for each other.
type Pipeline struct {
	Members []member
	Waits   []timeline.Spans // by member: it communicates and computes nothing, and the other one has not come
	Bubbles []timeline.Spans // by member, of Waits: the other one computes, or waits for one that does
}

const (
	// leastPart is the share of transfers with another rank from which on it is a neighbour, and of those with one
	// direction from which on ranks are stages: all-to-alls and rings send and receive in one kernel.
	leastPart = 0.1
	// betweenKernels is how long a stage runs nothing between two kernels and is still at work, ns.
	betweenKernels = 100_000
)

// way is the direction of a transfer.
type way uint8

const (
	eitherWay way = iota // both, or not known
	sends
	receives
)

// transfer is one end of a transfer between two ranks.
type transfer struct {
	from, to uint64
	member   int
	way      way
	other    int // index of its other end; -1: not found
}

// Stages finds the stages of a pipeline among the ranks that communicate within a time; nil where they are none.
func Stages(t *timeline.Timeline, within timeline.Span) *Pipeline {
	passes := passing(t)
	if passes == nil {
		return nil
	}
	c, _ := compared(t, within)
	if c == nil {
		return nil
	}
	list := c.transfers(passes)
	matchEnds(list)
	if !isChain(list, len(c.members)) {
		return nil
	}
	w := newWaiting(newLoading(t, c.members, within).computes)
	for i := range list {
		if x := &list[i]; x.other >= 0 {
			w.add(x.member, list[x.other].member, x.from, min(x.to, list[x.other].from))
		}
	}
	c.compare(func(set []timeline.Activity) {
		if !passes[t.KernelIndex(&set[0])] {
			w.addAll(set)
		}
	})
	out := &Pipeline{Members: c.members}
	out.Waits, out.Bubbles = w.finish()
	return out
}

// passing returns for each kernel whether it sends or receives; nil where none does.
func passing(t *timeline.Timeline) []bool {
	var out []bool
	for i, talks := range t.Communicates() {
		if !talks || timeline.Collective(t.Rec.Meta.GPU.Kernels[i].Name) != "SendRecv" {
			continue
		}
		if out == nil {
			out = make([]bool, len(t.Rec.Meta.GPU.Kernels))
		}
		out[i] = true
	}
	return out
}

// transfers lists the sends and receives of all members in the order of their ends.
func (c *comparing) transfers(passes []bool) []transfer {
	var out []transfer
	for m, list := range c.lists {
		for i := range list {
			if x := &list[i]; passes[c.t.KernelIndex(x)] && x.End > x.Start {
				out = append(out, transfer{from: x.Start, to: x.End, member: m, way: c.ways[x.Op], other: -1})
			}
		}
	}
	slices.SortFunc(out, func(x, y transfer) int {
		return cmp.Or(cmp.Compare(x.to, y.to), cmp.Compare(x.member, y.member), cmp.Compare(x.from, y.from))
	})
	return out
}

// matchEnds finds the two ends of each transfer: of those that run at once on two members, in opposite directions, the
// ones that end nearest to each other.
func matchEnds(list []transfer) {
	nearest := make([]int, len(list))
	for i := range list {
		nearest[i] = nearestEnd(list, i)
	}
	for i, n := range nearest {
		if n >= 0 && nearest[n] == i {
			list[i].other = n
		}
	}
}

// nearestEnd returns which transfer ends nearest to one and can be its other end; -1: none.
func nearestEnd(list []transfer, i int) int {
	x := &list[i]
	best, apart := -1, max(endsWithin, (x.to-x.from)/endsPart)+1
	try := func(n int) (further bool) {
		y := &list[n]
		d := max(x.to, y.to) - min(x.to, y.to)
		if d >= apart {
			return false
		}
		if y.member != x.member && (x.way == eitherWay || x.way != y.way) && x.from < y.to && y.from < x.to &&
			d <= max(endsWithin, min(x.to-x.from, y.to-y.from)/endsPart) {
			best, apart = n, d
		}
		return true
	}
	for n := i + 1; n < len(list) && try(n); n++ {
	}
	for n := i - 1; n >= 0 && try(n); n-- {
	}
	return best
}

// isChain reports whether members are stages: each exchanges data with two others at most, and not always in both
// directions at once. Ends of transfers with others, which are few, are no longer taken for such.
func isChain(list []transfer, members int) bool {
	with := make([]map[int]int, members)
	all, pairs, oneWay := make([]int, members), 0, 0
	for m := range with {
		with[m] = map[int]int{}
	}
	for i := range list {
		x := &list[i]
		if x.way != eitherWay {
			oneWay++
		}
		if x.other >= 0 {
			with[x.member][list[x.other].member]++
			all[x.member]++
			pairs++
		}
	}
	few := func(m, other int) bool { return float64(with[m][other]) < leastPart*float64(all[m]) }
	for m, of := range with {
		neighbours := 0
		for other := range of {
			if !few(m, other) {
				neighbours++
			}
		}
		if neighbours > 2 {
			return false
		}
	}
	for i := range list {
		if x := &list[i]; x.other >= 0 && few(x.member, list[x.other].member) {
			list[x.other].other, x.other = -1, -1
		}
	}
	return pairs >= 2*leastSets && float64(oneWay) >= leastPart*float64(len(list))
}

// waiting collects for whom each member waits.
type waiting struct {
	computes []timeline.Spans         // by member
	on       []map[int]timeline.Spans // by member and the one that it waits for; not joined before finish
}

func newWaiting(computes []timeline.Spans) *waiting {
	w := &waiting{computes: computes, on: make([]map[int]timeline.Spans, len(computes))}
	for m := range w.on {
		w.on[m] = map[int]timeline.Spans{}
	}
	return w
}

// add notes that a member waits for another one.
func (w *waiting) add(m, other int, from, to uint64) {
	if from < to {
		w.on[m][other] = append(w.on[m][other], timeline.Span{From: from, To: to})
	}
}

// addAll notes that all wait for the one that comes last to a collective.
func (w *waiting) addAll(set []timeline.Activity) {
	last := 0
	for m := range set {
		if set[m].Start > set[last].Start {
			last = m
		}
	}
	for m := range set {
		w.add(m, last, set[m].Start, min(set[m].End, set[last].Start))
	}
}

// finish returns when members waited and computed nothing, and what of that are bubbles.
func (w *waiting) finish() (waits, bubbles []timeline.Spans) {
	works := make([]timeline.Spans, len(w.on))
	for m := range w.on {
		works[m] = bridged(w.computes[m])
		for other, list := range w.on[m] {
			w.on[m][other] = timeline.Join(list)
		}
	}
	// A member at work holds the one that waits for it, which holds the next one: a bubble comes as far as there are
	// members.
	for range w.on {
		before, more := works, false
		works = make([]timeline.Spans, len(w.on))
		for m := range w.on {
			works[m] = timeline.Join(append(w.behind(m, before), before[m]...))
			more = more || works[m].Total() > before[m].Total()
		}
		if !more {
			break
		}
	}
	for m := range w.on {
		var all []timeline.Span
		for _, list := range w.on[m] {
			all = append(all, list...)
		}
		waits = append(waits, timeline.Join(all).Without(w.computes[m]))
		bubbles = append(bubbles, timeline.Join(w.behind(m, works)).Without(w.computes[m]))
	}
	return waits, bubbles
}

// behind returns when a member waits for another one that works.
func (w *waiting) behind(m int, works []timeline.Spans) []timeline.Span {
	var out []timeline.Span
	for other, list := range w.on[m] {
		out = append(out, list.Both(works[other])...)
	}
	return out
}

// bridged joins spans that are less than betweenKernels apart.
func bridged(s timeline.Spans) timeline.Spans {
	out := slices.Clone(s)
	for i := 1; i < len(out); i++ {
		if out[i].From-out[i-1].To < betweenKernels {
			out[i-1].To = out[i].From
		}
	}
	return timeline.Join(out)
}
