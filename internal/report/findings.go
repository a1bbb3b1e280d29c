package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// How much of each finding a terminal shows; Markdown shows more, JSON all.
const (
	textFindings     = 3
	markdownFindings = 1000
	textEvidence     = 3
	textFrames       = 6
	moreEvidence     = 20
	moreFrames       = 24
	maxCodeLines     = 40
	sure             = 0.8 // confidence from which on a finding is called sure
	likely           = 0.5
)

// addFirstFindings lists the findings that pay most, in three lines each: what, how much, what to change.
func addFirstFindings(d *document.Document, m *Model) {
	list := m.Diagnosis.Findings
	if len(list) == 0 {
		return
	}
	d.Add(document.Heading(findingsTitle(m)))
	for i := range list[:min(len(list), firstFindings)] {
		d.Add(firstFinding(m, i))
	}
	for i := range m.Diagnosis.Together {
		if text := togetherText(m, &m.Diagnosis.Together[i]); text != "" {
			d.Add(document.Paragraph(text))
		}
	}
}

// togetherText reports what several findings bring at once, by their numbers; "" where that is nothing.
func togetherText(m *Model, t *diagnose.Together) string {
	var numbers []string
	for i := range m.Diagnosis.Findings {
		if slices.Contains(t.Causes, m.Diagnosis.Findings[i].Cause) {
			numbers = append(numbers, fmt.Sprint(i+1))
		}
	}
	p := &t.Gain
	if isOpen(p) {
		return ""
	}
	if t.Next && p.Speedup >= worthShowing {
		return nextText(m, t) + " Both fixed: " + speedupText(p) + limitText(p) + "."
	}
	if len(numbers) < 2 || p.Speedup < worthShowing {
		return ""
	}
	last := len(numbers) - 1
	what := "Findings " + strings.Join(numbers[:last], ", ") + " and " + numbers[last]
	if t.One {
		return what + " are one change (do that work on the GPU, and copy only its result): " + speedupText(p) +
			limitText(p) + "."
	}
	return what + " together: " + speedupText(p) + limitText(p) + "."
}

// nextText reports what limits the program once the first finding is fixed.
func nextText(m *Model, t *diagnose.Together) string {
	list, at := m.Diagnosis.Findings, ""
	if g := list[0].Gain; g != nil {
		at = gainedText(g)
	}
	for i := range list {
		if list[i].Cause == t.Causes[1] {
			return fmt.Sprintf("Once finding 1 is fixed%s, finding %d limits the program.", at, i+1)
		}
	}
	title := t.Causes[1]
	if row, _, ok := cause.ByKey(title); ok {
		title = row.Title + " (" + row.Key + ")"
	}
	return fmt.Sprintf("Once finding 1 is fixed%s, the next limit is not a finding yet: %s.", at, title)
}

// gainedText is a gain in brackets; "" where none is predicted.
func gainedText(g *diagnose.Gain) string {
	switch {
	case isOpen(g):
		return ""
	case g.Vague():
		return " (at least " + timesText(g.Low) + "x)"
	}
	return " (" + timesText(g.Speedup) + "x)"
}

// findingsTitle does not promise more than the evidence carries.
func findingsTitle(m *Model) string {
	if m.Diagnosis.Verdict == diagnose.NotEnough {
		return "What was seen, without a verdict"
	}
	if m.Diagnosis.Verdict == diagnose.Healthy &&
		slices.ContainsFunc(m.Diagnosis.Findings, func(f diagnose.Finding) bool { return f.Minor }) {
		return "What is left to gain"
	}
	return "What to change, most time won back first"
}

func firstFinding(m *Model, i int) document.Item {
	f := &m.Diagnosis.Findings[i]
	it := document.Item{Number: i + 1, Title: format.CleanText(f.Title) + minorText(m, f)}
	it.Lines = append(it.Lines, verb(f)+costText(m, f)+", "+confidence(f.Confidence)+whereText(f)+beforeText(m, f))
	if len(f.Changes) > 0 {
		it.Lines = append(it.Lines, "Change: "+format.CleanText(f.Changes[0].Text)+gainText(f, " (", ")"))
	}
	if len(f.Changes) > 1 && len(m.Diagnosis.Findings) == 1 { // there is room, and nothing else to choose from
		it.Lines = append(it.Lines, "Or: "+format.CleanText(f.Changes[1].Text))
	}
	return it
}

// beforeText reports why a finding stands before one that costs more; "" where it does not.
func beforeText(m *Model, f *diagnose.Finding) string {
	for i := range m.Diagnosis.Findings {
		if o := &m.Diagnosis.Findings[i]; f.Before != "" && o.Cause == f.Before && o.Share > f.Share {
			return fmt.Sprintf("; first, because no CUDA graph (finding %d) can hold it", i+1)
		}
	}
	return ""
}

// minorText marks what is no finding where others are.
func minorText(m *Model, f *diagnose.Finding) string {
	if !f.Minor || m.Diagnosis.Verdict == diagnose.Healthy {
		return ""
	}
	return " (minor)"
}

// gainText reports what the remedy would bring; "" where that is not known.
func gainText(f *diagnose.Finding, before, after string) string {
	if f.Gain == nil && f.Batch != nil {
		return fmt.Sprintf("%sthroughput %sx to %sx with twice the batch%s",
			before, timesText(f.Batch.Low), timesText(f.Batch.High), after)
	}
	if f.Gain == nil {
		return ""
	}
	text := speedupText(f.Gain)
	if isOpen(f.Gain) {
		return before + text + mergedText(f) + after
	}
	if c, _, ok := cause.ByKey(f.Cause); ok && remedyText(c.ID) != "" {
		text += " " + remedyText(c.ID)
	}
	text += threadText(f.Gain) + workersText(f.Gain) + limitText(f.Gain)
	if f.Less != nil && f.Less.Speedup >= worthShowing {
		text += ", up to " + timesText(f.Less.Speedup) + "x if it is done once or not at all"
	}
	return before + text + mergedText(f) + after
}

// mergedText reports what one copy or kernel in place of many would bring; "" where that is not known.
func mergedText(f *diagnose.Finding) string {
	if f.Merge == nil || f.Merge.Speedup < worthShowing || isOpen(f.Merge) {
		return ""
	}
	what := "copy"
	if f.Cause == cause.LaunchOverhead.String() {
		what = "kernel"
	}
	return ", " + strings.TrimPrefix(speedupText(f.Merge), "predicted speed-up ") + " with one " + what +
		" in place of many small ones" + limitText(f.Merge)
}

// wideText reports why an interval is wide, or why nothing is gained, where that is known.
func wideText(f *diagnose.Finding) string {
	switch {
	case f.Gain.Because == "" || isOpen(f.Gain): // gainText gives the reason then
		return ""
	case noFaster(f.Gain):
		return ": " + format.CleanText(f.Gain.Because)
	}
	return "; the interval is wide, because " + format.CleanText(f.Gain.Because)
}

// verb does not say that time is lost where the GPU works, or where there is nothing to do: that time does not go away.
func verb(f *diagnose.Finding) string {
	c, _, ok := cause.ByKey(f.Cause)
	still := c.ID == cause.Hang || c.ID == cause.GPUError
	if ok && !still && (c.ID.Busy() || c.ID == cause.NoWork) {
		return "is about "
	}
	if c.ID == cause.RemoteMemory { // a hint: see diagnose
		return "may cost "
	}
	return "costs "
}

// costText reports how much time a finding is about.
func costText(m *Model, f *diagnose.Finding) string {
	switch f.Cause {
	case cause.Hang.String(), cause.GPUError.String():
		return fmt.Sprintf("%s of the recording (%s), up to its end", format.Percent(f.Share), format.Span(f.Cost))
	case cause.RemoteMemory.String():
		return "time, which was not measured"
	case cause.StartEnd.String():
		return fmt.Sprintf("%s of the recording (%s), once", format.Percent(f.Share), format.Span(f.Cost))
	}
	s := fmt.Sprintf("%s of the time (%s", format.Percent(f.Share), format.Span(f.Cost))
	if each, ok := perIteration(m); ok {
		s += fmt.Sprintf(", %s per iteration", spanOfEach(f.Share*each))
	}
	return s + ")"
}

// confidence puts a number into words.
func confidence(c float64) string {
	switch {
	case c >= sure:
		return "high confidence"
	case c >= likely:
		return "medium confidence"
	}
	return "low confidence"
}

// whereText names the place and the thread of a finding, where its title does not.
func whereText(f *diagnose.Finding) string {
	s := ""
	if f.Place != "" && !strings.Contains(f.Title, f.Place) {
		s += "; at " + format.Clean(f.Place)
	}
	if f.TID != 0 {
		s += "; " + who(f.Thread, f.TID)
	}
	return s
}

// detail describes how much of each finding is shown.
type detail struct{ findings, evidence, frames int }

// addFindings writes the findings with their evidence.
func addFindings(d *document.Document, m *Model, much detail) {
	list := m.Diagnosis.Findings
	if len(list) == 0 {
		return
	}
	d.Add(document.Heading("Evidence"))
	for i := range list[:min(len(list), much.findings)] {
		addFinding(d, m, i, much)
	}
	if n := len(list) - much.findings; n > 0 {
		d.Add(document.Paragraph(fmt.Sprintf("%d more: --format markdown has all findings.", n)))
	}
}

func addFinding(d *document.Document, m *Model, i int, much detail) {
	f := &m.Diagnosis.Findings[i]
	d.Add(document.Subheading(fmt.Sprintf("%d. %s", i+1, format.CleanText(f.Title))), findingFacts(m, f))
	for _, e := range chosenEvidence(f.Evidence, much.evidence) {
		addEvidence(d, m, e, much.frames)
	}
	if n := len(f.Evidence) - much.evidence; n > 0 {
		d.Add(document.Bullets{fmt.Sprintf("%d more; --format markdown or json has them.", n)})
	}
	for j := range f.Changes {
		addChange(d, &f.Changes[j])
	}
}

// chosenEvidence picks the first pieces, and sees to it that one with a stack is among them: it leads to the code.
func chosenEvidence(list []diagnose.Evidence, most int) []*diagnose.Evidence {
	var out []*diagnose.Evidence
	for i := range list[:min(len(list), most)] {
		out = append(out, &list[i])
	}
	has := func(e *diagnose.Evidence) bool { return len(e.Call) > 0 }
	if slices.ContainsFunc(out, has) {
		return out
	}
	if i := slices.IndexFunc(list, func(e diagnose.Evidence) bool { return has(&e) }); i >= 0 {
		out[len(out)-1] = &list[i]
	}
	return out
}

func findingFacts(m *Model, f *diagnose.Finding) document.Facts {
	var facts document.Facts
	cost := costText(m, f)
	if f.Cause == cause.RemoteMemory.String() {
		cost = "not measured"
	}
	facts.Add("Cost", cost)
	if f.Place != "" {
		facts.Add("Place", format.Clean(f.Place))
	}
	if f.TID != 0 {
		thread := who(f.Thread, f.TID)
		if f.PID != 0 && f.PID != f.TID {
			thread += fmt.Sprintf(" of process %d", f.PID)
		}
		facts.Add("Thread", thread)
	}
	facts.Add("Confidence", confidenceText(f))
	if f.Gain != nil {
		facts.Add("Gain", gainText(f, "", "")+wideText(f)+"; details: inferscope whatif")
	}
	if f.Cause != "" {
		facts.Add(
			"Cause",
			fmt.Sprintf("%s; how it is proven: inferscope explain %s", format.Clean(f.Cause), format.Clean(f.Cause)),
		)
	}
	return facts
}

// confidenceText gives the number and its reasons.
func confidenceText(f *diagnose.Finding) string {
	s := fmt.Sprintf("%s (%.2f of 1)", confidence(f.Confidence), f.Confidence)
	var because []string
	for _, b := range f.Because {
		because = append(because, format.CleanText(b))
	}
	if len(because) > 0 {
		s += ": " + strings.Join(because, "; ")
	}
	return s
}

func addEvidence(d *document.Document, m *Model, e *diagnose.Evidence, frames int) {
	d.Add(document.Bullets{evidenceText(m, e)})
	if len(e.Call) > 0 {
		d.Add(stack(e.Call, frames))
	}
}

// evidenceText reports where in the timeline to look, unless the text says for how long already.
func evidenceText(m *Model, e *diagnose.Evidence) string {
	s := strings.TrimSuffix(format.CleanText(e.Text), ".")
	if e.From < m.Summary.Window.From || e.To <= e.From {
		return s + "."
	}
	at, long := format.Span(e.From-m.Summary.Window.From)+" into the window", format.Span(e.To-e.From)
	if !strings.Contains(s, long) {
		at += ", for " + long
	}
	return s + " (" + at + ")."
}

// stack writes frames, the innermost first, with the callers below. Where there is no room for all, code that nobody
// can change is left out: that of libraries between the innermost frame and the first of Python, thirty of them for a
// launch, and the interpreter's.
func stack(frames []string, most int) document.Stack {
	var out document.Stack
	skip := 0
	if i := slices.IndexFunc(frames, isPython); len(frames) > most && i > 1 {
		skip = i - 1
		callers := slices.DeleteFunc(slices.Clone(frames[i:]), isInterpreter)
		frames = append([]string{frames[0]}, callers...)
	}
	for i, f := range frames[:min(len(frames), most)] {
		caller := "called by "
		switch {
		case i == 0:
			caller = ""
		case i == 1 && skip > 0:
			caller = fmt.Sprintf("called, through %s, by ",
				format.Plural(uint64(skip), "native function", "native functions"))
		}
		out = append(out, caller+format.Clean(f))
	}
	if n := len(frames) - most; n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return out
}

// isInterpreter reports whether a frame is of CPython's own code.
func isInterpreter(frame string) bool {
	return strings.Contains(frame, " (python3") || strings.Contains(frame, " (libpython")
}

// isPython reports whether a frame is of Python, by its file and line.
func isPython(frame string) bool { return strings.Contains(frame, ".py:") }

func addChange(d *document.Document, c *diagnose.Change) {
	where := ""
	if c.Where != "" {
		where = " (" + format.Clean(c.Where) + ")"
	}
	d.Add(document.Bullets{"Change" + where + ": " + format.CleanText(c.Text)})
	if c.Example != "" {
		d.Add(example(c.Example))
	}
}

// example splits code into lines.
func example(s string) document.Code {
	var out document.Code
	for l := range strings.Lines(s) {
		if len(out) == maxCodeLines {
			break
		}
		out = append(out, format.Clean(strings.TrimRight(strings.ReplaceAll(l, "\t", "    "), "\r\n ")))
	}
	return out
}
