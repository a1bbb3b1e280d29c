package overhead

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// verdict is what is known of what a target pays.
type verdict struct {
	total    recording.Cost
	costs    []recording.Cost // by source
	measured bool             // total is
	pairs    int
	over     bool // it is more than the budget
	under    bool // it is not
	open     bool // more pairs are wanted
	why      string
}

// Of deciding.
const (
	enoughPairs = 6
	tight       = 0.25 // of the budget: an interval of half so much decides by its middle
	mostPairs   = 200  // that do not decide either: the program is too uneven to be measured so
	// distrust is the share of a predicted cost that is believed whatever was measured: a program that
	// gets on by the clock does not become slower by what it pays.
	distrust = 0.25
	// unsure is how wrong a predicted cost may be, as a factor: what one run of a program takes differs from its
	// calibration by the caches it finds.
	unsure = 1.5
)

// judge says what w pays for watching, and whether that is known well enough.
func (g *Governor) judge(w *watched, now uint64) verdict {
	predicted := g.forecast(w)
	v := predicted
	v.costs = slices.Clone(predicted.costs) // which what was measured replaces
	if w.known < 2 && !g.far(w) {
		v.why = "it has just begun"
		return v
	}
	sum, levels := g.measured(w, &v)
	budget := g.opts.Budget
	switch {
	case w.idle:
		v.under, v.why = v.total.Share <= budget, "the target does nothing now"
		v.over = !v.under
		return v
	case w.yard.by == "":
		v.over, v.why = v.total.Share > budget, "nothing that the target does again and again is even enough to "+
			"measure by"
		v.under = !v.over
		return v
	case len(levels) == 0:
		v.over, v.why = v.total.Share > budget, "nothing is left that could be switched to measure it"
		v.under = !v.over
		return v
	case !sum.exists || sum.rows < enoughPairs:
		// A prediction far above the budget needs no measurement first.
		v.over, v.open, v.why = v.total.Share > budget, true, "it is being measured"
		return v
	}
	rest := v.total.Share - max(0, sum.mean) // that no slice can tell
	low, high := rest+max(0, sum.mean-sum.sure), rest+max(0, sum.mean+sum.sure)
	switch {
	case low > budget:
		v.over = true
	case high < budget:
		v.under = true
	case sum.half < tight*budget:
		v.over = v.total.Share > budget
		v.under = !v.over
	case sum.rows >= mostPairs:
		v.over, v.why = v.total.Share > budget, "it does not get on evenly enough to tell more exactly"
		v.under = !v.over
	case sum.half > budget && predicted.total.Share > budget:
		v = predicted // which counts as long as slices tell nothing
		v.over, v.open, v.why = true, true, "it is being measured"
	default:
		v.open, v.why = true, "it is being measured"
	}
	if v.over || v.under {
		g.sealed(w, &v, now)
	}
	return v
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
	if w.checked == 0 {
		w.checked = now
	}
	if now-w.checked > recheck {
		w.checked = 0
		w.rows = w.rows[len(w.rows)/2:] // the newer half tells whether it is still so
		w.refit()
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
		v.total.Share += c.Share
		v.total.Low += c.Low
		v.total.High += c.High
	}
}

// measured puts what slices tell into v, and returns what they tell of all that can be switched together.
func (g *Governor) measured(w *watched, v *verdict) (sum interval, levels []column) {
	for i, s := range g.sources {
		if s.switched() {
			levels = append(levels, column{i, s.level})
		}
	}
	if len(levels) == 0 || w.yard.by == "" {
		return interval{}, levels
	}
	sum = w.fit.of(levels)
	if !sum.exists || sum.rows < enoughPairs ||
		slices.ContainsFunc(levels, func(c column) bool { return !w.fit.has(c) }) {
		return interval{}, levels
	}
	if floor := distrust * g.sumOf(w.predicted, levels); sum.mean < floor && sum.mean+sum.sure < floor {
		sum.mean = floor // it gets on by the clock: see distrust
	}
	whole := max(0, sum.mean) // less is noise, and must not make up for what is known by other means
	v.measured, v.pairs = true, sum.rows
	for i, s := range g.sources {
		one := w.fit.of([]column{{i, s.level}})
		if !s.switched() || !one.exists {
			whole += v.costs[i].Share
			continue
		}
		rest := w.floor[i]
		whole += rest
		v.costs[i] = recording.Cost{
			Share: one.mean + rest,
			Low:   one.mean + rest - one.half,
			High:  one.mean + rest + one.half,
			Basis: recording.CostMeasured,
		}
	}
	rest := whole - max(0, sum.mean)
	v.total = recording.Cost{
		Share: whole, Low: rest + sum.mean - sum.half, High: rest + sum.mean + sum.half, Basis: recording.CostMeasured,
	}
	return sum, levels
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
	dearest := -1
	for i, s := range g.sources {
		if s.fixed || s.level >= len(s.levels)-1 || now < s.stuck ||
			w.verdict.costs[i].Share < worthwhile*g.opts.Budget {
			continue
		}
		if now-s.changed < settled && s.changed != 0 && !g.far(w) {
			return // the last step first
		}
		if dearest < 0 || w.verdict.costs[i].Share > w.verdict.costs[dearest].Share {
			dearest = i
		}
	}
	if dearest < 0 {
		return
	}
	s, c := g.sources[dearest], w.verdict.costs[dearest]
	if w.verdict.measured && w.verdict.pairs < mostApart && g.canMeasure() &&
		(w.verdict.pairs < leastApart || !w.clearly(dearest)) {
		w.undecided = true // that it is too much is known, not yet which source it is
		return
	}
	s.costs[s.level] = c.Share
	if s.level == 0 || s.reason == "" {
		s.from, s.took = s.level, g.most(dearest)
	}
	if now-s.changed > forgiven {
		s.backoff = hold
	}
	s.held = now + uint64(s.backoff)
	s.backoff = min(2*s.backoff, longestFor)
	reason := fmt.Sprintf("watching took %s of a target's time, %s of it this at %q (%s); the budget is %s",
		percent(w.verdict.total.Share), percent(c.Share), s.levels[s.level].Name, c.Basis, percent(g.opts.Budget))
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

// The dearest source is known after leastApart pairs at the earliest, and is taken for it after mostApart though
// another may be as dear.
const leastApart, mostApart = 12, 40

// clearly reports whether a source costs more than any other by more than its interval is wide.
func (w *watched) clearly(dearest int) bool {
	for i, c := range w.verdict.costs {
		if i != dearest && c.Share > w.verdict.costs[dearest].Low {
			return false
		}
	}
	return true
}

// canMeasure reports whether another pair may be measured soon.
func (g *Governor) canMeasure() bool { return g.asked == 0 && g.off >= float64(2*(minSlice+guard)) }

// room is the share of the budget up to which sources are raised: below it, so that they do not go up and down.
const room = 0.8

// raise gives back a level of the source that is expected to cost least there.
func (g *Governor) raise(now uint64) {
	best, cost := -1, 0.0
	for i, s := range g.sources {
		if s.fixed || s.level == 0 || now < s.held || now-s.changed < settled {
			continue
		}
		extra := g.expected(i)
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
	if eased := g.eased(best); eased > 0 {
		for level := range s.level - 1 {
			s.costs[level] *= eased
		}
	}
	reason := fmt.Sprintf("watching took so little that there was room for more than %q, of a budget of %s",
		s.levels[s.level].Name, percent(g.opts.Budget))
	if g.change(s, s.level-1, reason, now); s.level == 0 {
		s.reason = "" // nothing is missing
	}
}

// expected is what a source is taken to cost one level up: what it took when it was reduced from there, in proportion
// to what it does now against then. Where that is not known, it has to be tried.
func (g *Governor) expected(i int) float64 {
	s := g.sources[i]
	if s.costs[s.level-1] < 0 {
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
	g.off = min(offMost, g.off+offFirst/4)
	if g.opts.Log != nil {
		g.opts.Log(Change{s.Name(), from, s.levels[level].Name, reason})
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
