package overhead

import (
	"math"
	"slices"
)

// contrast is what a pair of neighbouring slices says: the sources that were on in one of them and
// reduced in the other, and how much slower the target got on in the first.
type contrast struct {
	effects []effect
	apart   bool    // each source has a sign of its own
	slower  float64 // log of the time that a unit of progress took in the first slice over that in the second
}

// effect is a source at the level whose cost is measured.
type effect struct {
	column
	sign float64 // 1: on in the first slice, -1: in the second
}

// column is a source at a level.
type column struct{ source, level int }

// together reports whether a contrast tells what these cost together.
func (c *contrast) together(of []column) bool {
	if len(c.effects) != len(of) {
		return false
	}
	for i, e := range c.effects {
		if e.column != of[i] || e.sign != c.effects[0].sign {
			return false
		}
	}
	return true
}

// alone returns what a contrast tells of one source: with signs of their own, the others are noise.
func (c *contrast) alone(of column) (added float64, ok bool) {
	i := slices.IndexFunc(c.effects, func(e effect) bool { return e.column == of })
	if i < 0 || !c.apart && len(c.effects) > 1 {
		return 0, false
	}
	return c.effects[i].sign * c.slower, true
}

// interval is an estimate of a cost as a share of the target's time, with bounds that hold at all moments together with
// 95%: it may be looked at after every pair. They are infinite where pairs are too few.
type interval struct {
	mean, low, high float64
	rows            int // pairs behind it
}

func (i interval) half() float64 { return (i.high - i.low) / 2 }

// Of intervals.
const (
	decideError = 0.05  // probability that the truth ever leaves one
	clipAt      = 1.345 // standard deviations from which on a pair counts no more: 95% efficient for normal noise
	madNormal   = 1.4826
	prior       = 1 // squares of standard deviations: an interval is at its best after some 10 pairs
	bisections  = 20
)

// estimate returns the mean cost by what pairs say was added. Which slice of a pair comes first is left to chance, and
// so what has nothing to do with the sources is as likely to be added as subtracted, whatever it is: bursts, drift,
// answers that begin. For such symmetric terms, exp(aS - a²V/2) is a supermartingale for every a, S their sum and V
// that of their squares (de la Peña 1999). Mixed over a normal prior of a, it ever exceeds 1/decideError with at most
// that probability (Ville), which bounds S without any assumption on the noise. Clipped terms are symmetric, too
// (Huber 1964). A cost belongs to the interval if the pairs less that cost keep the bound.
func estimate(added []float64) interval {
	all := interval{low: math.Inf(-1), high: math.Inf(1), rows: len(added)}
	if len(added) == 0 {
		return all
	}
	middle := Median(added)
	sizes := make([]float64, len(added))
	for i, v := range added {
		sizes[i] = math.Abs(v - middle)
	}
	scale := max(madNormal*Median(sizes), 1e-6)
	terms := func(cost float64) (sum, squares float64) {
		for _, v := range added {
			u := min(max((v-cost)/scale, -clipAt), clipAt)
			sum, squares = sum+u, squares+u*u
		}
		return sum, squares
	}
	leaves := func(cost float64) bool {
		sum, squares := terms(cost)
		return sum*sum > 2*(squares+prior)*math.Log(math.Sqrt((squares+prior)/prior)/decideError)
	}
	least, most := slices.Min(added)-clipAt*scale, slices.Max(added)+clipAt*scale
	all.mean = bisect(least, most, func(cost float64) bool { sum, _ := terms(cost); return sum > 0 })
	if leaves(least) {
		all.low = bisect(least, all.mean, leaves)
	}
	if leaves(most) {
		all.high = bisect(all.mean, most, func(cost float64) bool { return !leaves(cost) })
	}
	return all
}

// bisect returns where holds, which is true at low, stops being so.
func bisect(low, high float64, holds func(float64) bool) float64 {
	for range bisections {
		if middle := (low + high) / 2; holds(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return (low + high) / 2
}

// Median returns the middle of v, or the mean of the two in the middle; 0 of nothing.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}
