package report

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/html"
)

// htmlWhatIf works out what the page's sliders show: for each cause that has a remedy, what comes of it where a part of
// its time goes, and of the remedy itself. nil where nothing can be predicted.
func htmlWhatIf(m *Model) *html.WhatIf {
	out := &html.WhatIf{Rows: []html.Prediction{}}
	seen := map[string]bool{}
	for i := range m.Diagnosis.Findings {
		f := &m.Diagnosis.Findings[i]
		row, _, ok := cause.ByKey(f.Cause)
		if f.Gain == nil || !ok || seen[f.Cause] {
			continue
		}
		seen[f.Cause] = true
		p := html.Prediction{
			Title:   upper(format.Clean(row.Title)),
			Finding: i,
			Points:  strengths(m.result.Study, row.ID, f.Gain),
		}
		out.Rows = append(out.Rows, p)
	}
	if len(out.Rows) == 0 {
		return nil
	}
	out.Note = fmt.Sprintf(
		"At 100%% it is the remedy that inferscope explain describes; below, only that part of the time is removed. Where "+
			"only the remedy can be replayed there is no slider. A replay of the recording says what the whole "+
			"program gains, "+
			"and the replay without changes is off by %s.",
		format.Percent(m.result.Study.Error()),
	)
	return out
}

// strengths predicts a cause at a quarter, a half and three quarters, and has what was predicted of its remedy at the
// end. Of causes whose time a replay cannot shorten in part, as a wait for somebody else, there is the remedy alone.
func strengths(study *whatif.Study, id cause.ID, gain *diagnose.Gain) []html.Point {
	var out []html.Point
	for _, part := range []float64{0.25, 0.5, 0.75} {
		p := study.Predict(
			whatif.Edit{Verb: whatif.Faster, Pattern: cause.Of(id).Key, Cause: id, Factor: 1 / (1 - part)},
		)
		out = append(out, html.Point{Removed: part, Speedup: p.Speedup, Low: p.Low, High: p.High})
	}
	const changes = 1.005 // below that three quarters of the time gone are nothing
	if most := out[len(out)-1]; most.Speedup < changes && gain.Speedup >= changes {
		out = nil
	}
	return append(out, html.Point{Removed: 1, Speedup: gain.Speedup, Low: gain.Low, High: gain.High})
}
