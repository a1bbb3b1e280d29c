package memory

import "math"

// unchosen is what is known of the live blocks of a site that no sample was taken of, from those with one. Of blocks that
// are chosen with probability p, n samples leave a number of others that is distributed as a negative binomial.
type unchosen struct {
	seen           float64 // bytes of the samples themselves
	mean, variance float64 // of the bytes without a sample
	most, spread   float64 // those of the sample that leaves most
}

// add takes a sample of a live block.
func (u *unchosen) add(s *sample) {
	mean := s.weight - s.bytes
	u.seen += s.bytes
	u.mean += mean
	u.variance += s.variance
	if mean > u.most {
		u.most, u.spread = mean, s.variance
	}
}

// could has the upper limit allow for a block of so many bytes, had it been chosen by that mean: the mean rises where
// much is allocated, and of what was allocated then there may be no sample.
func (u *unchosen) could(bytes, mean float64) {
	p := -math.Expm1(-bytes / mean)
	if left := bytes/p - bytes; left > u.most {
		u.most, u.spread = left, bytes*bytes*(1-p)/(p*p)
	}
}

// limits returns between what the live bytes lie with a probability of 95%. What was seen is certain; the upper limit
// is that of one more sample, as no block may have been chosen since the last one.
func (u *unchosen) limits() (low, high uint64) {
	low = uint64(u.seen + gammaQuantile(u.mean, u.variance, -limit))
	return low, uint64(math.Ceil(u.seen + gammaQuantile(u.mean+u.most, u.variance+u.spread, limit)))
}

// limit is how many standard deviations of a normal distribution hold 95% on both sides.
const limit = 1.96

// gammaQuantile is a quantile of the gamma distribution with a mean and a variance, by the approximation of Wilson and
// Hilferty: z is the same quantile of the normal distribution. The sum of negative binomials is much like it.
func gammaQuantile(mean, variance, z float64) float64 {
	if mean <= 0 || variance <= 0 {
		return max(0, mean)
	}
	shape := mean * mean / variance
	root := 1 - 1/(9*shape) + z/(3*math.Sqrt(shape))
	return mean * max(0, root*root*root)
}
