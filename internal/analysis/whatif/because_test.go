package whatif

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// TestBecause: a wide interval is explained by what most of it comes from, and no other.
func TestBecause(t *testing.T) {
	for _, c := range []struct {
		name      string
		low, high float64
		terms     []term
		want      string
	}{
		{"narrow", 1.8, 2.3, []term{{5, ofPace}}, ""},
		{"by the pace", 1.5, 2.8, []term{{5, ofPace}, {3, ofNames}, {4, ofModel}}, ofPace},
		{"by the names", 1.5, 2.8, []term{{5, ofPace}, {9, ofNames}, {4, ofModel}}, ofNames},
		{"by the model", 1.5, 2.8, []term{{5, ofPace}, {9, ofNames}, {10, ofModel}}, ofModel},
		{"by nothing", 2, 2, nil, ""},
	} {
		if got := because(&Prediction{Gain: cause.Gain{Speedup: 2, Low: c.low, High: c.high}}, c.terms); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := together([]term{{3, ""}, {4, ofPace}}); got != 5 {
		t.Errorf("3 and 4 lead %v away, want 5", got)
	}
}
