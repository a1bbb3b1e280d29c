package otlp_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
	"github.com/inferscope/inferscope/internal/recording/otlp"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const (
	wall   = int64(1_700_000_000_000_000_000)
	from   = uint64(1e12)
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// meta is a recording of a vLLM server with an engine.
func meta() *recording.Meta {
	return &recording.Meta{
		Target: 10, From: from, To: from + 60e9, WallFrom: wall, Host: recording.Host{Arch: "amd64"},
		Processes: []recording.Process{
			{
				PID:     10,
				Comm:    "python3",
				Cmdline: "/usr/bin/python3 -m vllm.entrypoints.openai.api_server --api-key secret",
			},
			{PID: 11, Parent: 10, Comm: "VLLM::EngineCor", Cmdline: "VLLM::EngineCore"},
		},
		Requests: []recording.Request{
			{
				Number: 1, PID: 10, Port: 8000, Received: from + 1e9, Asked: from + 1e9, FirstByte: from + 11e8,
				FirstToken: from + 12e8, LastToken: from + 17e8, End: from + 2e9, Method: "POST",
				Route: "/v1/chat/completions",
				Model: "llama", ID: "chatcmpl-1", Trace: parent, Status: 200, Outcome: "complete", Streamed: true,
				OutputTokens: 10, TokenSource: "chunks", Parts: 10,
			},
			{
				Number: 2, PID: 10, Received: from + 2e9, End: from + 21e8, Method: "POST",
				Route: "/v1/chat/completions",
				Model: "llama", Status: 503, Outcome: "complete",
			},
			{
				Number: 3, PID: 10, Received: from + 3e9, End: from + 4e9, Method: "POST", Route: "/score/*",
				Status:  200,
				Outcome: "aborted", InputTokens: 4, OutputTokens: 2, CachedTokens: 3, TokenSource: "usage",
			},
			{Number: 4, PID: 10, Received: from + 5e9, Method: "POST", Route: "/v1/completions", Outcome: "open"},
			{
				Number: 5, PID: 10, Received: from + 5e9, End: from + 6e9, Method: "POST", Route: "/v1/completions",
				Status: 200, Outcome: "unbounded",
			},
		},
		Steps: []recording.Step{{TS: from + 12e8, PID: 11}},
		EngineRequests: []recording.EngineRequest{{
			ID: "chatcmpl-1-0-abcdef", PID: 11, Asked: from + 101e7, Queued: from + 102e7, Scheduled: from + 105e7,
			First: from + 118e7, Last: from + 169e7, Finish: "stop", InputTokens: 7, CachedTokens: 3, OutputTokens: 11,
		}},
	}
}

// lines writes a recording and has the collector read every line.
func lines(
	t *testing.T,
	m *recording.Meta,
) (spans map[string]ptrace.Span, histograms map[string][]pmetric.HistogramDataPoint,
	resources []pcommon.Map,
) {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, otlp.WriteJSON(&out, m))
	spans, histograms = map[string]ptrace.Span{}, map[string][]pmetric.HistogramDataPoint{}
	for line := range bytes.Lines(out.Bytes()) {
		if !bytes.HasSuffix(line, []byte("}\n")) {
			t.Errorf("a line ends with %q", line[max(0, len(line)-10):])
		}
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			t.Fatalf("%v: %.500s", err, line)
		}
		for _, r := range td.ResourceSpans().All() {
			resources = append(resources, r.Resource().Attributes())
			for _, s := range r.ScopeSpans().All() {
				for _, span := range s.Spans().All() {
					spans[fmt.Sprintf("%s %d", span.Name(), span.StartTimestamp())] = span
				}
			}
		}
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		if err != nil {
			t.Fatalf("%v: %.500s", err, line)
		}
		for _, r := range md.ResourceMetrics().All() {
			resources = append(resources, r.Resource().Attributes())
			for _, s := range r.ScopeMetrics().All() {
				for _, one := range s.Metrics().All() {
					if one.Histogram().AggregationTemporality() != pmetric.AggregationTemporalityCumulative {
						t.Errorf("%s is not cumulative", one.Name())
					}
					for _, p := range one.Histogram().DataPoints().All() {
						name := one.Name() + " " + one.Unit()
						histograms[name] = append(histograms[name], p)
					}
				}
			}
		}
	}
	return spans, histograms, resources
}

func TestSpans(t *testing.T) {
	spans, _, resources := lines(t, meta())
	if len(spans) != 3 {
		t.Fatalf("%d spans, want those of the three requests whose end was seen: %v", len(spans), spans)
	}
	for _, r := range resources {
		got := r.AsRaw()
		want := map[string]any{
			"service.name": "vllm", "process.pid": int64(10), "process.executable.name": "python3",
			"host.arch": "amd64",
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("resource %v, want %v", got, want)
		}
	}
	s := spans[fmt.Sprintf("chat llama %d", wall+1e9)]
	if s.Kind() != ptrace.SpanKindServer || s.EndTimestamp() != pcommon.Timestamp(wall+2e9) ||
		s.Status().Code() != ptrace.StatusCodeUnset {
		t.Errorf("kind %v, end %v, status %v", s.Kind(), s.EndTimestamp(), s.Status().Code())
	}
	if got := "00-" + s.TraceID().String() + "-" + s.ParentSpanID().String() + "-01"; got != parent ||
		s.SpanID().IsEmpty() {
		t.Errorf("trace and parent %s, want %s; span %s", got, parent, s.SpanID())
	}
	want := map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "llama",
		"gen_ai.response.id": "chatcmpl-1", "gen_ai.request.stream": true, "http.request.method": "POST",
		"http.route": "/v1/chat/completions", "http.response.status_code": int64(200), "server.port": int64(8000),
		"gen_ai.usage.input_tokens": int64(7), "gen_ai.usage.cache_read.input_tokens": int64(3),
		"gen_ai.usage.output_tokens": int64(
			11,
		), "inferscope.token_source": "engine", "inferscope.output_parts": int64(10),
		"gen_ai.response.time_to_first_chunk": 0.2, "gen_ai.latency.time_to_first_token": 0.2,
		"gen_ai.latency.e2e": 1.0, "gen_ai.latency.time_in_queue": 0.04, "gen_ai.latency.time_in_model_prefill": 0.13,
		"gen_ai.latency.time_in_model_decode": 0.51, "gen_ai.latency.time_in_model_inference": 0.64,
		"gen_ai.response.finish_reasons": []any{"stop"},
	}
	if got := s.Attributes().AsRaw(); !reflect.DeepEqual(got, want) {
		t.Errorf("attributes\n%v, want\n%v", got, want)
	}
	var events []string
	for _, e := range s.Events().All() {
		events = append(events, fmt.Sprintf("%s %d", e.Name(), int64(e.Timestamp())-wall-1e9))
	}
	if got := strings.Join(events, ", "); got != "engine.queued 20000000, engine.scheduled 50000000, "+
		"engine.first_token 180000000, first_token 200000000, last_token 700000000" {
		t.Errorf("events %s", got)
	}
	failed := spans[fmt.Sprintf("chat llama %d", wall+2e9)]
	if v, _ := failed.Attributes().Get("error.type"); failed.Status().Code() != ptrace.StatusCodeError ||
		v.Str() != "503" ||
		!failed.ParentSpanID().IsEmpty() ||
		failed.TraceID().IsEmpty() {
		t.Errorf("an error is %v with %v", failed.Status(), failed.Attributes().AsRaw())
	}
	aborted := spans[fmt.Sprintf("POST /score/* %d", wall+3e9)].Attributes().AsRaw()
	if aborted["error.type"] != "aborted" || aborted["gen_ai.usage.output_tokens"] != int64(2) ||
		aborted["inferscope.token_source"] != "usage" {
		t.Errorf("what was aborted has %v", aborted)
	}
}

// TestLegacyNames: they stand beside the present ones, where that is asked for.
func TestLegacyNames(t *testing.T) {
	r := recording.Request{
		Route: "/v1/completions", Model: "m", Status: 200, Outcome: "complete", End: 1e9, InputTokens: 3,
		OutputTokens: 4,
		TokenSource:  "usage",
	}
	for _, legacy := range []bool{false, true} {
		server := otlp.Server{PID: 1, Provider: "vllm", Legacy: legacy}
		got := map[string]string{}
		note := func(attributes []*common.KeyValue) {
			for _, a := range attributes {
				got[a.Key] = fmt.Sprint(a.Value)
			}
		}
		note(otlp.Spans(&server, []otlp.Request{{Request: &r}}, 0).ScopeSpans[0].Spans[0].Attributes)
		for _, key := range []string{
			"gen_ai.system", "llm.model", "llm.request.type", "gen_ai.usage.prompt_tokens",
			"gen_ai.usage.completion_tokens",
		} {
			if _, there := got[key]; there != legacy {
				t.Errorf("legacy %v: there is %s: %v", legacy, key, there)
			}
		}
		if got["gen_ai.provider.name"] == "" ||
			legacy && got["gen_ai.usage.prompt_tokens"] != got["gen_ai.usage.input_tokens"] {
			t.Errorf("%v", got)
		}
		meter := otlp.NewMeter(0)
		meter.Add(&server, &otlp.Request{Request: &r})
		clear(got)
		note(meter.Metrics(1)[0].ScopeMetrics[0].Metrics[0].GetHistogram().DataPoints[0].Attributes)
		if _, there := got["gen_ai.system"]; there != legacy {
			t.Errorf("legacy %v: %v", legacy, got)
		}
	}
}

func TestMetrics(t *testing.T) {
	_, histograms, _ := lines(t, meta())
	for _, c := range []struct {
		name, error, kind string
		count             uint64
		sum               float64
		bounds            []float64
		bucket            int
	}{
		{"gen_ai.server.request.duration s", "", "", 1, 1, genai.DurationBounds, 7},
		{"gen_ai.server.request.duration s", "503", "", 1, 0.1, genai.DurationBounds, 4},
		{"gen_ai.server.request.duration s", "aborted", "", 1, 1, genai.DurationBounds, 7},
		{"gen_ai.server.time_to_first_token s", "", "", 1, 0.2, genai.TimeToFirstBounds, 8},
		{"gen_ai.server.time_per_output_token s", "", "", 1, 0.5 / 9, genai.TimePerTokenBounds, 3},
		{"gen_ai.client.token.usage {token}", "", "input", 2, 11, genai.TokensBounds, -1},
		{"gen_ai.client.token.usage {token}", "", "output", 2, 13, genai.TokensBounds, -1},
	} {
		count, sum := uint64(0), 0.0
		for _, p := range histograms[c.name] {
			attributes := p.Attributes().AsRaw()
			text := func(key string) string { s, _ := attributes[key].(string); return s }
			if text("error.type") != c.error || text("gen_ai.token.type") != c.kind {
				continue
			}
			if text("gen_ai.provider.name") != "vllm" || text("gen_ai.operation.name") == "" {
				t.Errorf("%s has attributes %v", c.name, attributes)
			}
			count, sum = count+p.Count(), sum+p.Sum()
			if p.StartTimestamp() != pcommon.Timestamp(wall) || p.Timestamp() != pcommon.Timestamp(wall+60e9) ||
				!reflect.DeepEqual(p.ExplicitBounds().AsRaw(), c.bounds) || p.BucketCounts().Len() != len(c.bounds)+1 {
				t.Errorf("%s: from %v to %v with %v",
					c.name, p.StartTimestamp(), p.Timestamp(), p.ExplicitBounds().AsRaw())
			}
			if c.bucket >= 0 && p.BucketCounts().At(c.bucket) != 1 {
				t.Errorf("%s: buckets %v, want one in %d", c.name, p.BucketCounts().AsRaw(), c.bucket)
			}
		}
		if count != c.count || math.Abs(sum-c.sum) > 1e-9 {
			t.Errorf("%s{%s%s}: %d with a sum of %g, want %d with %g",
				c.name, c.error, c.kind, count, sum, c.count, c.sum)
		}
	}
}

// TestSameIDs: a span has the same ids whenever it is made, and no two of different requests have.
func TestSameIDs(t *testing.T) {
	seen := map[string]uint64{}
	server := otlp.Server{PID: 10}
	for i := range uint64(2000) {
		r := recording.Request{
			Number:   i % 7,
			PID:      10 + uint32(i%3),
			Received: i / 21,
			End:      1e9,
			Outcome:  "complete",
			Status:   200,
		}
		var ids [2]string
		for j := range ids {
			spans := otlp.Spans(&server, []otlp.Request{{Request: &r}}, int64(j))
			text, err := proto.Marshal(spans)
			var back trace.ResourceSpans
			if err != nil || proto.Unmarshal(text, &back) != nil || len(back.ProtoReflect().GetUnknown()) > 0 {
				t.Fatal(err)
			}
			s := back.ScopeSpans[0].Spans[0]
			if len(s.TraceId) != 16 || len(s.SpanId) != 8 || len(s.ParentSpanId) != 0 {
				t.Fatalf("ids %x %x %x", s.TraceId, s.SpanId, s.ParentSpanId)
			}
			ids[j] = hex.EncodeToString(s.TraceId) + hex.EncodeToString(s.SpanId)
		}
		if ids[0] != ids[1] {
			t.Fatal("the wall clock changes ids")
		}
		if before, there := seen[ids[0]]; there {
			t.Fatalf("requests %d and %d have the same ids", before, i)
		}
		seen[ids[0]] = i
	}
}

func TestTraceparent(t *testing.T) {
	long := strings.Replace(parent, "00-", "01-", 1) + "-what may come"
	for text, valid := range map[string]bool{
		parent:                                   true,
		long:                                     true, // of a version to come
		strings.Replace(parent, "00-", "cc-", 1): true,
		"":                                       false,
		"00":                                     false,
		parent[:54]:                              false,
		parent + "-more":                         false, // version 00 has no more
		strings.Replace(parent, "00-", "ff-", 1): false,
		strings.ToUpper(parent):                  false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01": false,
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": false,
	} {
		r := recording.Request{Trace: text, Outcome: "complete", Status: 200}
		s := otlp.Spans(&otlp.Server{}, []otlp.Request{{Request: &r}}, 0).ScopeSpans[0].Spans[0]
		if got := len(s.ParentSpanId) > 0 && hex.EncodeToString(s.TraceId) == parent[3:35]; got != valid {
			t.Errorf("%q: trace %x, parent %x", text, s.TraceId, s.ParentSpanId)
		}
		if remote := s.Flags&uint32(trace.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK) != 0; remote != valid {
			t.Errorf("%q: flags %x", text, s.Flags)
		}
	}
}

func TestSampled(t *testing.T) {
	with := recording.Request{Trace: parent}
	without := recording.Request{Trace: strings.TrimSuffix(parent, "1") + "0"}
	if !otlp.Sampled(&with, 0) || otlp.Sampled(&without, 1) {
		t.Error("the client's decision does not hold")
	}
	for _, share := range []float64{0, 0.1, 0.5, 1, -1, 2} {
		n := 0
		const all = 20_000
		for i := range uint64(all) {
			if otlp.Sampled(&recording.Request{Number: i, Received: 1e9 * i}, share) {
				n++
			}
		}
		if want := all * min(1, max(0, share)); math.Abs(float64(n)-want) > 5*math.Sqrt(want*(1-want/all))+0.5 {
			t.Errorf("%d of %d are sampled, want %g", n, all, want)
		}
	}
}

// FuzzWriteJSON: whatever servers and clients say, the collector reads what is written, and it has no more series than
// it may.
func FuzzWriteJSON(f *testing.F) {
	f.Add(uint64(5), uint64(1), uint64(2), uint32(200), "complete", "m\xff", "/v1/chat/completions", parent,
		"x\x00", "a b\xc0.py", uint8(3))
	f.Add(uint64(0), ^uint64(0), uint64(9), uint32(0), "aborted", "", "", "00-", "", "", uint8(255))
	f.Fuzz(
		func(t *testing.T, from, received, end uint64, status uint32, outcome, model, route, traceparent, id,
			cmdline string,
			many uint8,
		) {
			m := &recording.Meta{
				Target: 1, From: from, To: end, WallFrom: int64(received),
				Processes: []recording.Process{{PID: 1, Comm: cmdline, Cmdline: cmdline}},
				EngineRequests: []recording.EngineRequest{
					{ID: id, Asked: end, Scheduled: received, First: from, Finish: model},
				},
			}
			for i := range int(many) {
				m.Requests = append(m.Requests, recording.Request{
					PID: uint32(
						i % 3,
					), Number: uint64(i), Received: received, End: end, FirstToken: from, LastToken: end,
					Method: route, Route: route, Model: fmt.Sprint(model, i), ID: id, Trace: traceparent,
					Status:  status + uint32(i),
					Outcome: outcome, OutputTokens: status, TokenSource: "usage",
				})
			}
			_, histograms, _ := lines(t, m)
			for name, points := range histograms {
				if len(points) > 3*40*10 {
					t.Errorf("%s has %d series", name, len(points))
				}
			}
		},
	)
}
