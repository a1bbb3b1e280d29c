package diagnose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestTwiceTheBatchOfADecode: a decode whose kernels read weights for nine tenths of the time is told what twice the
// batch brings where the device is known, and nothing where it is not.
func TestTwiceTheBatchOfADecode(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := newScene(t)
		if known {
			s.Meta.GPU.Devices[0].PeakRate, s.Meta.GPU.Devices[0].Major = 4_800_000_000_000, 9
		}
		for at := uint64(0); at < 1000; at += 10 {
			s.work(event.Kernel, 2, at, at+9, grid(400), 256)
			s.step(at+9, at+10, cause.LaunchOverhead)
		}
		i, d := -1, s.diagnose()
		for j := range d.Findings {
			if d.Findings[j].Cause == "bandwidth-bound" {
				i = j
			}
		}
		if i < 0 {
			t.Fatalf("no finding: %+v", d.Findings)
		}
		f := &d.Findings[i]
		says := func(e diagnose.Evidence) bool { return strings.Contains(e.Text, "arithmetic intensity") }
		switch based := slices.ContainsFunc(f.Evidence, says); {
		case !known && (f.Batch != nil || based):
			t.Errorf("an unknown device: %+v", f.Batch)
		case known && (f.Batch == nil || f.Batch.Low < 1.6 || f.Batch.Low > 1.7 || f.Batch.High != 2 || !based):
			t.Errorf("%+v, want 1.6 to 2 and what it rests on: %+v", f.Batch, f.Evidence)
		}
	}
}
