package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// worthShowing is the speed-up from which on a line is shown to people: below it, it cannot be told from what the
// product costs.
const worthShowing = 1.01

// WhatIfDocument is an answer in words; rows bounds its tables.
func WhatIfDocument(a *whatif.Answer, rows int) *document.Document {
	d := &document.Document{Title: fmt.Sprintf("What if: process %d", a.PID)}
	d.AddTable("Time to the first token of requests, without each delay", firstTokenTable(a))
	if a.Basis.Observed == 0 {
		if len(a.FirstToken) > 0 {
			return d
		}
		d.Add(document.Paragraph(
			"There is nothing to replay: no stretch of time in which what the GPU did was recorded whole.",
		))
		return d
	}
	d.Add(document.Banner{Text: whatIfHeadline(a)}, whatIfFacts(a))
	d.AddTable("Causes, each with its remedy", remedyTable(a, rows))
	d.AddTable("Functions, calls, copies and kernels, each by itself", marginalTable(a, rows))
	d.Add(
		document.Paragraph(
			"Gains do not add up: what is the critical path after a change decides. A remedy that takes work off the " +
				"path raises the throughput; a single request still takes that work's time.",
		),
	)
	return d
}

func whatIfHeadline(a *whatif.Answer) string {
	if a.Asked == nil {
		i := slices.IndexFunc(a.Remedies, func(p whatif.Prediction) bool { return !isOpen(&p.Gain) })
		if i < 0 || a.Remedies[i].Speedup < worthShowing {
			return "None of the known changes is predicted to make it faster."
		}
		return "Largest gain: " + predictionText(&a.Remedies[i])
	}
	return predictionText(a.Asked)
}

func predictionText(p *whatif.Prediction) string {
	if p.Empty() {
		return format.Clean(p.Plan) + ": no prediction: nothing that takes time in this recording is called that"
	}
	text := fmt.Sprintf("%s: %s%s%s", format.Clean(p.Plan), speedupText(&p.Gain), threadText(&p.Gain),
		limitText(&p.Gain))
	if p.Speedup < worthShowing && p.Because != "" && !isOpen(&p.Gain) {
		text += ": " + format.CleanText(p.Because)
	}
	if len(p.Unmatched) > 0 {
		text += "; nothing that takes time in this recording is called " +
			format.Clean(strings.Join(p.Unmatched, " or "))
	}
	return text
}

// threadText reports what Python code brings that leaves its thread for another one of the same process.
func threadText(p *cause.Gain) string {
	if p.InThread == 0 || p.Speedup < worthShowing || isOpen(p) {
		return ""
	}
	text := timesText(p.InThread) + "x"
	if p.InThread < worthShowing {
		text = "nothing"
	}
	return " in a process of its own, " + text + " in a thread, which shares Python's lock (GIL)"
}

// workersText reports what a remedy takes of the host.
func workersText(p *cause.Gain) string {
	if p.Workers == 0 || p.Speedup < worthShowing {
		return ""
	}
	if p.Workers == 1 {
		return ", with the workers that there are" + cpusText(p)
	}
	text := fmt.Sprintf("with %d times as many workers", p.Workers)
	if p.CPUs == 0 {
		text += ", each on a CPU of its own"
	}
	text += cpusText(p)
	if p.Vague() { // at least as much as is predicted with those that there are
		return ", up to " + timesText(p.Speedup) + "x " + text
	}
	text = ", " + text
	if p.Present >= worthShowing {
		text += fmt.Sprintf("; %.2fx with those that there are", p.Present)
	}
	return text
}

// cpusText reports how many CPUs workers take, and how many are free.
func cpusText(p *cause.Gain) string {
	if p.CPUs == 0 {
		return ""
	}
	text := fmt.Sprintf(", which take %.1f CPUs in place of %.1f", p.CPUs, p.CPUsNow)
	if p.FreeCPUs != nil {
		text += fmt.Sprintf(" (%.1f more are free)", *p.FreeCPUs)
	}
	return text
}

// limitText reports what bounds a prediction; "" where nothing that is known does, or where nothing is promised.
func limitText(p *cause.Gain) string {
	if p.Limit == "" || p.Speedup < worthShowing {
		return ""
	}
	return ", limited by " + format.CleanText(p.Limit)
}

// isOpen reports whether a change may bring nothing, and any number of times as much: nothing is predicted of it.
func isOpen(p *cause.Gain) bool { return p.Vague() && p.Low < worthShowing }

// openText reports why nothing is predicted of a change that is open.
func openText(p *cause.Gain) string {
	if p.Because == "" {
		return "the program's pace varied too much"
	}
	return format.CleanText(p.Because)
}

// noFaster reports whether a prediction holds no gain that can be told from none.
func noFaster(p *cause.Gain) bool { return p.Speedup < worthShowing && p.High < 1+2*(worthShowing-1) }

// speedupText is how much faster: "predicted speed-up 1.80x (1.60x to 2.00x)". Of a vague prediction it is the lower
// end alone, and nothing where that is no gain.
func speedupText(p *cause.Gain) string {
	switch {
	case noFaster(p):
		return "predicted: no faster"
	case isOpen(p):
		return "no prediction: " + openText(p)
	case p.Low >= whatif.MaxSpeedup:
		return "no prediction: nothing of what was recorded would be left"
	case p.Vague():
		return "predicted speed-up: at least " + timesText(p.Low) + "x"
	case p.Speedup >= whatif.MaxSpeedup:
		return "predicted speed-up: " + timesIntervalText(p.Low, p.High, "x")
	}
	return fmt.Sprintf("predicted speed-up %sx (%s)", timesText(p.Speedup), timesIntervalText(p.Low, p.High, "x"))
}

// timesIntervalText is an interval of speed-ups, each with a unit: "1.60x to 2.00x". Where almost nothing is left of
// the work at its upper end there is no upper bound to print: "at least 44x".
func timesIntervalText(low, high float64, unit string) string {
	if low >= whatif.MaxSpeedup {
		return "no bound"
	}
	if high >= whatif.MaxSpeedup {
		return "at least " + timesText(low) + unit
	}
	return timesText(low) + unit + " to " + timesText(high) + unit
}

// remedyText is the condition of a prediction for a cause, where it is not that its time is gone: advice may be about
// something else.
func remedyText(id cause.ID) string {
	switch id {
	case cause.PythonWork, cause.NativeWork, cause.Preprocessing, cause.Serialization, cause.Disk, cause.Network:
		return "if it runs in parallel with the rest"
	case cause.LaunchOverhead:
		return "if launched as a CUDA graph"
	case cause.SyncCopy:
		return "if the copies are pinned and asynchronous"
	case cause.CopyNotOverlapped, cause.CopyBound:
		return "if the copies run beside kernels"
	case cause.Worker:
		return "if the next batch is always ready"
	}
	return ""
}

// timesText writes a speed-up with as many digits as it deserves. Beyond whatif.MaxSpeedup hardly anything of the work
// is left to replay, and no number is known.
func timesText(f float64) string {
	switch {
	case f >= whatif.MaxSpeedup:
		return "no bound"
	case f >= 20:
		return fmt.Sprintf("%.0f", f)
	case f >= 5:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func whatIfFacts(a *whatif.Answer) document.Facts {
	var f document.Facts
	if a.Pace != nil {
		f.Add("Now", paceText(a.Pace))
	}
	switch {
	case a.After == nil || a.Asked == nil || a.Asked.Empty() || isOpen(&a.Asked.Gain):
	case a.Asked.Vague():
		f.Add("Then", "at most "+format.Span(a.After.High)+" each")
	default:
		f.Add("Then", paceText(a.After)+fmt.Sprintf(", %s to %s", format.Span(a.After.Low), format.Span(a.After.High)))
	}
	f.Add("Replay", fmt.Sprintf("%s of work in %d steps; without changes it is off by %s",
		format.Span(a.Basis.Observed), a.Basis.Nodes, format.Percent(max(a.Basis.Error, -a.Basis.Error))))
	f.Add("Cross-check",
		fmt.Sprintf("with times learned from the other half of the recording it is off by %s",
			format.Percent(max(a.Basis.Learned, -a.Basis.Learned))))
	f.Add(
		"Not explained",
		fmt.Sprintf("%s of the time are delays that nothing recorded explains", format.Percent(a.Basis.Unexplained)),
	)
	f.Add("Recording", fmt.Sprintf(
		"cost the program %s of that time, as far as it shows; that is left out before a change and after it",
		format.Percent(a.Basis.Recording),
	))
	f.Add("Pace", fmt.Sprintf("varied by %s within the recording", format.Percent(a.Basis.Varies)))
	return f
}

func paceText(p *whatif.Pace) string {
	return fmt.Sprintf("%s each, %.4g a second (%s)", format.Span(p.Latency), p.PerSec, format.Clean(p.Of))
}

func remedyTable(a *whatif.Answer, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Left("change", 0),
			document.Right("faster", 0),
			document.Right("interval", 2),
			document.Right("time it touches", 1),
		},
	}
	for i := range a.Remedies {
		p := &a.Remedies[i]
		if len(t.Rows) == rows || p.Speedup < worthShowing {
			break
		}
		faster, interval := timesText(p.Speedup), timesIntervalText(p.Low, p.High, "")
		switch {
		case isOpen(&p.Gain):
			faster, interval = "no prediction", ""
		case p.Vague():
			faster, interval = "at least "+timesText(p.Low), ""
		}
		t.Row(format.Clean(p.Plan), faster, interval, format.Span(p.Touched))
	}
	return t
}

func marginalTable(a *whatif.Answer, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Left("name", 0),
			document.Left("what", 3),
			document.Right("twice as fast", 0),
			document.Right("for nothing", 1),
			document.Right("its time", 2),
		},
	}
	for i := range a.Marginals {
		m := &a.Marginals[i]
		if len(t.Rows) == rows || m.Gone < worthShowing {
			break
		}
		t.Row(format.Clean(m.Name), m.Kind, timesText(m.Twice), timesText(m.Gone), format.Span(m.Time))
	}
	return t
}

// firstTokenTable reports when the first token would come, if all else took as long.
func firstTokenTable(a *whatif.Answer) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left(
			"Without",
			0,
		), document.Right("p50", 0), document.Right("Now", 0), document.Right("p99", 0), document.Right("Now", 0),
	}}
	for _, f := range a.FirstToken {
		c, _, _ := cause.Explained(f.Cause)
		t.Row(c.Key+": "+c.Title, format.Span(f.P50), format.Span(f.Was50), format.Span(f.P99), format.Span(f.Was99))
	}
	return t
}
