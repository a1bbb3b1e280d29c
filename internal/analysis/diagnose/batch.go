package diagnose

import "github.com/inferscope/inferscope/internal/analysis/cause"

// withRoom is by how much longer kernels take at most that have room for more (weights are read once for the whole
// batch, blocks find free multiprocessors, a launch takes as long) where the batch is twice as large: what belongs to
// each sequence, as the keys and values of attention, is read twice. It is an assumption, not a measurement.
const withRoom = 1.25

// twiceTheBatch returns the throughput with a batch twice as large, relative to what it is: kernels with room for it
// take as long or a little longer, and all else takes as long at best and twice as long at worst. nil for other causes,
// and where such kernels take less than half of the time, so that next to nothing is sure.
func twiceTheBatch(id cause.ID, share float64) *timeRange {
	if share < 0.5 {
		return nil
	}
	switch id {
	case cause.SmallBatch, cause.TinyKernels, cause.BandwidthBound:
		return &timeRange{Low: 2 / (withRoom*share + 2*(1-share)), High: 2}
	}
	return nil
}
