package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// Labels of requests, in the order in which they are given. Those of the conventions for generative AI have their
// names.
const (
	operationLabel = "gen_ai_operation_name"
	modelLabel     = "gen_ai_request_model"
	errorLabel     = "error_type"
	pidName        = "pid"
)

// requestMetrics is what is counted of the requests that targets serve.
type requestMetrics struct {
	serving func() map[uint32]int // requests in progress, by process

	first, perToken, duration *prometheus.HistogramVec
	requests, tokens          *prometheus.CounterVec
}

func newRequestMetrics() requestMetrics {
	histogram := func(name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: strings.ReplaceAll(name, ".", "_") + "_seconds", Help: help,
			Buckets: bounds, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		}, append([]string{operationLabel, modelLabel, pidName}, labels...))
	}
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "inferscope_" + name, Help: help},
			append([]string{operationLabel, modelLabel, pidName}, labels...))
	}
	return requestMetrics{
		serving: func() map[uint32]int { return nil },
		first: histogram(
			genai.TimeToFirst,
			"Time from the read of a request to the first part of its answer that carries content; streamed answers without an error only.",
			genai.TimeToFirstBounds,
		),
		perToken: histogram(genai.TimePerToken,
			"(last token - first token) / (output tokens - 1) of a request; streamed answers without an error only.",
			genai.TimePerTokenBounds),
		duration: histogram(
			genai.Duration,
			"Time from the read of a request to the last byte of its answer. error_type is the status of an error, or aborted where the connection ended before the answer did.",
			genai.DurationBounds,
			errorLabel,
		),
		requests: count(
			"requests_total",
			"Requests that ended, by the class of their status (none: no answer) and their outcome: complete, aborted (the connection ended before the answer did), unbounded (the end was not seen).",
			"status",
			"outcome",
		),
		tokens: count(
			"request_tokens_total",
			"Tokens of requests that ended. type cached_input is a part of input. source says how they are known: usage (the account in the answer), timings (that of llama.cpp or Ollama), engine (what vLLM's engine told its server), chunks (parts of the stream were counted: a lower bound).",
			"type",
			"source",
		),
	}
}

func (m *requestMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.first, m.perToken, m.duration, m.requests, m.tokens}
}

// forget ends the series of a target.
func (m *requestMetrics) forget(root uint32) {
	of := prometheus.Labels{pidName: pidLabel(root)}
	for _, h := range []*prometheus.HistogramVec{m.first, m.perToken, m.duration} {
		h.DeletePartialMatch(of)
	}
	m.requests.DeletePartialMatch(of)
	m.tokens.DeletePartialMatch(of)
}

// Request counts a request that has ended.
func (t *Tally) Request(r *recording.Request) {
	t.mu.Lock() // all the time: else Forget might come in between
	defer t.mu.Unlock()
	c, m := t.of(r.PID), &t.served
	c.serves = true
	operation, model := c.labels.Model(r)
	model, pid := clean(model), pidLabel(c.root)
	m.requests.WithLabelValues(operation, model, pid, statusClass(r.Status), r.Outcome).Inc()
	if genai.Ended(r) {
		took := seconds(r.End - r.Received)
		m.duration.WithLabelValues(operation, model, pid, c.labels.Error(r)).Observe(took)
	}
	if genai.Succeeded(r) {
		if ns := r.TTFT(); ns > 0 {
			m.first.WithLabelValues(operation, model, pid).Observe(seconds(ns))
		}
		if ns := r.TPOT(); ns > 0 {
			m.perToken.WithLabelValues(operation, model, pid).Observe(seconds(ns))
		}
	}
	if r.TokenSource == "" {
		return
	}
	tokens := func(kind string, count uint32) {
		if count > 0 {
			m.tokens.WithLabelValues(operation, model, pid, kind, r.TokenSource).Add(float64(count))
		}
	}
	tokens("input", r.InputTokens)
	tokens("cached_input", r.CachedTokens)
	tokens("output", r.OutputTokens)
}

// statusClass returns 2xx and its like.
func statusClass(status uint32) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return strconv.FormatUint(uint64(status/100), 10) + "xx"
}

// Serving has f asked, at each scrape, how many requests each process serves.
func (t *Tally) Serving(f func() map[uint32]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served.serving = f
}

// inProgress returns how many requests are in progress in each target that has ever served one.
func (t *Tally) inProgress() map[uint32]int {
	t.mu.Lock()
	serving := t.served.serving
	t.mu.Unlock()
	processes := serving() // not while holding the lock: Request is called by whom this asks
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[uint32]int{}
	for pid, n := range processes {
		c := t.of(pid)
		c.serves = true
		out[c.root] += n
	}
	for root, c := range t.targets {
		if c.serves {
			out[root] += 0
		}
	}
	return out
}

// Spans registers how many spans of requests were sent to a receiver of OTLP, and how many were lost.
func Spans(r *prometheus.Registry, sent, lost func() uint64) error {
	for result, count := range map[string]func() uint64{"sent": sent, "lost": lost} {
		if err := r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "inferscope_otlp_spans_total",
			Help:        "Spans of requests, by what became of them: sent to the OTLP endpoint, lost because it refused them or failed for too long.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(count()) })); err != nil {
			return err
		}
	}
	return nil
}
