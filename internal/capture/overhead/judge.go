package overhead

import (
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// verdict is what is known of what a target pays.
type verdict struct {
	total    recording.Cost
	costs    []recording.Cost // by source
	measured bool             // total is
	least    float64          // of the total, by slices,
	rest     float64          // and what of it they cannot tell, which is predicted
	pairs    int              // that tell of the total, whether it is measured or not yet
	over     bool             // it is more than the budget
	under    bool             // it is not
	open     bool             // more pairs are wanted
	suspect  bool             // slices so far tell of more than the budget
	why      string
}

// Of deciding.
const (
	tight = 0.5 // of the budget: to each side of an interval that is worth more than a prediction
	// findWithin is the time that it takes to find what the progress of a new target can be measured by, ns.
	findWithin = 10_000_000_000
	mostPairs  = 120 // that tell nothing either: the program is too uneven to be measured so
	// distrust is the share of a predicted cost that is believed whatever was measured: a program that
	// gets on by the clock does not become slower by what it pays.
	distrust = 0.25
	// unsure is how wrong a predicted cost may be, as a factor: what one run of a program takes differs from its
	// calibration by the caches it finds.
	unsure = 1.5
)

// judge says what w pays for watching, and whether that is known well enough. What is measured counts if its interval
// lies on one side of the budget, is tight, or excludes what is predicted; else that counts.
func (g *Governor) judge(w *watched, now uint64) verdict {
	v := g.forecast(w)
	if w.known < 2 && !g.far(w) {
		v.why = "it has just begun"
		return v
	}
	budget := g.opts.Budget
	v.over = v.total.Share > budget
	v.under = !v.over
	soon := func(better bool) { // what will be known better is not acted on before, but where it is far too much
		if better && !g.far(w) {
			v.over, v.under = false, false
		}
	}
	levels := g.switched()
	switch {
	case w.idle:
		v.why = "the target does nothing now"
		return v
	case !w.yard.ok:
		v.why = "nothing that the target does again and again is even enough to measure by"
		soon(now-w.since < findWithin)
		return v
	case len(levels) == 0:
		v.why = "nothing is left that could be switched to measure it"
		return v
	}
	slower := w.together(levels)
	part, rest := g.measured(w, &v, slower, levels)
	total, predicted := plus(part, rest), v.total.Share
	low, high := part.Low+rest.Share, part.High+rest.Share // what is predicted counts as it is everywhere
	v.least, v.rest = low, rest.Share
	v.pairs, v.open, v.why = slower.rows, slower.rows < mostPairs, "it is being measured"
	v.suspect = slower.low > 0 && total.Share > budget
	known := !math.IsInf(slower.half(), 1)
	switch {
	case known && (low > budget || high < budget):
		v.over, v.under, v.open, v.why = low > budget, high < budget, false, ""
	case known && (slower.half() < tight*budget || predicted < low || predicted > high):
		// Nothing is reduced for what may be within the budget, nor raised for what may be above it.
		v.over, v.under = false, slower.half() < tight*budget && total.Share <= budget
		if !v.open {
			v.why = "it may be a little above or below the budget"
		}
	default:
		if !v.open {
			v.why = "it does not get on evenly enough to be measured"
		}
		if known {
			best := weighed(total.Share, slower.half()/boundErrors, predicted, predicted*(unsure-1)/2)
			v.over, v.under = v.over && (best > budget || g.far(w)), v.under && best <= budget
			v.why += fmt.Sprintf(": slices say %s to %s (%d pairs), too wide to count",
				percent(total.Low), percent(total.High), slower.rows)
		}
		soon(v.open && g.canMeasure())
		g.sealed(w, &v, now)
		return v
	}
	v.total, v.measured = total, true
	for _, c := range levels {
		if one := w.alone(c); one.half() < tight*budget {
			v.costs[c.source] = plus(one.cost(), w.floorCost(c.source))
		}
	}
	g.sealed(w, &v, now)
	return v
}

// boundErrors is how many standard errors of some 40 pairs a bound of their interval is away.
const boundErrors = 3.5

// weighed returns the mean of two estimates by their standard errors.
func weighed(a, errorA, b, errorB float64) float64 {
	return (a*errorB*errorB + b*errorA*errorA) / (errorA*errorA + errorB*errorB)
}

// cost is an interval as a cost, which is never below nothing.
func (i interval) cost() recording.Cost {
	return recording.Cost{
		Share: max(0, i.mean), Low: max(0, i.low), High: max(0, i.high), Basis: recording.CostMeasured,
	}
}

// switched returns the sources that are switched in slices, at their levels.
func (g *Governor) switched() []column {
	var out []column
	for i, s := range g.sources {
		if s.switched() {
			out = append(out, column{i, s.level})
		}
	}
	return out
}

// measured returns the part of what w pays that slices tell, and by prediction the rest: the cost of sources that are
// not switched, and of what those that are still do in slices.
func (g *Governor) measured(
	w *watched, predicted *verdict, slower interval, levels []column,
) (part, rest recording.Cost) {
	part = slower.cost()
	if floor := distrust * g.sumOf(w.predicted, levels); part.High < floor {
		part.Share, part.High = floor, floor // it gets on by the clock: see distrust
	}
	for i, s := range g.sources {
		if s.switched() {
			rest = plus(rest, w.floorCost(i))
		} else {
			rest = plus(rest, predicted.costs[i])
		}
	}
	return part, rest
}

// floorCost is what a source still takes while it is reduced.
func (w *watched) floorCost(source int) recording.Cost {
	share := w.floor[source]
	return recording.Cost{Share: share, Low: share / unsure, High: share * unsure}
}

// plus returns both costs together, on the basis of the first.
func plus(a, b recording.Cost) recording.Cost {
	return recording.Cost{Share: a.Share + b.Share, Low: a.Low + b.Low, High: a.High + b.High, Basis: a.Basis}
}

// far reports whether what is predicted is beyond the budget even if it is wrong by as much as it may be: then a level
// is changed at once.
func (g *Governor) far(w *watched) bool {
	least := 0.0
	for _, c := range g.forecast(w).costs {
		least += max(0, c.Low)
	}
	return w.known > 0 && least > g.opts.Budget
}

// sealed notes that a target is decided about; some time later, or when it does something else, it is measured again.
func (g *Governor) sealed(w *watched, v *verdict, now uint64) {
	if v.open {
		return
	}
	if w.checked == 0 {
		w.checked = now
	}
	if now-w.checked > recheck {
		w.checked = 0
		w.rows = w.rows[len(w.rows)/2:] // the newer half tells whether it is still so
		v.open = true
	}
}

// forecast is the verdict by prediction alone.
func (g *Governor) forecast(w *watched) verdict {
	v := verdict{costs: make([]recording.Cost, len(g.sources))}
	for i, s := range g.sources {
		p := w.predicted[i]
		c := recording.Cost{Share: p, Low: p / unsure, High: p * unsure, Basis: recording.CostPredicted}
		if s.metered != nil {
			if known := s.metered.Cost(w.target.PID()); known.Basis != "" {
				c = known
			}
		}
		v.costs[i] = c
	}
	v.add(recording.CostPredicted)
	return v
}

// add sums the costs up.
func (v *verdict) add(basis string) {
	v.total = recording.Cost{Basis: basis}
	for _, c := range v.costs {
		v.total = plus(v.total, c)
	}
}

func (g *Governor) sumOf(shares []float64, levels []column) float64 {
	sum := 0.0
	for _, c := range levels {
		sum += shares[c.source]
	}
	return sum
}

// act changes the level of one source at most: down where a target pays too much, else up where all have room.
func (g *Governor) act(now uint64) {
	for _, w := range g.targets {
		if w.verdict.over {
			g.shed(w, now)
			return
		}
	}
	for _, w := range g.targets {
		if !w.verdict.under {
			return
		}
	}
	g.raise(now)
}

// settled is how long a new level is left alone, so that what it costs shows in the predictions; where these are far
// beyond the budget, one look is enough.
const settled = 3_000_000_000

// shed reduces the source that costs a target most.
func (g *Governor) shed(w *watched, now uint64) {
	costs, pairs := g.costsApart(w)
	dearest, known := -1, true
	for i, s := range g.sources {
		if s.fixed || s.level >= len(s.levels)-1 || now < s.stuck || costs[i].Share < worthwhile*g.opts.Budget {
			continue
		}
		if now-s.changed < settled && s.changed != 0 && !g.far(w) {
			return // the last step first
		}
		if dearest < 0 || costs[i].Share > costs[dearest].Share {
			dearest = i
		}
	}
	for i, c := range costs {
		known = known && dearest >= 0 && costs[dearest].Low > 0 &&
			(i == dearest || c.Share <= costs[dearest].Low || costs[dearest].Low > g.opts.Budget/2)
	}
	if !known && pairs < mostApart {
		w.undecided, w.apart = true, true // that it is too much is known, not yet which source it is
		return
	}
	if dearest < 0 {
		return
	}
	s, c := g.sources[dearest], costs[dearest]
	w.verdict.costs[dearest] = c
	s.costs[s.level], s.measured = c.Share, w.verdict.measured
	if s.level == 0 || s.reason == "" {
		s.from, s.took = s.level, g.most(dearest)
	}
	if now-s.changed > forgiven {
		s.backoff = hold
	}
	s.held = now + uint64(s.backoff)
	s.backoff = min(2*s.backoff, longestFor)
	least := ""
	if w.verdict.measured {
		least = fmt.Sprintf("at least %s, ", percent(w.verdict.least))
	}
	reason := fmt.Sprintf("watching took %s of a target's time, %s of it this at %q (%s%s); the budget is %s",
		percent(w.verdict.total.Share), percent(c.Share), s.levels[s.level].Name, least, w.verdict.total.Basis,
		percent(g.opts.Budget))
	g.change(s, g.lower(w, dearest), reason, now)
}

// lower returns the level that a source is reduced to: the next one, or beyond those at which it is known to take
// hardly less or to be far too much as well, which one look each would leave. It is not turned off for what others
// take: they may be reduced, too.
func (g *Governor) lower(w *watched, source int) int {
	s, foreseen := g.sources[source], w.lower[source]
	if foreseen == nil || foreseen[s.level] == 0 {
		return s.level + 1
	}
	if before := s.foreseen[s.level]; before > 0 && foreseen[s.level] > 0 {
		for level := range s.level {
			s.costs[level] *= foreseen[s.level] / before
		}
	}
	copy(s.foreseen[s.level:], foreseen[s.level:])
	rest, to, off := w.verdict.total.Share-w.verdict.costs[source].Share, s.level+1, len(foreseen)-1
	saves := func(level int) bool { return foreseen[level] < helped*foreseen[s.level] }
	for ; to < off && (!saves(to) || (rest+foreseen[to])/unsure > g.opts.Budget); to++ {
		s.costs[to] = foreseen[to]
	}
	if last := off - 1; to == off && last > s.level && saves(last) && foreseen[last]/unsure <= g.opts.Budget {
		return last
	}
	return to
}

// worthwhile is the share of the budget below which a source is left alone: what it loses would help nobody.
const worthwhile = 0.1

// helped is what of its predicted cost a source takes at most at its last level, where reducing it was of use.
const helped = 0.8

// giveUp raises a source to where it was when it takes as much at its last level as there: what it counts comes from
// something that its levels do not change.
func (g *Governor) giveUp(s *governed, now uint64) {
	if s.level == 0 || s.level < len(s.levels)-1 || s.took == 0 || s.usual < helped*s.took {
		return
	}
	s.stuck = now + forgiven
	g.change(s, s.from, "reducing it did not change what it costs", now)
}

// mostApart is after how many pairs the dearest source is taken for it though another may be as dear.
const mostApart = 40

// costsApart returns what each source costs w, and how many pairs tell that; mostApart where no more are of use, as
// what is predicted is too much.
func (g *Governor) costsApart(w *watched) (costs []recording.Cost, pairs int) {
	levels := g.switched()
	if !w.verdict.measured || w.verdict.rest > g.opts.Budget {
		return w.verdict.costs, mostApart
	}
	costs, pairs = slices.Clone(w.verdict.costs), mostApart
	for _, c := range levels {
		one := w.alone(c)
		costs[c.source] = plus(one.cost(), w.floorCost(c.source))
		if len(levels) > 1 {
			pairs = min(pairs, one.rows)
		}
	}
	return costs, pairs
}

// canMeasure reports whether another pair may be measured soon.
func (g *Governor) canMeasure() bool { return g.asked == 0 && g.off >= float64(2*(g.length+guard)) }

// room is the share of the budget up to which sources are raised: below it, so that they do not go up and down.
const room = 0.8

// raise gives back a level of the source that is expected to cost least there.
func (g *Governor) raise(now uint64) {
	best, cost := -1, 0.0
	for i, s := range g.sources {
		if s.fixed || s.level == 0 || now < s.held || now-s.changed < settled {
			continue
		}
		extra := g.expected(i, now)
		if best < 0 || extra < cost {
			best, cost = i, extra
		}
	}
	if best < 0 {
		return
	}
	for _, w := range g.targets {
		if w.verdict.total.Share-w.verdict.costs[best].Share+cost > room*g.opts.Budget {
			return
		}
	}
	s := g.sources[best]
	eased := g.eased(best)
	if eased > 0 {
		s.scale(s.level-1, eased)
	}
	reason := fmt.Sprintf("watching took so little that there was room for more than %q, of a budget of %s",
		s.levels[s.level].Name, percent(g.opts.Budget))
	g.change(s, s.level-1, reason, now)
	s.unscaled = eased == 0 && !s.measured
	if s.level == 0 {
		s.reason = "" // nothing is missing
	}
}

// scale makes what a source took at the levels above one a share of that.
func (s *governed) scale(above int, share float64) {
	for level := range above {
		s.costs[level] *= share
	}
}

// expected is what a source is taken to cost one level up: what it took when it was reduced from there, in proportion
// to what it does now against then. Where that is not known, it has to be tried; what was measured long ago, too.
func (g *Governor) expected(i int, now uint64) float64 {
	s := g.sources[i]
	if s.costs[s.level-1] < 0 || s.measured && now-s.changed > uint64(longestFor) {
		return 0
	}
	return s.costs[s.level-1] * g.eased(i)
}

// eased is what a source takes now in proportion to what it took when it came to its level, 1 at most; 0: it is not
// known.
func (g *Governor) eased(i int) float64 {
	s := g.sources[i]
	if s.metered != nil && s.level == len(s.levels)-1 {
		return 0 // so rare that nothing is measured any more
	}
	then := s.usual
	if s.foreseen[s.level] > 0 {
		then = s.foreseen[s.level]
	}
	if then <= 0 {
		return 0
	}
	return min(1, g.most(i)/then)
}

// most is what a source is predicted to take of the target that pays most for it, or says itself that it takes.
func (g *Governor) most(i int) float64 {
	most := 0.0
	for _, w := range g.targets {
		if s := g.sources[i]; s.metered != nil {
			most = max(most, s.metered.Cost(w.target.PID()).Share)
			continue
		}
		most = max(most, w.predicted[i])
	}
	return most
}

func (g *Governor) change(s *governed, level int, reason string, now uint64) {
	from := s.levels[s.level].Name
	if err := s.SetLevel(level); err != nil {
		s.fixed, s.reason = true, fmt.Sprintf("its level cannot be changed: %v", err)
		return
	}
	s.level, s.changed, s.reason, s.usual = level, now, reason, -1
	for i, q := range g.sources {
		if q == s {
			g.history.note(now, i, level, false)
		}
	}
	for _, w := range g.targets {
		// What it pays now is not known yet: until here it paid for the level before, also while that was changed.
		w.checked, w.known, w.last = 0, 0, counters{}
	}
	g.off = offMost
	if g.opts.Log != nil {
		g.opts.Log(Change{s.Name(), from, s.levels[level].Name, reason})
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
