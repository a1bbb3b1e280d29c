package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// stepsText says of which kinds the iterations are, in one line; "" where they are of one.
func stepsText(m *Model) string {
	it := m.Diagnosis.Iterations
	if it == nil || len(it.Kinds) == 0 {
		return ""
	}
	var parts []string
	for i := range it.Kinds {
		k := &it.Kinds[i]
		s := fmt.Sprintf("%s of the time in %s of %s",
			format.Percent(k.Share), format.Plural(k.Count, "step", "steps"), format.Clean(k.Name))
		if k.P50 > 0 {
			s += fmt.Sprintf(" (p50 %s)", format.Span(k.P50))
		}
		if k.Outside {
			s += ", which fall out of the CUDA graphs"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// stepsTable is a row for each kind of iterations.
func stepsTable(list []diagnose.StepKind) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("A step is", 0),
		document.Right("Steps", 0),
		document.Right("Time", 0),
		document.Right("Share", 0),
		document.Right("p50", 0),
		document.Right("p99", 0),
		document.Right("Launches", 0),
		document.Right("Graphs", 0),
		document.Right("GPU works", 0),
		document.Left("", 1),
	}}
	for i := range list {
		k := &list[i]
		p50, p99, gpu, note := "", "", "", ""
		if k.P50 > 0 {
			p50, p99 = format.Span(k.P50), format.Span(k.P99)
		}
		if k.GPU != nil {
			gpu = format.Percent(*k.GPU)
		}
		if k.Outside {
			note = "falls out of the CUDA graphs"
		}
		t.Row(format.Clean(k.Name), format.Count(k.Count), format.Span(k.Time), format.Percent(k.Share), p50,
			p99, format.Count(k.Launches), format.Count(k.Graphs), gpu, note)
	}
	t.Note = "Launches and graph launches of a step are medians. Shares are of the steps whose kind is known."
	return t
}
