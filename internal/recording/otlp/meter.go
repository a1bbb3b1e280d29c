package otlp

import (
	"cmp"
	"maps"
	"slices"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/inferscope/inferscope/internal/recording/genai"
)

// instrument is one of the histograms.
type instrument struct {
	name, about, unit string
	bounds            []float64
}

// instruments are the histograms, in the order in which they are written.
var instruments = []instrument{
	{genai.Duration, "Time from the read of a request to the last byte of its answer.", "s", genai.DurationBounds},
	{
		genai.TimeToFirst,
		"Time from the read of a request to the first part of its answer with content.",
		"s",
		genai.TimeToFirstBounds,
	},
	{genai.TimePerToken, "Time per output token after the first one.", "s", genai.TimePerTokenBounds},
	{genai.Tokens, "Tokens of a request, where they are known exactly.", "{token}", genai.TokensBounds},
}

// Indices into instruments.
const (
	duration = iota
	timeToFirst
	timePerToken
	tokens
)

// Meter adds requests up to histograms, from a time on. It is not safe for concurrent use.
type Meter struct {
	start   uint64 // ns since 1970
	servers map[uint32]*measured
}

// measured is what is known of the requests of one server.
type measured struct {
	server Server
	labels genai.Labels
	series map[seriesKey]*histogram
}

// seriesKey tells the series of one server apart.
type seriesKey struct {
	instrument                 int
	provider, operation, model string
	failed                     string // error.type
	kind                       string // gen_ai.token.type
}

// histogram is one series.
type histogram struct {
	buckets   []uint64 // one more than there are bounds
	count     uint64
	sum       float64
	low, high float64
}

// NewMeter returns a meter of what happens from start on (ns since 1970).
func NewMeter(start int64) *Meter {
	return &Meter{start: uint64(max(0, start)), servers: map[uint32]*measured{}}
}

// Add counts a request that has ended.
func (m *Meter) Add(s *Server, r *Request) {
	of := m.servers[s.PID]
	if of == nil {
		of = &measured{server: *s, series: map[seriesKey]*histogram{}}
		m.servers[s.PID] = of
	}
	operation, model := of.labels.Model(r.Request)
	k := seriesKey{provider: s.Provider, operation: operation, model: model}
	observe := func(i int, v float64) {
		k.instrument = i
		h := of.series[k]
		if h == nil {
			h = &histogram{buckets: make([]uint64, len(instruments[i].bounds)+1), low: v, high: v}
			of.series[k] = h
		}
		bucket, _ := slices.BinarySearch(instruments[i].bounds, v)
		h.buckets[bucket]++
		h.count++
		h.sum += v
		h.low, h.high = min(h.low, v), max(h.high, v)
	}
	if genai.Ended(r.Request) {
		k.failed = of.labels.Error(r.Request)
		observe(duration, float64(r.End-r.Received)/1e9)
		k.failed = ""
	}
	if genai.Succeeded(r.Request) {
		if ns := r.TTFT(); ns > 0 {
			observe(timeToFirst, float64(ns)/1e9)
		}
		if ns := r.TPOT(); ns > 0 {
			observe(timePerToken, float64(ns)/1e9)
		}
	}
	if output, source := r.tokens(); source != "" {
		input, _ := r.input()
		for kind, n := range map[string]uint32{"input": input, "output": output} {
			if k.kind = kind; n > 0 {
				observe(tokens, float64(n))
			}
		}
	}
}

// Keep forgets servers of which is says no.
func (m *Meter) Keep(is func(pid uint32) bool) {
	for pid := range m.servers {
		if !is(pid) {
			delete(m.servers, pid)
		}
	}
}

// Metrics returns what was added so far, at a time (ns since 1970): cumulative histograms, by server.
func (m *Meter) Metrics(now int64) []*metrics.ResourceMetrics {
	var out []*metrics.ResourceMetrics
	for _, pid := range slices.Sorted(maps.Keys(m.servers)) {
		of := m.servers[pid]
		var all []*metrics.Metric
		for i := range instruments {
			if points := of.points(i, m.start, uint64(max(0, now))); len(points) > 0 {
				all = append(all, &metrics.Metric{
					Name: instruments[i].name, Description: instruments[i].about, Unit: instruments[i].unit,
					Data: &metrics.Metric_Histogram{Histogram: &metrics.Histogram{
						DataPoints:             points,
						AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
					}},
				})
			}
		}
		out = append(out, &metrics.ResourceMetrics{
			Resource:     of.server.resource(),
			ScopeMetrics: []*metrics.ScopeMetrics{{Scope: scope(), Metrics: all}},
		})
	}
	return out
}

// points returns the series of one instrument, always in the same order.
func (of *measured) points(i int, start, now uint64) []*metrics.HistogramDataPoint {
	var keys []seriesKey
	for k := range of.series {
		if k.instrument == i {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b seriesKey) int {
		return cmp.Or(
			cmp.Compare(a.operation, b.operation),
			cmp.Compare(a.model, b.model),
			cmp.Compare(a.provider, b.provider),
			cmp.Compare(a.failed, b.failed),
			cmp.Compare(a.kind, b.kind),
		)
	})
	var out []*metrics.HistogramDataPoint
	for _, k := range keys {
		h := *of.series[k] // a copy, of which parts are pointed to
		out = append(out, &metrics.HistogramDataPoint{
			Attributes: k.attributes(of.server.Legacy), StartTimeUnixNano: min(start, now), TimeUnixNano: now,
			Count: h.count, Sum: &h.sum, Min: &h.low, Max: &h.high,
			BucketCounts: slices.Clone(h.buckets), ExplicitBounds: instruments[i].bounds,
		})
	}
	return out
}

// attributes returns what tells a series apart.
func (k *seriesKey) attributes(legacy bool) []*common.KeyValue {
	out := []*common.KeyValue{text("gen_ai.operation.name", k.operation)}
	if legacy && k.provider != "" {
		out = append(out, text("gen_ai.system", k.provider))
	}
	for _, a := range [...]struct{ key, v string }{
		{"gen_ai.provider.name", k.provider},
		{"gen_ai.request.model", k.model},
		{"error.type", k.failed},
		{"gen_ai.token.type", k.kind},
	} {
		if a.v != "" {
			out = append(out, text(a.key, a.v))
		}
	}
	return out
}
