package diagnose

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// TestTwiceTheBatch: the more of the time is spent in kernels that have room, the more is sure to be won.
func TestTwiceTheBatch(t *testing.T) {
	for share, low := range map[float64]float64{1: 1.6, 0.5: 2 / 1.625} {
		if r := twiceTheBatch(cause.BandwidthBound, share); r == nil || math.Abs(r.Low-low) > 1e-9 || r.High != 2 {
			t.Errorf("%.1f of the time: %+v, want from %.3f", share, r, low)
		}
	}
	for _, r := range []*timeRange{twiceTheBatch(cause.HostSync, 1), twiceTheBatch(cause.SmallBatch, 0.2)} {
		if r != nil {
			t.Errorf("%+v", r)
		}
	}
}
