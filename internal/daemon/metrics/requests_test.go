package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// answered is a request of 1 s, whose first token came after 0.2 s, and 10 tokens more in the 0.5 s behind it.
func answered(pid uint32, model string) *recording.Request {
	return &recording.Request{
		PID: pid, Received: 1e9, FirstByte: 11e8, FirstToken: 12e8, LastToken: 17e8, End: 2e9,
		Route: "/v1/chat/completions", Model: model, Status: 200, Outcome: "complete", Streamed: true,
		InputTokens: 7, CachedTokens: 3, OutputTokens: 11, TokenSource: "usage",
	}
}

// family returns the metrics of one name.
func family(t *testing.T, r *prometheus.Registry, name string) []*dto.Metric {
	t.Helper()
	all, err := r.Gather()
	must.NoError(t, err)
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// labelled returns those that have these labels, as in a="b",c="d".
func labelled(metrics []*dto.Metric, labels string) (out []*dto.Metric) {
	for _, m := range metrics {
		all := true
		for pair := range strings.SplitSeq(labels, ",") {
			found := false
			for _, l := range m.GetLabel() {
				found = found || fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()) == pair
			}
			all = all && found
		}
		if all {
			out = append(out, m)
		}
	}
	return out
}

func TestRequests(t *testing.T) {
	tally := filled()
	tally.Request(answered(10, "llama"))
	tally.Request(answered(11, "llama")) // a child counts for its target
	failed := &recording.Request{
		PID: 10, Received: 1e9, End: 11e8, Route: "/v1/chat/completions",
		Model: "llama", Status: 500, Outcome: "complete",
	}
	tally.Request(failed)
	aborted := answered(10, "llama")
	aborted.Outcome, aborted.TokenSource = "aborted", "chunks"
	tally.Request(aborted)
	unbounded := answered(10, "llama")
	unbounded.Outcome, unbounded.End, unbounded.TokenSource = "unbounded", 9e9, ""
	tally.Request(unbounded)
	document := answered(20, "embedder")
	document.Route, document.FirstToken, document.LastToken, document.OutputTokens = "/v1/embeddings", 0, 0, 0
	tally.Request(document)
	tally.Serving(func() map[uint32]int { return map[uint32]int{10: 2, 11: 1} })

	r := registry(t, tally, status)
	want := `
# HELP inferscope_request_tokens_total Tokens of requests that ended. type cached_input is a part of input. source says how they are known: usage (the account in the answer), timings (that of llama.cpp or Ollama), engine (what vLLM's engine told its server), chunks (parts of the stream were counted: a lower bound).
# TYPE inferscope_request_tokens_total counter
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="chunks",type="cached_input"} 3
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="chunks",type="input"} 7
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="chunks",type="output"} 11
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="usage",type="cached_input"} 6
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="usage",type="input"} 14
inferscope_request_tokens_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",pid="10",source="usage",type="output"} 22
inferscope_request_tokens_total{gen_ai_operation_name="embeddings",gen_ai_request_model="embedder",pid="20",source="usage",type="cached_input"} 3
inferscope_request_tokens_total{gen_ai_operation_name="embeddings",gen_ai_request_model="embedder",pid="20",source="usage",type="input"} 7
# HELP inferscope_requests_in_progress Requests that the target serves now.
# TYPE inferscope_requests_in_progress gauge
inferscope_requests_in_progress{pid="10"} 3
inferscope_requests_in_progress{pid="20"} 0
# HELP inferscope_requests_total Requests that ended, by the class of their status (none: no answer) and their outcome: complete, aborted (the connection ended before the answer did), unbounded (the end was not seen).
# TYPE inferscope_requests_total counter
inferscope_requests_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",outcome="aborted",pid="10",status="2xx"} 1
inferscope_requests_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",outcome="complete",pid="10",status="2xx"} 2
inferscope_requests_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",outcome="complete",pid="10",status="5xx"} 1
inferscope_requests_total{gen_ai_operation_name="chat",gen_ai_request_model="llama",outcome="unbounded",pid="10",status="2xx"} 1
inferscope_requests_total{gen_ai_operation_name="embeddings",gen_ai_request_model="embedder",outcome="complete",pid="20",status="2xx"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "inferscope_requests_total",
		"inferscope_request_tokens_total", "inferscope_requests_in_progress"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		name, labels string
		count        uint64
		sum, below   float64 // a bound of a bucket: all lie below it
		native       bool
	}{
		{"gen_ai_server_time_to_first_token_seconds", `pid="10",gen_ai_request_model="llama"`, 2, 0.4, 0.25, true},
		{"gen_ai_server_time_per_output_token_seconds", `pid="10",gen_ai_operation_name="chat"`, 2, 0.1, 0.05, true},
		{"gen_ai_server_request_duration_seconds", `pid="10",error_type=""`, 2, 2, 1.28, true},
		{"gen_ai_server_request_duration_seconds", `pid="10",error_type="500"`, 1, 0.1, 0.16, true},
		{"gen_ai_server_request_duration_seconds", `pid="10",error_type="aborted"`, 1, 1, 1.28, true},
		{"gen_ai_server_request_duration_seconds", `pid="20",error_type=""`, 1, 1, 1.28, true},
	} {
		found := labelled(family(t, r, c.name), c.labels)
		if len(found) != 1 {
			t.Errorf("%s{%s} has %d series", c.name, c.labels, len(found))
			continue
		}
		h := found[0].GetHistogram()
		if h.GetSampleCount() != c.count || h.GetSampleSum() < c.sum-1e-9 || h.GetSampleSum() > c.sum+1e-9 {
			t.Errorf("%s{%s} is %v", c.name, c.labels, h)
		}
		for _, b := range h.GetBucket() {
			if holds := b.GetCumulativeCount() == c.count; holds != (b.GetUpperBound() >= c.below) {
				t.Errorf("%s{%s}: %d are below %g", c.name, c.labels, b.GetCumulativeCount(), b.GetUpperBound())
			}
		}
		if (len(h.GetPositiveSpan()) > 0) != c.native {
			t.Errorf("%s{%s} is no native histogram", c.name, c.labels)
		}
	}
	if found := labelled(family(t, r, "gen_ai_server_time_to_first_token_seconds"), `pid="20"`); len(found) > 0 {
		t.Errorf("what is not streamed has a time to first token: %v", found)
	}
}

// TestSeriesOfRequestsAreBounded: whatever clients ask for and servers answer, a target has so many series; they go
// when it is withdrawn.
func TestSeriesOfRequestsAreBounded(t *testing.T) {
	tally := filled()
	refused := answered(10, "nobody has this")
	refused.Status = 404
	tally.Request(refused)
	const requests, most = 100, 40
	for i := range requests {
		tally.Request(answered(10, fmt.Sprintf("model %d \xff", i)))
		r := answered(10, "model 0 \xff")
		r.Status = uint32(400 + i)
		tally.Request(r)
	}
	r := registry(t, tally, status)
	models, errors := map[string]bool{}, map[string]bool{}
	total := 0.0
	for _, m := range family(t, r, "inferscope_requests_total") {
		total += m.GetCounter().GetValue()
		for _, l := range m.GetLabel() {
			if l.GetName() == modelLabel {
				models[l.GetValue()] = true
			}
		}
	}
	for _, m := range family(t, r, "gen_ai_server_request_duration_seconds") {
		for _, l := range m.GetLabel() {
			if l.GetName() == errorLabel {
				errors[l.GetValue()] = true
			}
		}
	}
	if total != 2*requests+1 {
		t.Errorf("%v requests are counted of %d", total, 2*requests+1)
	}
	if len(models) < 10 || len(models) > most || !models[otherTargets] || models["nobody has this"] {
		t.Errorf("%d models: %v", len(models), models)
	}
	if len(errors) > 12 || !errors["_OTHER"] || !errors["404"] || !errors[""] {
		t.Errorf("%d errors: %v", len(errors), errors)
	}
	tally.Forget(10)
	for _, name := range []string{
		"gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds",
		"gen_ai_server_time_per_output_token_seconds", "inferscope_requests_total", "inferscope_request_tokens_total",
		"inferscope_requests_in_progress",
	} {
		if left := family(t, r, name); len(left) > 0 {
			t.Errorf("%s is left of a target that was withdrawn: %v", name, left)
		}
	}
}

// TestSpans: both results have a series from the start, and keep the conventions.
func TestSpans(t *testing.T) {
	r := prometheus.NewRegistry()
	must.NoError(t, Spans(r, func() uint64 { return 7 }, func() uint64 { return 0 }))
	for result, want := range map[string]float64{"sent": 7, "lost": 0} {
		found := labelled(family(t, r, "inferscope_otlp_spans_total"), fmt.Sprintf("result=%q", result))
		if len(found) != 1 || found[0].GetCounter().GetValue() != want {
			t.Errorf("%s: %v", result, found)
		}
	}
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
