package summary

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/summary/histogram"
)

// maxExact is how many durations are kept as they are: percentiles of more are exact to 0.8%, and take no more memory.
const maxExact = 1 << 13

// durations counts durations, ns.
type durations struct {
	few    []uint64
	many   *histogram.Histogram
	sorted bool
}

func (d *durations) add(ns uint64) {
	if d.many != nil {
		d.many.Add(ns)
		return
	}
	if d.few = append(d.few, ns); len(d.few) < maxExact {
		return
	}
	d.many = &histogram.Histogram{}
	for _, v := range d.few {
		d.many.Add(v)
	}
	d.few = nil
}

func (d *durations) count() uint64 {
	if d.many != nil {
		return d.many.Count
	}
	return uint64(len(d.few))
}

// percentile returns the smallest duration that at least p percent do not exceed. It comes after all add.
func (d *durations) percentile(p int) uint64 {
	if d.many != nil {
		if p >= 100 {
			return d.many.Max
		}
		return d.many.Percentile(uint64(p))
	}
	if !d.sorted {
		slices.Sort(d.few)
		d.sorted = true
	}
	return quantile.Of(d.few, p)
}
