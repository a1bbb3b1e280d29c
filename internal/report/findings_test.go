package report

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
)

// TestNextText: what limits the program once the first finding is fixed is named by its number, or in words where it is
// no finding yet.
func TestNextText(t *testing.T) {
	m := &Model{Diagnosis: diagnose.Diagnosis{Findings: []diagnose.Finding{
		{Cause: "worker", Gain: &diagnose.Gain{Speedup: 1.8, Low: 1.6, High: 2}}, {Cause: "disk"},
	}}}
	gain := diagnose.Gain{Speedup: 3, Low: 2.5, High: 3.5}
	for next, want := range map[string]string{
		"disk":  "Once finding 1 is fixed (1.80x), finding 2 limits the program. Both fixed: predicted speed-up 3.00x (2.50x to 3.50x).",
		"sleep": "Once finding 1 is fixed (1.80x), the next limit is not a finding yet: the program sleeps (sleep). Both fixed: predicted",
	} {
		got := togetherText(m, &diagnose.Together{Causes: []string{"worker", next}, Next: true, Gain: gain})
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", next, got)
		}
	}
	open := diagnose.Gain{Speedup: 3, Low: 0.7, High: 9}
	if got := togetherText(m, &diagnose.Together{Causes: []string{"worker", "disk"}, Next: true, Gain: open}); got != "" {
		t.Errorf("nothing is predicted: %q", got)
	}
}
