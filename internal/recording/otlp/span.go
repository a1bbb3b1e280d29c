package otlp

import (
	"cmp"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// Request is a request with what the engine behind its server told of it; nil: nothing.
type Request struct {
	*recording.Request
	Engine *recording.EngineRequest
}

// tokens returns the number of output tokens and how it is known; a request of whose stream parts were counted has
// none.
func (r *Request) tokens() (output uint32, source string) {
	switch {
	case r.TokenSource != "" && r.TokenSource != "chunks":
		return r.OutputTokens, r.TokenSource
	case r.Engine != nil && r.Engine.Finish != "" && r.Engine.OutputTokens > 0:
		return r.Engine.OutputTokens, "engine"
	}
	return 0, ""
}

// input returns the numbers of input tokens and of those that were cached; 0: not known.
func (r *Request) input() (all, cached uint32) {
	all, cached = r.InputTokens, r.CachedTokens
	if r.Engine != nil {
		all, cached = cmp.Or(all, r.Engine.InputTokens), cmp.Or(cached, r.Engine.CachedTokens)
	}
	return all, cached
}

// Spans returns the spans of requests that one server served. offset is what the wall clock is ahead of the times of
// requests, in ns. Requests whose end was not seen have none.
func Spans(s *Server, requests []Request, offset int64) *trace.ResourceSpans {
	var spans []*trace.Span
	for i := range requests {
		if r := &requests[i]; genai.Ended(r.Request) {
			spans = append(spans, span(s, r, offset))
		}
	}
	return &trace.ResourceSpans{
		Resource:   s.resource(),
		ScopeSpans: []*trace.ScopeSpans{{Scope: scope(), Spans: spans}},
	}
}

func span(s *Server, r *Request, offset int64) *trace.Span {
	id := identify(r.Request)
	at := func(ts uint64) uint64 { return uint64(max(0, int64(ts)+offset)) }
	flags := trace.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
	if id.parent != nil {
		flags |= trace.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
	}
	out := &trace.Span{
		TraceId: id.trace[:], SpanId: id.span[:8], ParentSpanId: id.parent, Flags: uint32(flags) | 1,
		Name: name(r.Request), Kind: trace.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: at(r.Received), EndTimeUnixNano: at(r.End),
		Attributes: attributes(s, r), Status: &trace.Status{},
	}
	if r.Status >= 500 {
		out.Status.Code = trace.Status_STATUS_CODE_ERROR
	}
	mark := func(name string, ts uint64) {
		if ts > 0 {
			out.Events = append(out.Events, &trace.Span_Event{Name: name, TimeUnixNano: at(ts)})
		}
	}
	if e := r.Engine; e != nil {
		mark("engine.queued", e.Queued)
		mark("engine.scheduled", e.Scheduled)
		mark("engine.first_token", e.First)
	}
	mark("first_token", r.FirstToken)
	mark("last_token", r.LastToken)
	return out
}

// name returns the name of a request's span: operation and model, or method and route.
func name(r *recording.Request) string {
	operation := genai.Operation(r.Route)
	switch {
	case operation == genai.Other:
		return valid(r.Method + " " + r.Route)
	case r.Model == "":
		return operation
	}
	return valid(operation + " " + r.Model)
}

// legacyTypes are values of llm.request.type by operation.
var legacyTypes = map[string]string{"chat": "chat", "text_completion": "completion", "embeddings": "embedding"}

func attributes(s *Server, r *Request) []*common.KeyValue {
	out := []*common.KeyValue{text("gen_ai.operation.name", genai.Operation(r.Route))}
	add := func(key, v string) {
		if v != "" {
			out = append(out, text(key, v))
		}
	}
	count := func(key string, n uint32) {
		if n > 0 {
			out = append(out, number(key, uint64(n)))
		}
	}
	lasted := func(key string, ns uint64) {
		if ns > 0 {
			out = append(out, seconds(key, ns))
		}
	}
	add("gen_ai.provider.name", s.Provider)
	add("gen_ai.request.model", r.Model)
	add("gen_ai.response.id", r.ID)
	add("http.request.method", r.Method)
	add("http.route", r.Route)
	count("http.response.status_code", r.Status)
	count("server.port", r.Port)
	count("http.request.resend_count", r.Retry)
	add("error.type", genai.ErrorType(r.Request))
	out = append(out, truth("gen_ai.request.stream", r.Streamed))

	output, source := r.tokens()
	input, cached := r.input()
	count("gen_ai.usage.input_tokens", input)
	count("gen_ai.usage.cache_read.input_tokens", cached)
	count("gen_ai.usage.output_tokens", output)
	add("inferscope.token_source", source)
	count("inferscope.output_parts", r.Parts)
	lasted("gen_ai.response.time_to_first_chunk", r.TTFT())
	lasted("gen_ai.latency.time_to_first_token", r.TTFT()) // this and what follows is as vLLM names it in its own spans
	lasted("gen_ai.latency.e2e", r.End-r.Received)
	if r.Unreadable {
		out = append(out, truth("inferscope.partial", true))
	}
	if s.Legacy {
		add("gen_ai.system", s.Provider)
		add("llm.model", r.Model)
		add("llm.request.type", legacyTypes[genai.Operation(r.Route)])
		count("gen_ai.usage.prompt_tokens", input)
		count("gen_ai.usage.completion_tokens", output)
	}
	add("gen_ai.input.messages", genai.Message("user", r.Prompt))
	add("gen_ai.output.messages", genai.Message("assistant", r.Answer))
	e := r.Engine
	if e == nil {
		return out
	}
	lasted("gen_ai.latency.time_in_queue", between(cmp.Or(e.Asked, e.Queued), e.Scheduled))
	lasted("gen_ai.latency.time_in_model_prefill", between(e.Scheduled, e.First))
	lasted("gen_ai.latency.time_in_model_decode", between(e.First, e.Last))
	lasted("gen_ai.latency.time_in_model_inference", between(e.Scheduled, e.Last))
	count("inferscope.preemptions", e.Preemptions)
	if e.Finish != "" {
		reasons := &common.ArrayValue{Values: []*common.AnyValue{stringValue(e.Finish)}}
		out = append(out, &common.KeyValue{
			Key:   "gen_ai.response.finish_reasons",
			Value: &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: reasons}},
		})
	}
	return out
}

// between returns the time between two that are known, in ns; else 0.
func between(from, to uint64) uint64 {
	if from == 0 || to < from {
		return 0
	}
	return to - from
}
