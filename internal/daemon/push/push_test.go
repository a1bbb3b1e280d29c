package push

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const (
	parent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unwanted = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	now      = uint64(1e12)
)

// receiver takes OTLP over HTTP as its schema has it.
type receiver struct {
	t      *testing.T
	url    string
	answer func(w http.ResponseWriter, r *http.Request) bool // true: it has answered

	mu       sync.Mutex
	requests []*http.Request
	traces   []*trace.ResourceSpans
	metrics  []*metrics.MetricsData
}

func receive(t *testing.T) *receiver {
	r := &receiver{t: t, answer: func(http.ResponseWriter, *http.Request) bool { return false }}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, req)
	if r.answer(w, req) {
		return
	}
	z, err := gzip.NewReader(req.Body)
	if err != nil {
		r.t.Error(err)
		return
	}
	body, err := io.ReadAll(z)
	var spans trace.TracesData
	var points metrics.MetricsData
	switch {
	case err != nil:
		r.t.Error(err)
	case strings.HasSuffix(req.URL.Path, "/v1/traces"):
		if err := proto.Unmarshal(body, &spans); err != nil || len(spans.ProtoReflect().GetUnknown()) > 0 {
			r.t.Error("traces: ", err)
		}
		r.traces = append(r.traces, spans.ResourceSpans...)
	case strings.HasSuffix(req.URL.Path, "/v1/metrics"):
		if err := proto.Unmarshal(body, &points); err != nil || len(points.ProtoReflect().GetUnknown()) > 0 {
			r.t.Error("metrics: ", err)
		}
		r.metrics = append(r.metrics, &points)
	default:
		r.t.Errorf("%s is asked for", req.URL.Path)
	}
}

// spans returns those that have come, by their model.
func (r *receiver) spans() map[string][]*trace.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]*trace.Span{}
	for _, of := range r.traces {
		for _, s := range of.ScopeSpans[0].Spans {
			out[s.Name] = append(out[s.Name], s)
		}
	}
	return out
}

// observed returns the count of a histogram in what has come last.
func (r *receiver) observed(name string) (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.metrics) == 0 {
		return 0
	}
	for _, of := range r.metrics[len(r.metrics)-1].ResourceMetrics {
		for _, m := range of.ScopeMetrics[0].Metrics {
			for _, p := range m.GetHistogram().GetDataPoints() {
				if m.Name == name {
					n += p.Count
				}
			}
		}
	}
	return n
}

func watched() Watched {
	return Watched{
		Clock: func() uint64 { return now },
		Targets: func() []api.Target {
			return []api.Target{{
				PID: 10, Comm: "python3", Cmdline: "python3 -m sglang.launch_server",
				Processes: []recording.Process{{PID: 10, Comm: "python3"}, {PID: 11, Comm: "worker"}},
				Place:     api.Place{Pod: "chat-0", Namespace: "prod"},
			}}
		},
		Engines: func(from, to uint64) []recording.EngineRequest {
			if from > now-3e9 || to < now-1e9 {
				return nil
			}
			return []recording.EngineRequest{{
				ID: "cmpl-1-0", Asked: now - 4e9, Scheduled: now - 35e8,
				First: now - 3e9, Last: now - 2e9, Finish: "stop",
				OutputTokens: 9, InputTokens: 5,
			}}
		},
	}
}

func pusher(t *testing.T, url, headers string, share float64) (*Pusher, *observer.ObservedLogs) {
	t.Helper()
	e, err := ParseEndpoint(url, headers)
	must.NoError(t, err)
	core, logs := observer.New(zapcore.DebugLevel)
	return New(Options{Endpoint: e, Share: share}, watched(), zap.New(core)), logs
}

// request ended two seconds ago, after three.
func request(number uint64, model, traceparent string) *recording.Request {
	return &recording.Request{
		Number: number, PID: 11, Received: now - 5e9, FirstToken: now - 3e9, LastToken: now - 2e9, End: now - 2e9,
		Route: "/v1/completions", Method: "POST", Model: model, ID: "cmpl-1", Status: 200, Outcome: "complete",
		Streamed: true, Trace: traceparent, Parts: 8, OutputTokens: 8, TokenSource: "chunks",
	}
}

func TestPush(t *testing.T) {
	r := receive(t)
	p, logs := pusher(t, r.url+"/base", "authorization=Bearer%20xyz, x-scope=a", 0)
	p.Request(request(1, "sampled", parent))
	p.Request(request(2, "refused", unwanted))
	p.Request(request(3, "unsampled", ""))
	stranger := request(4, "withdrawn", parent)
	stranger.PID = 99
	p.Request(stranger)
	late := request(5, "late", parent)
	late.End = now
	p.Request(late)
	began := uint64(time.Now().UnixNano())
	p.pass(context.Background(), false)
	if got := r.spans(); len(got) != 1 || len(got["text_completion sampled"]) != 1 {
		t.Fatalf("spans %v", got)
	}
	s := r.spans()["text_completion sampled"][0]
	if hex.EncodeToString(s.TraceId) != parent[3:35] || hex.EncodeToString(s.ParentSpanId) != parent[36:52] {
		t.Errorf("%v", s)
	}
	if s.EndTimeUnixNano < began-2e9-1e9 || s.EndTimeUnixNano > uint64(time.Now().UnixNano())-2e9+1e6 {
		t.Errorf("it ended at %d, which is %d ns before", s.EndTimeUnixNano, began-s.EndTimeUnixNano)
	}
	attributes := map[string]string{}
	for _, a := range append(s.Attributes, r.traces[0].Resource.Attributes...) {
		attributes[a.Key] = strings.Trim(strings.SplitN(a.Value.String(), ":", 2)[1], `"`)
	}
	for key, want := range map[string]string{
		"gen_ai.usage.output_tokens": "9", "inferscope.token_source": "engine", "gen_ai.latency.time_in_queue": "0.5",
		"gen_ai.provider.name": "sglang", "service.name": "sglang", "k8s.pod.name": "chat-0", "process.pid": "11",
	} {
		if attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, attributes[key], want)
		}
	}
	if n := r.observed("gen_ai.server.request.duration"); n != 0 {
		t.Errorf("metrics of %d requests came at once", n)
	}
	if err := finish(p, time.Second); err != nil {
		t.Error(err)
	}
	if got := r.spans(); len(got) != 2 || len(got["text_completion late"]) != 1 {
		t.Errorf("spans %v", got)
	}
	if n := r.observed("gen_ai.server.request.duration"); n != 4 {
		t.Errorf("metrics of %d requests came, want 4", n)
	}
	for _, req := range r.requests {
		if req.Header.Get("Authorization") != "Bearer xyz" || req.Header.Get("X-Scope") != "a" ||
			!strings.HasPrefix(
				req.URL.Path,
				"/base/v1/",
			) || req.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s with %v", req.URL, req.Header)
		}
	}
	if n := logs.FilterLevelExact(zapcore.WarnLevel).Len(); n > 0 || p.Sent() != 2 || p.Lost() != 0 {
		t.Errorf("%d sent, %d lost; it complains: %v", p.Sent(), p.Lost(), logs.All())
	}
}

// finish closes a pusher that serves.
func finish(p *Pusher, within time.Duration) error {
	go func() { _ = p.Serve() }()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return p.Close(ctx)
}

// TestReceiverThatFails: what may work later is sent again, once; what is refused is not; both are said once.
func TestReceiverThatFails(t *testing.T) {
	r := receive(t)
	p, logs := pusher(t, r.url, "", 1)
	status, retry := 503, ""
	r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		if status != 200 {
			w.Header().Set("Retry-After", retry)
			w.Header().Set("Location", "/v1/other")
			w.WriteHeader(status)
		}
		return status != 200
	}
	pass := func(number uint64) {
		if number > 0 {
			p.Request(request(number, fmt.Sprint(number), ""))
		}
		p.pass(context.Background(), false)
	}
	pass(1)
	pass(2)
	if len(r.requests) != 2 || len(r.spans()) != 0 || len(p.batches) != 2 {
		t.Fatalf("%d requests, %d batches", len(r.requests), len(p.batches))
	}
	status = 200
	pass(0)
	if got := r.spans(); len(got) != 2 || len(got["text_completion 1"]) != 1 || p.Lost() > 0 {
		t.Errorf("%v, %d lost", got, p.Lost())
	}
	for _, refused := range []int{400, 401, 404, 307} {
		status = refused
		pass(uint64(refused))
	}
	status = 200
	pass(0)
	if got := r.spans(); len(got) != 2 || p.Lost() != 4 || len(p.batches) != 0 {
		t.Errorf("%v, %d lost", got, p.Lost())
	}
	status, retry = 429, "600"
	pass(7)
	status = 200
	before := len(r.requests)
	pass(8)
	if len(r.requests) != before || len(p.batches) != 2 {
		t.Errorf("a receiver that wants a pause is asked: %d batches", len(p.batches))
	}
	if rest := time.Until(p.sender.rest); rest < maxRest-time.Minute || rest > maxRest {
		t.Errorf("it pauses for %v", rest)
	}
	p.sender.rest = time.Time{}
	pass(0)
	if got := r.spans(); len(got) != 4 {
		t.Errorf("%v", got)
	}
	var said []string
	for _, l := range logs.All() {
		said = append(said, l.Message)
	}
	const off, on = "traces of requests are not sent", "traces of requests are sent again"
	if got := strings.Join(said, ", "); got != strings.Join([]string{off, on, off, on}, ", ") {
		t.Errorf("it says %s", got)
	}
}

// TestBounded: a receiver that is gone costs no more than this.
func TestBounded(t *testing.T) {
	p, logs := pusher(t, "http://127.0.0.1:1", "", 1)
	for i := range uint64(maxQueue + 5) {
		p.Request(request(i, "m", ""))
	}
	for i := range uint64(3) {
		for j := range uint64(maxQueue) {
			p.Request(request(i*maxQueue+j, "m", ""))
		}
		p.pass(context.Background(), false)
	}
	if len(p.batches) != maxBatches || p.Lost() != 3*maxQueue+5 {
		t.Errorf("%d batches, %d lost", len(p.batches), p.Lost())
	}
	size := 0
	for _, b := range p.batches {
		size += len(b.body)
	}
	if size > 4<<20 {
		t.Errorf("batches take %d bytes", size)
	}
	if n := logs.FilterMessage("requests ended too fast for all of them to be sent").Len(); n != 1 {
		t.Errorf("that there was no room is said %d times", n)
	}
}

// TestReceiverThatHangs keeps nobody.
func TestReceiverThatHangs(t *testing.T) {
	r := receive(t)
	stop := make(chan struct{})
	r.answer = func(http.ResponseWriter, *http.Request) bool { <-stop; return true }
	defer close(stop)
	p, _ := pusher(t, r.url, "", 1)
	p.Request(request(1, "m", ""))
	began := time.Now()
	if err := finish(p, 50*time.Millisecond); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestParseEndpoint(t *testing.T) {
	for address, want := range map[string]string{
		"http://127.0.0.1:4318":     "http://127.0.0.1:4318/v1/traces",
		"http://127.0.0.1:4318/":    "http://127.0.0.1:4318/v1/traces",
		"https://otlp.example/otlp": "https://otlp.example/otlp/v1/traces",
		"http://[::1]:4318":         "http://[::1]:4318/v1/traces",
	} {
		e, err := ParseEndpoint(address, "a=b%2C,, c = d ")
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if got := e.at("traces"); got != want || e.headers.Get("A") != "b," || e.headers.Get("C") != "d" {
			t.Errorf("%s is %s with %v", address, got, e.headers)
		}
	}
	for _, c := range [][2]string{
		{"127.0.0.1:4318"},
		{"grpc://host:4317"},
		{"http://"},
		{"http://user:canary@host"},
		{"http://host?canary=1"},
		{"http://host#canary"},
		{"http://ho st"},
		{"unix:///canary"},
		{"http://host", "canary"},
		{"http://host", "=canary"},
		{"http://host", "a=%zzcanary"},
		{"http://host", "a=canary%0d%0ab"},
		{"http://host", "a b=canary"},
	} {
		_, err := ParseEndpoint(c[0], c[1])
		if clierror.CodeOf(err) != clierror.Usage || clierror.HintOf(err) == "" ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", c, err)
		}
	}
}
