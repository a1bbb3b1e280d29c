// Package histogram counts durations without keeping them, to within a percent.
package histogram

import "math/bits"

// subBits is how finely a histogram divides a power of two: 128 parts, so that a
// percentile is exact to 0.8%.
const subBits = 7

// Histogram counts durations in ns without keeping them. The zero value is empty.
type Histogram struct {
	Count  uint64
	Max    uint64 // ns, exact
	counts []uint32
}

// Add counts a duration.
func (h *Histogram) Add(ns uint64) {
	if h.counts == nil {
		h.counts = make([]uint32, (64-subBits+1)<<subBits)
	}
	h.counts[bucket(ns)]++
	h.Count++
	h.Max = max(h.Max, ns)
}

// bucket returns the place of a value: values below 2^(subBits+1) have one each.
func bucket(ns uint64) int {
	shift := bits.Len64(ns) - subBits - 1
	if shift <= 0 {
		return int(ns)
	}
	return shift<<subBits + int(ns>>shift)
}

// Percentile returns the middle of the bucket that holds the smallest value that at least p
// percent of the values do not exceed; 0 for no values.
func (h *Histogram) Percentile(p uint64) uint64 {
	if h.Count == 0 {
		return 0
	}
	left := (h.Count*p + 99) / 100
	for i, n := range h.counts {
		if uint64(n) >= left {
			return min(middle(i), h.Max)
		}
		left -= uint64(n)
	}
	return h.Max
}

func middle(i int) uint64 {
	shift := i>>subBits - 1
	if shift <= 0 {
		return uint64(i)
	}
	low := uint64(i-shift<<subBits) << shift
	return low + 1<<shift/2
}
