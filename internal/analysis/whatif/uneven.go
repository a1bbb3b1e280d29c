package whatif

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/observer"
)

const (
	// leastUneven is the least standard deviation of steps, relative to their mean, for which windows may hold too many
	// or too few of the long ones.
	leastUneven = 0.5
	// leastReplayed and leastTimed are how many steps have to be replayed, and timed.
	leastReplayed, leastTimed = 10, 30
	// finest is into how many blocks a recording is divided at most, to have one for each step.
	finest = 4096
)

// missed is how much longer the steps that were replayed would have taken together, ns, had they been as long on
// average as those of the whole recording, which are timed outside of windows too; below 0: shorter. 0 where steps are
// alike, so that the difference is the observer's, and where too few are known. Steps longer than all that were
// replayed are left out: what they are longer by may be something else.
func (s *Study) missed(windows *observer.Effect) float64 {
	if windows == nil {
		return 0
	}
	replayed, longest, next := 0.0, uint64(0), 0
	for _, step := range windows.Timed {
		for next < len(s.parts) && s.parts[next].end() <= step.From {
			next++
		}
		inside := uint64(0)
		for k := next; k < len(s.parts) && s.parts[k].graph.From < step.To; k++ {
			from, to := max(step.From, s.parts[k].graph.From), min(step.To, s.parts[k].end())
			inside += to - min(from, to)
		}
		length := step.To - step.From
		replayed += float64(inside) / float64(max(1, length))
		if inside == length {
			longest = max(longest, length)
		}
	}
	n, sum, squares := 0., 0., 0.
	for _, step := range windows.Timed {
		if d := step.To - step.From; d <= longest {
			n, sum, squares = n+1, sum+float64(d), squares+float64(d)*float64(d)
		}
	}
	mean := sum / n
	if n < leastTimed || replayed < leastReplayed || math.Sqrt(max(0, squares/n-mean*mean)) < leastUneven*mean {
		return 0
	}
	return mean*replayed - float64(s.alone)
}

// end is when the last work of a part ended.
func (p *part) end() uint64 { return p.graph.From + p.graph.Observed() }

// reweighed corrects a prediction for steps that windows hold too many or too few of: what a step takes longer is saved
// by the share to which longer steps of the replay save more (a regression estimator: Cochran, "Sampling Techniques",
// 1977, chapter 7).
func (s *Study) reweighed(p *Prediction, edits []Edit, h how) {
	if s.uneven == 0 || p.Speedup == 1 {
		return
	}
	before := float64(s.alone) + s.uneven
	after := float64(p.After) + s.uneven*(1-s.savedOfLonger(edits, h))
	if before <= 0 || after <= before/MaxSpeedup {
		return
	}
	by := before / after / p.Speedup
	p.Before, p.After = uint64(before), uint64(after)
	p.Speedup, p.Low, p.High = p.Speedup*by, p.Low*by, p.High*by
}

// savedOfLonger is how much of what a step takes longer than another an edit saves: the slope of the time saved over
// the time taken, of blocks as short as steps.
func (s *Study) savedOfLonger(edits []Edit, h how) float64 {
	var took, saved []float64
	for _, p := range s.parts {
		before, after := p.graph.Unchanged(), p.graph.Unchanged()
		s.alonePlan(p.graph, before)
		s.change(edits, h, p.graph, after)
		s.alonePlan(p.graph, after)
		for _, list := range p.graph.Blocks(max(1, finest/len(s.parts)), before, after) {
			for _, b := range list {
				took, saved = append(took, b.Before), append(saved, b.Before-b.After)
			}
		}
	}
	return max(0, min(1, slope(took, saved)))
}

// slope is that of the line through points with the least squares; 0 where all x are alike.
func slope(x, y []float64) float64 {
	var meanX, meanY, products, squares float64
	for i := range x {
		meanX, meanY = meanX+x[i]/float64(len(x)), meanY+y[i]/float64(len(x))
	}
	for i := range x {
		products += (x[i] - meanX) * (y[i] - meanY)
		squares += (x[i] - meanX) * (x[i] - meanX)
	}
	if squares == 0 {
		return 0
	}
	return products / squares
}
