package diff

import (
	"cmp"
	"math"
	"slices"
)

// least is the least number of values on each side for a test to say anything: with fewer than eight the normal
// approximation of the rank sum does not hold.
const least = 8

// unknown is a probability that is not known.
const unknown = -1

// rankSum returns the probability that two sets of values from one distribution differ at least so much (Mann and
// Whitney's U, two-sided, normal approximation with the correction for ties); unknown where there are too few.
// It supposes nothing of the distribution, which latencies need: a few outliers move a mean, and no rank.
func rankSum(a, b []float64) float64 {
	if len(a) < least || len(b) < least {
		return unknown
	}
	type value struct {
		v   float64
		ofA bool
	}
	all := make([]value, 0, len(a)+len(b))
	for _, v := range a {
		all = append(all, value{v: v, ofA: true})
	}
	for _, v := range b {
		all = append(all, value{v: v})
	}
	slices.SortFunc(all, func(x, y value) int { return cmp.Compare(x.v, y.v) })
	sum, ties := 0.0, 0.0
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		rank := float64(i+j+1) / 2
		for k := i; k < j; k++ {
			if all[k].ofA {
				sum += rank
			}
		}
		n := float64(j - i)
		ties += n*n*n - n
		i = j
	}
	return normalTail(sum, float64(len(a)), float64(len(b)), ties)
}

// normalTail turns a rank sum into a probability.
func normalTail(sum, n, m, ties float64) float64 {
	mean := n * (n + m + 1) / 2
	all := n + m
	variance := n * m / 12 * (all + 1 - ties/(all*(all-1)))
	if variance <= 0 {
		return 1 // all values are equal
	}
	z := max(0, math.Abs(sum-mean)-0.5) / math.Sqrt(variance)
	return math.Erfc(z / math.Sqrt2)
}

// proportions returns the probability that x of n and y of m come from one share (two-sided z test, pooled);
// unknown where there are too few for it.
func proportions(x, n, y, m uint64) float64 {
	if n == 0 || m == 0 {
		return unknown
	}
	p := float64(x+y) / float64(n+m)
	if p*float64(min(n, m)) < 5 {
		return unknown
	}
	variance := p * (1 - p) * (1/float64(n) + 1/float64(m))
	if variance <= 0 {
		return 1
	}
	z := math.Abs(float64(x)/float64(n)-float64(y)/float64(m)) / math.Sqrt(variance)
	return math.Erfc(z / math.Sqrt2)
}

// mean returns the mean, 0 of none.
func mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
