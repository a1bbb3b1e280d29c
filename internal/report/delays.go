package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// addDelays lists what holds requests up, in a few lines each: what, how much, what proves it, what to change.
func addDelays(d *document.Document, m *Model) {
	if m.Requests == nil || len(m.Requests.Delays) == 0 {
		return
	}
	d.Add(document.Heading("What holds requests up, most time first"))
	for i := range m.Requests.Delays {
		delay := &m.Requests.Delays[i]
		c, _, _ := cause.Explained(delay.Cause)
		it := document.Item{Number: i + 1, Title: upper(c.Title), Lines: []string{delayCost(delay)}}
		if text := delayProof(delay); text != "" {
			it.Lines = append(it.Lines, text)
		}
		if text := withoutText(delay.Without); text != "" {
			it.Lines = append(it.Lines, text)
		}
		if len(c.Changes) > 0 {
			it.Lines = append(it.Lines, "Change: "+c.Changes[0].Text)
		}
		d.Add(it)
	}
}

// delayCost reports how much time of requests something holds.
func delayCost(d *requests.Delay) string {
	text := fmt.Sprintf("costs %s of the time of %s",
		format.Percent(d.Share), format.Plural(d.Requests, "request", "requests"))
	if d.First > 0 {
		text += fmt.Sprintf(", and %s of their time to the first token", format.Percent(d.First))
	}
	return text + fmt.Sprintf(" (%s each, p99 %s)", format.Span(d.P50), format.Span(d.P99))
}

// withoutText reports when the first token would come without a delay; "" where that is not known.
func withoutText(w *requests.FirstToken) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf(
		"Without it the first token would come after p50 %s instead of %s and p99 %s instead of %s, if all else took "+
			"as long",
		format.Span(w.P50),
		format.Span(w.Was50),
		format.Span(w.P99),
		format.Span(w.Was99),
	)
}

// delayProof reports what shows it.
func delayProof(d *requests.Delay) string {
	var parts []string
	add := func(form string, args ...any) { parts = append(parts, fmt.Sprintf(form, args...)) }
	if d.Cause == cause.LowBatch {
		add(
			"the engine never had more than %s, and up to %d were held in front of it while its queue was empty",
			format.Plural(d.Batch, "request", "requests"), d.Waiting,
		)
	} else if d.Waiting > 0 {
		add("up to %s waited, with %d in the batch at most", format.Plural(d.Waiting, "request", "requests"), d.Batch)
	}
	if d.Cause == cause.KVCache || d.Cause == cause.Preemption {
		add("the KV cache was up to %s full", format.Percent(d.KVUsage))
	}
	if d.Preempts > 0 {
		add("requests were taken out of the batch %s", format.Plural(d.Preempts, "time", "times"))
	}
	if d.Steps > 0 {
		add("in %s of the engine others had their first token", format.Plural(d.Steps, "long step", "long steps"))
	}
	if d.Gaps > 0 {
		add("others had their first token at the end of most of %s in streams",
			format.Plural(d.Gaps, "long gap", "long gaps"))
	}
	if d.Token > 0 && d.Requests > 0 {
		add("%s each between the engine's first token and its write to the client", format.Span(d.Token/uint64(d.Requests)))
	}
	if d.Cause == cause.APIServerStarved {
		add("its threads could run, and had no CPU")
	}
	if d.Thread != "" {
		text := fmt.Sprintf("%s ran for %s of it", format.Clean(d.Thread), format.Percent(d.Running))
		if d.Place != "" {
			text += ", mostly in " + format.CleanText(d.Place)
		}
		add("%s", text)
	}
	return strings.Join(parts, "; ")
}
