package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// Shares from which on something is said of stalls, and of a time in which nothing was watched.
const (
	notedStalls  = 0.05
	notedPrefill = 0.5
	notedPause   = 0.05
	usualGaps    = 5 // where more than one gap in so many is long, that is no exception
)

// requestText reports how long requests take, "" where none has ended.
func requestText(s *requests.Summary) string {
	if s == nil || s.Ended == 0 {
		return ""
	}
	var parts []string
	if q := s.TTFT; q != nil {
		parts = append(parts, "first token "+quantileText(q))
	}
	if q := s.TPOT; q != nil {
		parts = append(parts, "per token "+quantileText(q))
	}
	if q := s.Latency; q != nil {
		parts = append(parts, "end to end "+quantileText(q))
	}
	return fmt.Sprintf("%s (%s): %s",
		format.Plural(s.Ended, "request", "requests"), format.Rate(s.PerSec),
		orNothing(strings.Join(parts, "; ")))
}

func orNothing(text string) string {
	if text == "" {
		return "none was answered"
	}
	return text
}

func quantileText(q *requests.Quantiles) string {
	return fmt.Sprintf("%s (p50; p90 %s, p99 %s)", format.Span(q.P50), format.Span(q.P90), format.Span(q.P99))
}

// addRequests reports what is known of the requests that the target served.
func addRequests(d *document.Document, m *Model, rows int) {
	s := m.Requests
	if s == nil {
		return
	}
	d.Add(document.Heading("Requests"), requestFacts(s, m.Summary.Window.Length))
	if len(s.Groups) > 1 {
		d.AddTable("Requests by route", groupTable(s, rows))
	}
	if s.Tail != nil {
		d.AddTable("Slow against usual", tailTable(s.Tail))
	}
	if len(s.Slow) > 0 {
		d.AddTable("Slowest requests", slowTable(s, rows))
		d.AddTable("Content of the slowest requests", contentTable(s, rows))
	}
}

func requestFacts(s *requests.Summary, window uint64) document.Facts {
	var f document.Facts
	f.Add("Requests", countText(s))
	if float64(s.Watched) < (1-notedPause)*float64(window) {
		f.Add("Watched", fmt.Sprintf("for %s of the %s: rates and requests at a time refer to that time",
			format.Span(s.Watched), format.Span(window)))
	}
	for _, q := range []struct {
		label string
		of    *requests.Quantiles
	}{{"Time to first token", s.TTFT}, {"Time per output token", s.TPOT}, {"End to end", s.Latency}} {
		if q.of != nil {
			f.Add(q.label, fmt.Sprintf("p50 %s, p90 %s, p99 %s, longest %s (%s)",
				format.Span(q.of.P50), format.Span(q.of.P90), format.Span(q.of.P99),
				format.Span(q.of.Max), format.Plural(q.of.Count, "request", "requests")))
		}
	}
	f.Add("Throughput", throughputText(s))
	f.Add("At a time", fmt.Sprintf("%.1f on average, %d at most", s.MeanConcurrency, s.MaxConcurrency))
	if s.Content > 0 {
		f.Add("Content", fmt.Sprintf("the recording holds prompts and answers of %s (--capture-content)",
			format.Plural(s.Content, "request", "requests")))
	}
	addEngineFacts(&f, s)
	if g := s.Goodput; g != nil {
		f.Add("Goodput", goodputText(g))
	}
	if text := stallText(s.Stalls); text != "" {
		f.Add("Stalls", text)
	}
	return f
}

func countText(s *requests.Summary) string {
	parts := []string{fmt.Sprintf("%s ended in the window (%s)", format.Count(s.Ended), format.Rate(s.PerSec))}
	for _, p := range []struct {
		n    int
		what string
	}{
		{s.Open, "in progress at its end"},
		{s.Streamed, "streamed"},
		{s.Failed, "answered with an error"},
		{s.Aborted, "aborted: the connection ended before the answer"},
		{s.Retries, "sent again after an error or a disconnect"},
		{s.Partial, "seen in part"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", format.Count(p.n), p.what))
		}
	}
	return strings.Join(parts, "; ")
}

func throughputText(s *requests.Summary) string {
	text := fmt.Sprintf("%s output tokens (%.1f/s)", format.Count(s.OutputTokens), s.TokensPerSec)
	if s.InputTokens > 0 {
		text += fmt.Sprintf(", %s input tokens", format.Count(s.InputTokens))
		if s.CachedTokens > 0 {
			text += fmt.Sprintf(" of which %s came from the prefix cache", format.Count(s.CachedTokens))
		}
	}
	if s.TokensCounted > 0 {
		text += fmt.Sprintf(
			"; of %s only the parts of the stream were counted, which is a lower bound: ask for usage "+
				"(stream_options.include_usage)",
			format.Plural(s.TokensCounted, "request", "requests"),
		)
	}
	if s.TokensUnknown > 0 {
		text += fmt.Sprintf("; the tokens of %s are not known", format.Plural(s.TokensUnknown, "request", "requests"))
	}
	return text
}

func goodputText(g *requests.Goodput) string {
	var limits []string
	for _, l := range []struct {
		name string
		ns   uint64
	}{{"first token", g.Objective.TTFT}, {"per token", g.Objective.TPOT}, {"end to end", g.Objective.Latency}} {
		if l.ns > 0 {
			limits = append(limits, l.name+" within "+format.Span(l.ns))
		}
	}
	share := 0.0
	if g.Of > 0 {
		share = float64(g.Met) / float64(g.Of)
	}
	return fmt.Sprintf("%s of %s (%s), %s, kept to the objective: %s",
		format.Count(g.Met), format.Count(g.Of), format.Percent(share), format.Rate(g.PerSec),
		strings.Join(limits, ", "))
}

// stallText reports how much of the streams' time went into gaps that are much longer than usual.
func stallText(s *requests.Stalls) string {
	if s == nil || s.Share < notedStalls {
		return ""
	}
	if s.Stalls*usualGaps > s.Gaps {
		return fmt.Sprintf("tokens come in bursts: %s of the time between them is in %s of %s",
			format.Percent(s.Share), format.Plural(s.Stalls, "gap", "gaps"), format.Count(s.Gaps))
	}
	text := fmt.Sprintf("%s of the time between tokens is what %s of %s were longer than usual (from %s on)",
		format.Percent(s.Share), format.Plural(s.Stalls, "gap", "gaps"), format.Count(s.Gaps), format.Span(s.Threshold))
	if s.ByPrefill >= notedPrefill && s.ByPrefill > 2*s.Chance {
		text += fmt.Sprintf(
			"; in %s of that another request got its first token at the end of the gap (%s of usual gaps): its "+
				"prefill ran in between. Chunked prefill makes such gaps shorter",
			format.Percent(s.ByPrefill),
			format.Percent(s.Chance),
		)
	}
	return text
}

func groupTable(s *requests.Summary, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Route", 0),
		document.Left("Model", 2),
		document.Right("Requests", 0),
		document.Right("TTFT p50", 0),
		document.Right("p99", 1),
		document.Right("TPOT p50", 0),
		document.Right("p99", 1),
		document.Right("Latency p50", 0),
		document.Right("p99", 1),
	}}
	for _, g := range s.Groups[:min(len(s.Groups), rows)] {
		cells := []string{format.Clean(g.Route), format.Clean(g.Model), format.Count(g.Count)}
		for _, q := range []*requests.Quantiles{g.TTFT, g.TPOT, g.Latency} {
			if q == nil {
				cells = append(cells, format.Nothing, format.Nothing)
			} else {
				cells = append(cells, format.Span(q.P50), format.Span(q.P99))
			}
		}
		t.Row(cells...)
	}
	return t
}

// tailTable cuts the time of a slow request as that of a usual one.
func tailTable(tail *requests.Tail) *document.Table {
	slow, usual := &tail.Slow, &tail.Median
	t := &document.Table{
		Columns: []document.Column{
			document.Left("Part", 0),
			document.Right("Median request", 0),
			document.Right("p99 request", 0),
			document.Right("More", 0),
		},
	}
	row := func(name string, a, b uint64) {
		more := format.Nothing
		if b > a {
			more = format.Span(b - a)
		}
		t.Row(name, format.Span(a), format.Span(b), more)
	}
	row("Read the request", usual.Phases.Read, slow.Phases.Read)
	row("To the first token: queue and prefill", usual.Phases.First, slow.Phases.First)
	gpuRow := func(name string, a, b *uint64) {
		if a != nil && b != nil {
			row(name, *a, *b)
		}
	}
	gpuRow("  in which the GPU worked", usual.GPUFirst, slow.GPUFirst)
	engineRows(row, usual.Engine, slow.Engine)
	row("First to last token", usual.Phases.Decode, slow.Phases.Decode)
	gpuRow("  in which the GPU worked", usual.GPUDecode, slow.GPUDecode)
	row("  stalled", usual.Stalled, slow.Stalled)
	row("  stalled while another prefill ran", usual.ByPrefill, slow.ByPrefill)
	row("After the last token", usual.Phases.Finish, slow.Phases.Finish)
	row("All", usual.Latency, slow.Latency)
	stepRows(gpuRow, usual.Engine, slow.Engine)
	t.Note = fmt.Sprintf(
		"Of %s that were streamed. The slow one has %s output tokens, the usual one %s; %d and %d others were in "+
			"progress when they arrived.",
		format.Plural(tail.Of, "request", "requests"),
		format.Count(slow.OutputTokens),
		format.Count(usual.OutputTokens),
		slow.Ahead,
		usual.Ahead,
	)
	if !tail.Exact {
		t.Note += " There are too few for a 99th percentile: the slow one is the slowest."
	}
	return t
}

func slowTable(s *requests.Summary, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("Latency", 0),
		document.Right("First token", 0),
		document.Right("Per token", 0),
		document.Right("Longest gap", 2),
		document.Right("In", 1),
		document.Right("Out", 0),
		document.Right("Others", 2),
		document.Right("GPU", 1),
		document.Left("Result", 0),
		document.Left("Route", 3),
		document.Left("Id", 2),
	}}
	gpu := false
	for i := range s.Slow[:min(len(s.Slow), rows)] {
		r := &s.Slow[i]
		worked := format.Nothing
		if r.GPUFirst != nil && r.GPUDecode != nil {
			worked, gpu = format.Span(*r.GPUFirst+*r.GPUDecode), true
		}
		t.Row(format.Span(r.Latency), orDash(r.TTFT), orDash(r.TPOT), orDash(r.LongestGap),
			tokens(r.InputTokens), outTokens(r), format.Count(r.Ahead), worked, resultText(r),
			format.Clean(r.Route), format.Clean(r.ID))
	}
	if !gpu {
		t.Drop("GPU")
	}
	t.Note = "In and Out are tokens (≥: counted from the stream). Others is how many requests were in progress when " +
		"it arrived."
	if gpu {
		t.Note += " GPU is for how long a GPU worked meanwhile, on this request or on others."
	}
	return t
}

// contentTable shows what was asked and answered, where that was captured.
func contentTable(s *requests.Summary, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("Latency", 0),
		document.Left("Id", 2),
		document.Left("Prompt", 0),
		document.Left("Answer", 0),
	}}
	for i := range s.Slow[:min(len(s.Slow), rows)] {
		if r := &s.Slow[i]; r.Prompt != "" || r.Answer != "" {
			t.Row(format.Span(r.Latency), format.Clean(r.ID), format.Clean(r.Prompt), format.Clean(r.Answer))
		}
	}
	t.Note = "Beginnings only; rules may have left parts out."
	return t
}

func orDash(ns uint64) string {
	if ns == 0 {
		return format.Nothing
	}
	return format.Span(ns)
}

func tokens(n uint32) string {
	if n == 0 {
		return format.Nothing
	}
	return format.Count(n)
}

func outTokens(r *requests.Row) string {
	if r.TokenSource == "chunks" {
		return "≥ " + tokens(r.OutputTokens)
	}
	return tokens(r.OutputTokens)
}

func resultText(r *requests.Row) string {
	text := format.Clean(r.Outcome)
	if r.Outcome == "complete" {
		text = fmt.Sprint(r.Status)
	}
	if r.Retry > 0 {
		text += fmt.Sprintf(", retry %d", r.Retry)
	}
	return text
}
