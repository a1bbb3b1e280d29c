package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report/document"
)

// firstFindings is how many findings the first screen of a terminal has room for.
const firstFindings = 3

// addAnswer puts what a person asked for in front of everything else, so that the first screen of a
// terminal holds it: what is wrong, what it costs, where the time went, and what to change.
func addAnswer(d *document.Document, m *Model, ascii bool) {
	d.Add(verdict(&m.Diagnosis))
	if m.Diagnosis.Headline != "" {
		d.Add(document.Paragraph(format.CleanText(m.Diagnosis.Headline)))
	}
	if list := reasons(&m.Diagnosis); len(list) > 0 {
		d.Add(list)
	}
	for _, why := range []string{empty(m), gpuUnobservedText(m)} {
		if why != "" {
			d.Add(document.Paragraph(why))
		}
	}
	d.Add(answerFacts(m))
	d.AddTable(breakdownTitle(m), peopleTable(m, ascii))
	addFirstFindings(d, m)
	addDelays(d, m)
}

// verdict says in a few words what limits the program.
func verdict(g *diagnose.Diagnosis) document.Banner {
	b := document.Banner{Mood: document.Bad}
	switch g.Verdict {
	case diagnose.Healthy:
		b.Mood, b.Text = document.Good, "Healthy: the GPU is kept busy."
	case diagnose.CPUBound:
		b.Text = "CPU-bound: the GPU waits for the CPU."
	case diagnose.GPUBound:
		b.Text = "GPU-bound: the GPU works nearly all of the time, and that is where time can be won."
	case diagnose.CopyBound:
		b.Text = "Copy-bound: moving data takes longer than computing with it."
	case diagnose.CommunicationBound:
		b.Text = "Communication-bound: the GPUs exchange data or wait for each other, and compute nothing meanwhile."
	case diagnose.Hung:
		b.Text = "Hung: some ranks wait in a collective operation for one that has not come."
	case diagnose.Stopped:
		b.Text = "Stopped: a GPU did no more work for the program after an error."
	case diagnose.Balanced:
		b.Text = "Balanced: the GPU works for most of the time that it is needed, and waits for the rest."
	case diagnose.Idle:
		b.Mood, b.Text = document.Plain, "Idle: the program has nothing to do."
	case diagnose.CPUOnly:
		b.Mood, b.Text = document.Plain, "CPU only: this is about the program's main thread, not about a GPU."
	case diagnose.NotEnough:
		b.Text = "Not enough evidence."
	default: // of a newer version, or none was made
		b.Mood, b.Text = document.Plain, "Verdict: "+format.Clean(orNone(string(g.Verdict)))+"."
	}
	return b
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// maxReasons bounds the reasons why there is not enough evidence; JSON has all.
const maxReasons = 4

func reasons(g *diagnose.Diagnosis) document.Bullets {
	var out document.Bullets
	for _, r := range g.Reasons[:min(len(g.Reasons), maxReasons)] {
		out = append(out, format.CleanText(r))
	}
	return out
}

// gpuUnobserved reports why nobody recorded what the GPU did; "" if somebody did or there was nothing to record.
func gpuUnobserved(m *Model) string {
	switch {
	case m.State != stateCalls:
		return ""
	case m.GPU == nil:
		return "the daemon does not record it (its --gpu off, or a version that cannot)"
	case !m.GPU.Recorded:
		return notRecorded(m)
	}
	return ""
}

// gpuUnobservedText reports what cannot be known without GPU records. Where that is why there is no verdict, the reason
// stands there already.
func gpuUnobservedText(m *Model) string {
	why := gpuUnobserved(m)
	switch {
	case why == "":
		return ""
	case m.Diagnosis.Breakdown.Time == 0:
		return "It is not known whether the GPU was idle, or why."
	case m.Diagnosis.Verdict == diagnose.NotEnough && len(m.Diagnosis.Reasons) > 0:
		return "It is not known whether the GPU was idle, or why: what follows is about the main thread."
	}
	return "What the GPU did was not recorded: " + why + ". It is not known whether it was idle, or why: what follows " +
		"is about the main thread."
}

// ofMainThread reports whether the breakdown is of the main thread, because no GPU's time was seen.
func ofMainThread(m *Model) bool { return len(m.Diagnosis.Devices) == 0 }

// answerFacts are whom this is about, how long an iteration takes, and what the answer rests on.
func answerFacts(m *Model) document.Facts {
	var f document.Facts
	f.Add("Program", programText(m))
	if text := requestText(m.Requests); text != "" {
		f.Add("Latency", text)
		f.Add("Iterations", latencyText(m))
	} else {
		f.Add("Latency", latencyText(m))
	}
	if text := stepsText(m); text != "" {
		f.Add("Steps", text)
	}
	if text := onceText(&m.Diagnosis); text != "" && isFound(&m.Diagnosis, cause.StartEnd) {
		f.Add("Start and end", text)
	}
	if text := restsText(m); text != "" {
		f.Add("Based on", text)
	}
	if o := m.Diagnosis.Observed; o != nil {
		f.Add("Recording", fmt.Sprintf(
			"added %s of the time in windows, which is left out of what follows and of predictions",
			percentText(o.Share, o.Low, o.High)))
	}
	f.Add("Losses", lossText(m.Doubts))
	return f
}

// percentText is a share with its interval, where that says more than the share.
func percentText(share, low, high float64) string {
	if format.Percent(low) == format.Percent(high) {
		return format.Percent(share)
	}
	return fmt.Sprintf("%s (%s to %s)", format.Percent(share), format.Percent(low), format.Percent(high))
}

// programText names the target and the window, and how the target ended where it did.
func programText(m *Model) string {
	s := m.Target.name()
	if m.Target.Exited {
		s += fmt.Sprintf(", exited %s", m.Target.Ending.words())
	}
	if tool, ok := importedFrom(m.Version); ok {
		s += ", imported from " + format.Clean(tool)
	}
	w := &m.Summary.Window
	length := w.Length
	if m.Target.Exited && w.ObservedTo > w.From && w.ObservedTo < w.To { // it was asked for later
		length = w.ObservedTo - w.From
	}
	s += "; " + format.Span(length)
	if w.WallFrom != 0 {
		s += " from " + format.Moment(w.WallFrom)
	}
	return s
}

// importedFrom names what a recording was made from, where another tool recorded it: see package importer.
func importedFrom(version string) (what string, ok bool) {
	meta := recording.Meta{Version: version}
	return meta.ImportedFrom()
}

// latencyText reports how long the program takes for what it does again and again.
func latencyText(m *Model) string {
	it := m.Diagnosis.Iterations
	if (it == nil || it.Count == 0) && m.Diagnosis.Few != "" {
		return "none: " + format.CleanText(m.Diagnosis.Few)
	}
	if it == nil || it.Count == 0 {
		return "nothing that repeats was found, so this is about the time as a whole; named ranges (NVTX) would show " +
			"iterations"
	}
	s := fmt.Sprintf("%s end to end (p50; p99 %s, longest %s); %s, %s: %s",
		format.Span(it.P50), format.Span(it.P99), format.Span(it.Max),
		format.Plural(it.Count, "iteration", "iterations"), format.Rate(it.PerSec),
		format.CleanText(it.Source))
	if it.Partial() {
		s += fmt.Sprintf("; all of them within %s", format.Span(it.To-it.From))
	}
	for _, a := range it.Amounts {
		s += fmt.Sprintf("; %s %s each on average, %s", format.Clean(a.Name), meanText(a.Mean), format.Rate(a.PerSec))
	}
	if it.Missed > 1-always {
		s += fmt.Sprintf(
			"; calls were recorded for %s of the time (see Overhead), and these are the iterations in that time",
			format.Percent(1-it.Missed),
		)
	}
	if t := it.Turn; t != nil {
		s += fmt.Sprintf(
			"; after each %d there is a pause, and they take %s together: where these are one iteration to you, name "+
				"it (NVTX)",
			t.Of,
			format.Span(t.P50),
		)
	}
	if n := unasked(&m.Diagnosis); n >= minUnaskedShare && !it.Named && !it.Partial() {
		s += fmt.Sprintf("; the time in which it waited for something to do is part of it (%s)", format.Percent(n))
		if each, ok := perIteration(m); ok {
			s += fmt.Sprintf(", without which it is %s on average", format.Span(uint64((1-n)*each)))
		}
	}
	return s
}

// meanText writes a mean of counts: one that is whole without a fraction.
func meanText(v float64) string {
	if v == math.Trunc(v) && v < 1<<53 {
		return format.Count(uint64(v))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// minUnaskedShare is the share of an iteration in which nobody asked for anything that a report mentions: less does not
// change what a latency means.
const minUnaskedShare = 0.1

// unasked returns the share of the time in which nobody asked for anything.
func unasked(g *diagnose.Diagnosis) float64 {
	for _, p := range g.Breakdown.Parts {
		if p.Key == cause.NoWork.String() {
			return p.Share
		}
	}
	return 0
}

// onceText reports how long the program took to start and to end, "" where the recording has neither.
func onceText(g *diagnose.Diagnosis) string {
	var parts []string
	if p := g.Start; p != nil {
		parts = append(parts, format.Span(p.To-p.From)+" before the first iteration")
	}
	if p := g.End; p != nil {
		parts = append(parts, format.Span(p.To-p.From)+" after the last")
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + "; this happens once, so what follows leaves it out (inferscope explain start-end)"
}

func isFound(g *diagnose.Diagnosis, id cause.ID) bool {
	return slices.ContainsFunc(g.Findings, func(f diagnose.Finding) bool { return f.Cause == id.String() })
}

// restsText reports which time the breakdown is of, where that is not the whole window.
func restsText(m *Model) string {
	b := &m.Diagnosis.Breakdown
	if b.Time == 0 || b.Share >= always {
		return ""
	}
	whole := "the window"
	if m.Diagnosis.Start != nil || m.Diagnosis.End != nil {
		whole = "the rest"
	}
	switch n := len(m.Diagnosis.Devices); {
	case ofMainThread(m):
		return fmt.Sprintf("%s in which the main thread was seen, %s of %s",
			format.Span(b.Time), format.Percent(b.Share), whole)
	case n > 1:
		return fmt.Sprintf("%s of the time of %d GPUs, %s of it; nothing is scaled up",
			format.Span(b.Time), n, format.Percent(b.Share))
	}
	return fmt.Sprintf("%s in which GPU activity was seen, %s of %s; nothing is scaled up",
		format.Span(b.Time), format.Percent(b.Share), whole)
}

// lossText counts what was lost or is in doubt, the worst first; the section of that name has each.
func lossText(list []Doubt) string {
	if len(list) == 0 {
		return "none known"
	}
	var parts []string
	for _, k := range []struct {
		severity  loss.Severity
		one, many string
	}{{loss.Error, "error", "errors"}, {loss.Warning, "warning", "warnings"}, {loss.Info, "note", "notes"}} {
		n := 0
		for i := range list {
			if gravity(list[i].Severity) == gravity(k.severity) {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, format.Plural(n, k.one, k.many))
		}
	}
	s := strings.Join(parts, ", ") + " (see Losses and doubts)"
	if gravity(list[0].Severity) > gravity(loss.Info) {
		s += ": " + format.Clean(list[0].Means)
		if len(list[0].Where) > 0 {
			s += " (" + some(list[0].Where[:1]) + ")"
		}
	}
	return s
}
