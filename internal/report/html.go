package report

import (
	"fmt"
	"io"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/report/html"
)

// HTML writes the model as one page that needs nothing else: what the other forms say, and a timeline, flame
// graphs and tables to look at. A model that was read from JSON has not what the timeline is made of, and is refused.
func HTML(w io.Writer, m *Model) error {
	if m.result == nil {
		return fmt.Errorf("write HTML: the model comes from JSON, which has no timeline: make it from a recording")
	}
	if err := html.Write(w, htmlInput(m)); err != nil {
		return fmt.Errorf("write HTML: %w", err)
	}
	return nil
}

func htmlInput(m *Model) html.Input {
	v := verdict(&m.Diagnosis)
	in := html.Input{
		Title: "InferScope: " + m.Target.name(), Version: format.Clean(m.Version), Verdict: v.Text, Mood: mood(v.Mood),
		Headline: format.CleanText(m.Diagnosis.Headline),
		Notes:    append([]string{}, reasons(&m.Diagnosis)...),
		Facts:    []html.Fact{},
		Heading:  findingsTitle(m), Went: breakdownTitle(m),
		Diagnosis: &m.Diagnosis, Calls: &m.Summary, CPU: &m.CPU, GPU: m.GPU,
		WhatIf: htmlWhatIf(m), Exchanged: m.Collectives, Topology: m.Topology, Memory: m.Memory,
		Timeline: m.result.Timeline, Threads: m.result.Threads, Walk: m.result.Walk,
		Findings: []html.Finding{}, Doubts: []html.Doubt{},
	}
	if tool, ok := importedFrom(m.Version); ok {
		in.Version = "report on a file of " + format.Clean(tool)
	}
	if each, ok := perIteration(m); ok {
		in.Iteration = uint64(each)
	}
	for _, why := range []string{empty(m), gpuUnobservedText(m)} {
		if why != "" {
			in.Notes = append(in.Notes, why)
		}
	}
	in.Notes = append(in.Notes, memoryNotes(m)...)
	in.Facts = htmlFacts(answerFacts(m))
	for i := range m.Diagnosis.Findings {
		in.Findings = append(in.Findings, htmlFinding(m, i))
	}
	if m.Requests != nil {
		in.Requests, in.Delays = m.Requests, htmlDelays(m.Requests)
	}
	for i := range m.Doubts {
		in.Doubts = append(in.Doubts, htmlDoubt(&m.Doubts[i]))
	}
	return in
}

func htmlDelays(s *requests.Summary) []html.Delay {
	var out []html.Delay
	for i := range s.Delays {
		d := &s.Delays[i]
		c, _, _ := cause.Explained(d.Cause)
		one := html.Delay{
			Title: upper(c.Title), Share: d.Share, Requests: d.Requests, P50: d.P50, P99: d.P99, Proof: delayProof(d),
			Without: withoutText(d.Without),
		}
		if len(c.Changes) > 0 {
			one.Change = c.Changes[0].Text
		}
		out = append(out, one)
	}
	return out
}

func mood(m document.Mood) string {
	switch m {
	case document.Good:
		return "good"
	case document.Bad:
		return "bad"
	}
	return "plain"
}

func htmlFacts(facts document.Facts) []html.Fact {
	out := []html.Fact{}
	for _, f := range facts {
		out = append(out, html.Fact{Label: f.Label, Value: f.Value})
	}
	return out
}

func htmlFinding(m *Model, i int) html.Finding {
	f := &m.Diagnosis.Findings[i]
	out := html.Finding{
		Title: format.CleanText(f.Title), Cause: format.Clean(f.Cause), Cost: verb(f) + costText(m, f), Share: f.Share,
		Confidence: f.Confidence, Sure: confidence(f.Confidence), Facts: htmlFacts(findingFacts(m, f)),
		Gain: gainText(f, "", ""), Open: f.Gain != nil && isOpen(f.Gain), Changes: []html.Change{},
		PID: f.PID, TID: f.TID,
	}
	for j := range f.Evidence {
		e := &f.Evidence[j]
		one := html.Evidence{Text: evidenceText(m, e), From: e.From, To: e.To}
		for _, fr := range e.Call[:min(len(e.Call), moreFrames)] {
			one.Stack = append(one.Stack, format.Clean(fr))
		}
		out.Evidence = append(out.Evidence, one)
	}
	for _, c := range f.Changes {
		code := ""
		for _, line := range example(c.Example) {
			code += line + "\n"
		}
		out.Changes = append(out.Changes,
			html.Change{Where: format.Clean(c.Where), Text: format.CleanText(c.Text), Example: code})
	}
	return out
}

func htmlDoubt(d *Doubt) html.Doubt {
	out := html.Doubt{
		Severity: string(d.Severity),
		Count:    d.Count,
		Means:    format.CleanText(d.Means),
		Do:       format.CleanText(d.Do),
	}
	for _, w := range d.Where[:min(len(d.Where), 8)] {
		out.Where = append(out.Where, format.Clean(w))
	}
	return out
}

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
		"At 100%% it is the remedy that inferscope explain describes; below, only that part of the time is removed. "+
			"Where only the remedy can be replayed there is no slider. A replay of the recording says what the whole "+
			"program gains, and the replay without changes is off by %s.",
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
