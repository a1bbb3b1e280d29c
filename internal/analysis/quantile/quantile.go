// Package quantile picks quantiles of values by nearest rank: always one of the values, never one between two.
package quantile

import (
	"cmp"
	"slices"
)

// Of returns the smallest of sorted values that at least so many percent of them do not exceed; 0 of none.
func Of[T cmp.Ordered](sorted []T, percent int) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

// Median returns the median, of two in the middle the lower one; 0 of none. It sorts values.
func Median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return Of(values, 50)
}

// Upper returns the median, of two in the middle the upper one, for limits on what is usual: half of the values are no
// more than it for certain. 0 of none. It sorts values.
func Upper[T cmp.Ordered](values []T) T {
	if len(values) == 0 {
		var none T
		return none
	}
	slices.Sort(values)
	return values[len(values)/2]
}
