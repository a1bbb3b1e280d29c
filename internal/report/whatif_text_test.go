package report

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/whatif"
)

// TestSpeedupText: an interval that holds everything is not dressed up as a prediction.
func TestSpeedupText(t *testing.T) {
	for want, p := range map[string]whatif.Prediction{
		"1.50 times as fast (1.30 to 1.80)":                       {Speedup: 1.5, Low: 1.3, High: 1.8},
		"1.20 times as fast (0.90 to 1.60)":                       {Speedup: 1.2, Low: 0.9, High: 1.6},
		"58 times as fast (44 to over 1000)":                      {Speedup: 58, Low: 44, High: whatif.MaxSpeedup},
		"nothing certain, for the program's pace varied too much": {Speedup: 1.13, Low: 0.37, High: whatif.MaxSpeedup},
		"no faster": {Speedup: 1, Low: 0.95, High: 1.01},
	} {
		if got := speedupText(&p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}
