package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestSGLang: a server in SGLang's three processes, by their messages: exact tokens, steps, batches and the queue, and
// nothing of a prompt. INFERSCOPE_SGLANG_WHEEL names a wheel of SGLang whose classes they use, over sockets of pyzmq;
// without it the like of them.
func TestSGLang(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	const clients, each, tokens, words = 6, 4, 25, 40
	p := plantedServer{
		script:   "sglang_llm.py",
		settings: `{"slots": 2, "usage": 0, "merge": 5}`,
		wheel:    os.Getenv("INFERSCOPE_SGLANG_WHEEL"),
	}
	for range clients {
		p.clients = append(p.clients, client{requests: each, tokens: tokens, words: words})
	}
	rec := p.record(t)
	if len(rec.Meta.Requests) != clients*each || len(rec.Meta.EngineRequests) != clients*each {
		t.Fatalf("%d requests, %d of the engine; losses %+v",
			len(rec.Meta.Requests), len(rec.Meta.EngineRequests), rec.Meta.Losses)
	}
	for _, r := range rec.Meta.Requests {
		if r.Parts != tokens/5 || r.OutputTokens != tokens || r.InputTokens != words || r.TokenSource != "engine" {
			t.Errorf("%d output and %d input tokens in %d parts by %q", r.OutputTokens, r.InputTokens, r.Parts, r.TokenSource)
		}
	}
	for _, q := range rec.Meta.EngineRequests {
		if q.OutputTokens != tokens || q.Steps != tokens || q.InputTokens != words || q.Finish != "length" ||
			q.Asked == 0 || q.First <= q.Asked || q.Last <= q.First || q.Detokenized < q.Last {
			t.Errorf("%+v", q)
		}
	}
	sum, waited, told := uint32(0), uint32(0), 0
	for _, s := range rec.Meta.Steps {
		sum, waited = sum+s.Tokens, max(waited, s.Waiting)
		if s.Stats {
			told++
		}
		if s.Requests == 0 || s.Requests > 2 || s.Stats && s.Running != s.Requests {
			t.Errorf("%+v", s)
		}
	}
	// Versions from 0.5.11 on do not tell the queue.
	if sum != clients*each*tokens || waited != clients-2 && told > 0 || told != len(rec.Meta.Steps) && p.wheel == "" {
		t.Errorf("%d tokens in steps, up to %d requests waited", sum, waited)
	}
	text, err := json.Marshal(rec)
	if err != nil || strings.Contains(string(text), "canary-of-a-prompt") {
		t.Errorf("%v, or the recording has a prompt", err)
	}
	result := analysis.Run(rec)
	edit, err := whatif.Parse(whatif.Without, "queueing")
	must.NoError(t, err)
	first := result.WhatIf([]whatif.Edit{edit}).FirstToken
	if len(first) != 1 || first[0].Cause != "queueing" || first[0].P50 >= first[0].Was50 {
		t.Errorf("without the queue: %+v", first)
	}
	r := result.Requests
	if r.Engine == nil || r.Engine.Matched != clients*each {
		t.Errorf("%+v", r.Engine)
	}
}
