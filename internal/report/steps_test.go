package report

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
)

// TestKindsOfSteps: each kind of steps is a row, what is not known is left empty, and names from a recording cannot
// break a line.
func TestKindsOfSteps(t *testing.T) {
	works := 0.25
	m := &Model{}
	if stepsText(m) != "" {
		t.Error("a text without iterations")
	}
	m.Diagnosis.Iterations = &diagnose.Iteration{Kinds: []diagnose.StepKind{
		{Name: "1 graph launch", Count: 120, Time: 600e6, Share: 0.6, P50: 5e6, P99: 6e6, Graphs: 1},
		{
			Name:     "219 launches\x1b and no graph",
			Count:    2,
			Time:     24e6,
			Share:    0.4,
			Launches: 219,
			GPU:      &works,
			Outside:  true,
		},
	}}
	want := "60.0% of the time in 120 steps of 1 graph launch (p50 5.00 ms); " +
		"40.0% of the time in 2 steps of 219 launches"
	if got := stepsText(m); !strings.HasPrefix(got, want) || strings.Contains(got, "\x1b") ||
		!strings.HasSuffix(got, "which fall out of the CUDA graphs") {
		t.Errorf("text %q", got)
	}
	rows := stepsTable(m.Diagnosis.Iterations.Kinds).Rows
	if len(rows) != 2 || rows[0][8] != "" || rows[1][8] != "25.0%" || rows[1][4] != "" || rows[0][9] != "" {
		t.Errorf("rows %+v", rows)
	}
}
