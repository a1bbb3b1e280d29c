package report

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/whatif"
)

// TestSpeedupText: an interval that holds everything is not dressed up as a prediction.
func TestSpeedupText(t *testing.T) {
	for want, p := range map[string]whatif.Prediction{
		"predicted speed-up 1.50x (1.30x to 1.80x)": {Speedup: 1.5, Low: 1.3, High: 1.8},
		"predicted speed-up 1.20x (0.90x to 1.60x)": {Speedup: 1.2, Low: 0.9, High: 1.6},
		"predicted speed-up 58x (at least 44x)":     {Speedup: 58, Low: 44, High: whatif.MaxSpeedup},
		"predicted speed-up: at least 44x": {
			Speedup: whatif.MaxSpeedup, Low: 44, High: whatif.MaxSpeedup,
		},
		"no prediction: nothing of what was recorded would be left": {
			Speedup: whatif.MaxSpeedup, Low: whatif.MaxSpeedup, High: whatif.MaxSpeedup,
		},
		"no prediction: the program's pace varied too much": {
			Speedup: 1.13, Low: 0.37, High: whatif.MaxSpeedup,
		},
		"predicted: no faster": {Speedup: 1, Low: 0.95, High: 1.01},
	} {
		if got := speedupText(&p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}

// TestNothingIsCalledThat: a change of nothing that was recorded says nothing of the program.
func TestNothingIsCalledThat(t *testing.T) {
	want := "without sleep: no prediction: nothing that takes time in this recording is called that"
	if got := predictionText(&whatif.Prediction{Plan: "without sleep", Speedup: 1, Low: 1, High: 1}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := predictionText(&whatif.Prediction{Plan: "p", Speedup: 1, Low: 1, High: 1, Touched: 5}); got !=
		"p: predicted: no faster" {
		t.Errorf("%q: it has time, which is not on the path", got)
	}
}
