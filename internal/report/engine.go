package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// addEngineFacts reports what the engine told its API server.
func addEngineFacts(f *document.Facts, s *requests.Summary) {
	e := s.Engine
	if d := s.Derived; d != nil {
		f.Add("Steps", fmt.Sprintf(
			"%s; a batch has %.1f streams on average, %d at most; a step takes %s (derived: %s, and which streams were "+
				"written to after each)", format.Plural(d.Steps, "step", "steps"), d.MeanBatch, d.MaxBatch, quantileText(d.Step), d.Source))
	}
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
	}{
		{"API server before", e.Before},
		{"queue", e.Queue},
		{"prefill", e.Prefill},
		{"decode", e.Decode},
		{"API server after", e.After},
	} {
		if q.of != nil {
			parts = append(parts, q.name+" "+quantileText(q.of))
		}
	}
	if len(parts) > 0 {
		f.Add("In the engine", strings.Join(parts, "; "))
	}
	if text := cutText(s); text != "" {
		f.Add("Steps on the GPU", text)
	}
}

// cutText says where steps are cut; "": no copies are like those of sampled tokens.
func cutText(s *requests.Summary) string {
	e := s.Engine
	uncertain := fmt.Sprintf("of %s it is not certain which copy of sampled tokens is theirs",
		format.Count(e.StepsUncut))
	switch {
	case e.StepsCut > 0 && e.StepsUncut == 0:
		uncertain = ""
	case e.StepsCut > 0:
		uncertain = ": " + uncertain
	case e.StepsUncut > 0:
		return uncertain + ": GPU times are cut at the engine's messages"
	default:
		return ""
	}
	return fmt.Sprintf(
		"%s of %s end where the GPU has copied the sampled tokens out, %s before the engine's message; "+
			"GPU times of other steps are cut at the messages%s",
		format.Count(e.StepsCut), format.Count(e.Steps), quantileText(e.Lag), uncertain)
}

// stepRows are for how long GPUs worked in the steps of requests, where that is known of both.
func stepRows(row func(name string, a, b *uint64), usual, slow *requests.EngineRow) {
	if usual == nil || slow == nil {
		return
	}
	row("GPU time of its steps", usual.GPUExposed, slow.GPUExposed)
	row("  its share, by tokens where those are known", usual.GPUShared, slow.GPUShared)
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
