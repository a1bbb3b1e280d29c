package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// Shares from which on a finding of the engine is told.
const (
	notedQueue = 0.2 // of the time to the first token, at p99
	notedSlots = 0.5 // of the time in queues
	notedAPI   = 0.2 // of the time to the first token, at p99
	notedCache = 0.95
)

// addEngineFacts says what the engine told its API server.
func addEngineFacts(f *document.Facts, s *requests.Summary) {
	e := s.Engine
	if e == nil {
		return
	}
	steps := fmt.Sprintf("%s, %s output tokens; a batch has %.1f requests on average, %d at most",
		format.Plural(e.Steps, "step", "steps"), format.Count(e.OutputTokens), e.MeanBatch, e.MaxBatch)
	if e.Step != nil {
		steps += fmt.Sprintf("; a step takes %s", quantileText(e.Step))
	}
	f.Add("Engine", steps)
	var parts []string
	for _, q := range []struct {
		name string
		of   *requests.Quantiles
	}{{"API server before", e.Before}, {"queue", e.Queue}, {"prefill", e.Prefill}, {"decode", e.Decode}, {"API server after", e.After}} {
		if q.of != nil {
			parts = append(parts, q.name+" "+quantileText(q.of))
		}
	}
	if len(parts) > 0 {
		f.Add("In the engine", strings.Join(parts, "; "))
	}
	if found := engineFindings(s); len(found) > 0 {
		f.Add("What requests waited for", strings.Join(found, ". "))
	}
}

// engineFindings are what the engine's own messages show of why requests wait, each with its evidence.
func engineFindings(s *requests.Summary) []string {
	e := s.Engine
	if e == nil || s.TTFT == nil {
		return nil
	}
	var out []string
	long := float64(s.TTFT.P99)
	if q := e.Queue; q != nil && float64(q.P99) >= notedQueue*long && e.Slots >= notedSlots && e.MaxWaiting > 0 {
		out = append(
			out,
			fmt.Sprintf(
				"queueing for a batch slot: %s of the time to the first token at p99 (%s); in %s of it the "+
					"engine made steps and reported waiting requests, up to %d, with a batch of %d at most",
				format.Percent(
					min(1, float64(q.P99)/long),
				),
				format.Span(q.P99),
				format.Percent(e.Slots),
				e.MaxWaiting,
				e.MaxBatch,
			),
		)
	}
	if q := e.Before; q != nil && float64(q.P99) >= notedAPI*long {
		out = append(
			out,
			fmt.Sprintf("API server behind: %s at p99 between the read of a request and its message to the engine "+
				"(parsing, template, tokenizer, event loop)", format.Span(q.P99)),
		)
	}
	if q := e.After; q != nil && float64(q.P99) >= notedAPI*long {
		out = append(
			out,
			fmt.Sprintf("API server behind: %s at p99 between the engine's first token and its write to the client "+
				"(detokenizer, event loop)", format.Span(q.P99)),
		)
	}
	if e.Preemptions > 0 {
		text := fmt.Sprintf(
			"preemption: the engine took %s out of the batch again",
			format.Plural(e.Preempted, "request", "requests"),
		)
		if e.MaxKVUsage >= notedCache {
			text += fmt.Sprintf("; its KV cache was up to %s full", format.Percent(e.MaxKVUsage))
		}
		out = append(out, text)
	}
	return out
}

// engineRows cut the time to the first token further, where both requests are known to the engine.
func engineRows(row func(name string, a, b uint64), usual, slow *requests.EngineRow) {
	if usual == nil || slow == nil {
		return
	}
	row("  in the API server before the engine", usual.Before, slow.Before)
	row("  in the engine's queue", usual.Queue, slow.Queue)
	row("  prefill", usual.Prefill, slow.Prefill)
	row("  in the API server after the engine", usual.After, slow.After)
}
