package summary

import (
	"cmp"
	"slices"
)

// span measures the union of intervals that come in the order of their beginnings.
type span struct{ end uint64 }

// add returns how much [from, to) adds to the union, in ns.
func (s *span) add(from, to uint64) uint64 {
	from = max(from, s.end)
	if to <= from {
		return 0
	}
	s.end = to
	return to - from
}

// interval is a stretch of time, in ns.
type interval struct{ from, to uint64 }

// union returns how much time the intervals cover together, in ns. It sorts them.
func union(list []interval) uint64 {
	slices.SortFunc(list, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	var s span
	total := uint64(0)
	for _, iv := range list {
		total += s.add(iv.from, iv.to)
	}
	return total
}
