package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/inferscope/inferscope/internal/testkit/certificate"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/h2server"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// sseServer starts a server that streams tokens.
func sseServer(t *testing.T) (pid int, url string) {
	t.Helper()
	pid, port := pythonServer(t, "../../testdata/sseserver/server.py")
	return pid, "http://127.0.0.1:" + port
}

// pythonServer starts a server that prints the port that it listens on, and ends it with the test.
func pythonServer(t *testing.T, script string, args ...string) (pid int, port string) {
	t.Helper()
	server := child.Start(t, exec.Command(python(t), append([]string{absolute(t, script)}, args...)...))
	return server.PID, server.Line()
}

// TestRequestsOfARunningServer: a server with clients, from the kernel to the report; nothing of what was asked and
// answered is in anything that comes out, or in the log.
func TestRequestsOfARunningServer(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	checkServer(t, pid, url, http.DefaultClient)
}

// TestRequestsOverTLS: the same where the server terminates TLS.
func TestRequestsOverTLS(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	cert, key, transport := certificate.Files(t)
	pid, port := pythonServer(t, "../../testdata/sseserver/server.py", cert, key)
	checkServer(t, pid, "https://127.0.0.1:"+port, &http.Client{Transport: transport})
}

// TestRequestsOverHTTP2: the same with all clients on one connection.
func TestRequestsOverHTTP2(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	s := h2server.Start(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	checkServer(t, s.PID, "http://"+s.HTTP, &http.Client{Transport: &http.Transport{Protocols: &protocols}})
}

// TestContentOfRequests: what was asked and answered is kept where that was asked for, in all that comes out but the
// log, and nowhere where a rule matches it.
func TestContentOfRequests(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	checkContent(t, pid, url, http.DefaultClient)
}

// TestContentOverHTTP2: the same of requests on one connection.
func TestContentOverHTTP2(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	s := h2server.Start(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	checkContent(t, s.PID, "http://"+s.HTTP, &http.Client{Transport: &http.Transport{Protocols: &protocols}})
}

func checkContent(t *testing.T, pid int, url string, client *http.Client) {
	t.Helper()
	files := outputs(t, askServer(t, pid, url, client, "--capture-content"), pid)
	for _, name := range []string{"r.md", "r.json", "r.jsonl", "r.otlp.json", "meta", "text"} {
		if !strings.Contains(files[name], canary) || !strings.Contains(files[name], "secretsecret") {
			t.Errorf("%s lacks the prompt or the answer", name)
		}
	}
	for name, want := range map[string]string{
		"status": "--capture-content", "log": "prompts and answers are kept", "text": "prompts and answers of 24 requests",
		"r.otlp.json": "gen_ai.input.messages",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q: %.3000s", name, want, files[name])
		}
	}
	if strings.Contains(files["log"], canary) {
		t.Error("the log has content of a request")
	}
}

// TestContentThatRulesMatch: none of it is anywhere.
func TestContentThatRulesMatch(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	d := askServer(t, pid, url, http.DefaultClient,
		"--capture-content=4096", "--redact", "canary-[a-z0-9-]*", "--redact=secret")
	files := outputs(t, d, pid)
	checkNoContent(t, files)
	if !strings.Contains(files["r.json"], "[redacted]") {
		t.Error("nothing was redacted")
	}
}

func checkServer(t *testing.T, pid int, url string, client *http.Client) {
	d := askServer(t, pid, url, client)
	files := outputs(t, d, pid)
	for _, want := range []string{
		"24 ended in the window", "16 streamed", "Time to first token", "16 of 16 (100.0%)", "/v1/completions",
	} {
		if !strings.Contains(files["text"], want) {
			t.Errorf("the report lacks %q\n%.6000s", want, files["text"])
		}
	}
	checkNoContent(t, files)
}

func checkNoContent(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		// "secret" is what the server answers.
		if strings.Contains(content, canary) || strings.Contains(content, "secret") {
			t.Errorf("%s has content of a request or an answer", name)
		}
	}
}

// canary is what clients ask.
const canary = "canary-of-a-prompt-4711"

// askServer has a server watched and asked by several clients.
func askServer(t *testing.T, pid int, url string, client *http.Client, flags ...string) *daemon {
	t.Helper()
	always := []string{"--gpu", "off", "--log-level", "debug", "--pin-level", "requests=all"}
	d := startDaemon(t, pid, slices.Concat(always, flags)...)
	const clients, each = 8, 3
	var wait sync.WaitGroup
	errs := make(chan error, clients*each)
	for range clients {
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf(
					`{"model":"small","stream":%t,"max_tokens":12,"gap_ms":3,"prefill_ms":20,"prompt":"%s"}`,
					i > 0,
					canary,
				)
				resp, err := client.Post(url+"/v1/completions?key="+canary, "application/json",
					strings.NewReader(body))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				errs <- err
			}
		})
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		must.NoError(t, err)
	}
	rec := d.recording(pid)
	if len(rec.Meta.Requests) != clients*each {
		t.Fatalf("%d requests; losses %+v", len(rec.Meta.Requests), rec.Meta.Losses)
	}
	for _, r := range rec.Meta.Requests {
		if r.Outcome != "complete" || r.Model != "small" || r.OutputTokens != 12 || r.TokenSource != "usage" ||
			r.Streamed != (r.FirstToken > 0) {
			t.Errorf("%+v", r)
		}
	}
	return d
}

// outputs returns all that comes out of a recording, by name, and what the daemon says.
func outputs(t *testing.T, d *daemon, pid int) map[string]string {
	t.Helper()
	out := map[string]string{"meta": fmt.Sprintf("%+v", d.recording(pid).Meta)}
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"text":        {"report", "--full", "--slo", "ttft=5s,tpot=1s"},
		"status":      {"status"},
		"r.md":        {"report", "--full", "-o", filepath.Join(dir, "r.md")},
		"r.html":      {"report", "-f", "html", "-o", filepath.Join(dir, "r.html")},
		"r.json":      {"report", "--json", "-o", filepath.Join(dir, "r.json")},
		"r.jsonl":     {"export", "--pid", strconv.Itoa(pid), "-o", filepath.Join(dir, "r.jsonl")},
		"r.otlp.json": {"export", "--pid", strconv.Itoa(pid), "-o", filepath.Join(dir, "r.otlp.json")},
		"r.isc":       {"record", strconv.Itoa(pid), "--for", "1s", "-o", filepath.Join(dir, "r.isc")},
	} {
		text, stderr, code := d.inferscope(args...)
		if code != 0 {
			t.Fatalf("%v: %d %s", args, code, stderr)
		}
		out[name] = text
		if file, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			out[name] = string(file)
		}
	}
	out["log"] = d.log.String()
	return out
}

// TestRetries: requests that a client sends again after errors and disconnects are told from those that it repeats for
// other reasons.
func TestRetries(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	d := startDaemon(t, pid, "--gpu", "off", "--pin-level", "requests=all")
	ask := func(body string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
		must.NoError(t, err)
		if len(header) > 0 {
			req.Header.Set(header[0], header[1])
		}
		resp, err := http.DefaultClient.Do(req)
		must.NoError(t, err)
		return resp
	}
	whole := func(body string, header ...string) int {
		t.Helper()
		resp := ask(body, header...)
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for whole(`{"model":"error","failures":2}`) != http.StatusOK {
		continue
	}
	const left = `{"model":"left","stream":true,"max_tokens":100,"gap_ms":5}`
	resp := ask(left)
	if _, err := io.ReadFull(resp.Body, make([]byte, 400)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // the connection too: more is to come
	whole(left)
	whole(`{"model":"said"}`, "X-Stainless-Retry-Count", "3")
	for i := range 2 { // with something new in the body
		whole(fmt.Sprintf(`{"model":"key","failures":1,"n":%d}`, i), "Idempotency-Key", "canary")
	}
	for range 3 {
		whole(`{"model":"same"}`)
	}
	got := map[string][]uint32{}
	for _, r := range d.recording(pid).Meta.Requests {
		got[r.Model] = append(got[r.Model], r.Retry)
	}
	for model, want := range map[string][]uint32{
		"error": {0, 1, 2}, "left": {0, 1}, "said": {3}, "key": {0, 1}, "same": {0, 0, 0},
	} {
		if !slices.Equal(got[model], want) {
			t.Errorf("%s: sent before %v times, want %v", model, got[model], want)
		}
	}
	text, _, _ := d.inferscope("report", "--full")
	if !strings.Contains(text, "5 sent again after an error or a disconnect") || !strings.Contains(text, "200, retry 3") {
		t.Errorf("%.5000s", text)
	}
	if out := outputs(t, d, pid); !strings.Contains(out["r.jsonl"], `"retry":2`) ||
		!strings.Contains(out["r.json"], `"retries": 5`) || !strings.Contains(out["r.otlp.json"], "resend_count") {
		t.Error("exports lack retries")
	}
}

// TestRequestsOff: --requests=off records none.
func TestRequestsOff(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	d := startDaemon(t, pid, "--gpu", "off", "--requests=off")
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"stream":true}`))
	must.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	rec := d.recording(pid)
	if len(rec.Meta.Requests) > 0 {
		t.Errorf("%+v", rec.Meta.Requests)
	}
	for _, s := range rec.Meta.Sources {
		if s.Name == "requests" {
			t.Errorf("%+v", s)
		}
	}
}

// metricsOf reads what a daemon tells Prometheus.
func metricsOf(t *testing.T, d *daemon) map[string]*dto.MetricFamily {
	t.Helper()
	d.waitLog("metrics are served")
	at := regexp.MustCompile(`http://[0-9.:]+/metrics`).FindString(d.log.String())
	resp, err := http.Get(at)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	must.NoError(t, err)
	return families
}

// total adds up the values, or the counts and sums, of the series that have all of these labels.
func total(f *dto.MetricFamily, labels ...string) (sum float64, count uint64) {
	for _, m := range f.GetMetric() {
		has := map[string]bool{}
		for _, l := range m.GetLabel() {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
			continue
		}
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		count += m.GetHistogram().GetSampleCount()
	}
	return sum, count
}

// TestMetricsOfRequests: what Prometheus is told of a server's requests is what its clients saw.
func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	pid, url := sseServer(t)
	d := startDaemon(t, pid, "--gpu", "off", "--metrics-addr", ":0", "--pin-level", "requests=all")
	const streams, tokens = 5, 6
	var first, whole float64
	ask := func(body string) (*http.Response, time.Time) {
		sent := time.Now()
		resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		must.NoError(t, err)
		return resp, sent
	}
	for range streams {
		resp, sent := ask(fmt.Sprintf(
			`{"model":"small","stream":true,"max_tokens":%d,"gap_ms":10,"prefill_ms":30,"prompt_tokens":9}`, tokens))
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if strings.Contains(lines.Text(), `"content": "secret"`) {
				first += time.Since(sent).Seconds()
				break
			}
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		whole += time.Since(sent).Seconds()
	}
	leaver, _ := ask(`{"model":"small","stream":true,"max_tokens":100000,"gap_ms":5}`)
	label := "pid=" + strconv.Itoa(pid)
	waitFor(t, "a request in progress", func() bool {
		n, _ := total(metricsOf(t, d)["inferscope_requests_in_progress"], label)
		return n == 1
	})
	if _, err := io.ReadFull(leaver.Body, make([]byte, 400)); err != nil {
		t.Fatal(err)
	}
	_ = leaver.Body.Close()
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader("no JSON")) // it hangs up
	if err == nil {
		_ = resp.Body.Close()
	}
	waitFor(t, "the end of all requests", func() bool {
		all := metricsOf(t, d)
		n, _ := total(all["inferscope_requests_in_progress"], label)
		ended, _ := total(all["inferscope_requests_total"], label)
		return n == 0 && ended == streams+2
	})
	all := metricsOf(t, d)
	for _, c := range []struct {
		labels []string
		want   float64
	}{
		{
			[]string{"status=2xx", "outcome=complete", "gen_ai_request_model=small", "gen_ai_operation_name=chat"},
			streams,
		},
		{[]string{"status=2xx", "outcome=aborted"}, 1},
		{[]string{"status=none", "outcome=aborted"}, 1},
	} {
		if n, _ := total(all["inferscope_requests_total"], append(c.labels, label)...); n != c.want {
			t.Errorf("%v requests are %v, want %v", n, c.labels, c.want)
		}
	}
	for kind, want := range map[string]float64{"input": streams * 9, "output": streams * tokens} {
		if n, _ := total(all["inferscope_request_tokens_total"], "type="+kind, "source=usage", label); n != want {
			t.Errorf("%v tokens are %s, want %v", n, kind, want)
		}
	}
	// The server sleeps so long; a client sees what the server wrote after it was written.
	const slack = 0.001 * streams
	for _, c := range []struct {
		name, label string
		least, most float64
	}{
		{"gen_ai_server_time_to_first_token_seconds", label, streams * 0.030, first},
		{"gen_ai_server_request_duration_seconds", "error_type=", streams * (0.030 + (tokens-1)*0.010), whole},
		{"gen_ai_server_time_per_output_token_seconds", label, streams * 0.010, (whole - streams*0.030) / (tokens - 1)},
	} {
		sum, n := total(all[c.name], c.label)
		if n != streams || sum < c.least || sum > c.most+slack {
			t.Errorf("%s: %d with %g s, want %d with %g to %g s", c.name, n, sum, streams, c.least, c.most)
		}
	}
	if _, n := total(all["gen_ai_server_request_duration_seconds"], "error_type=aborted", label); n != 2 {
		t.Errorf("%d requests with a duration were aborted, want 2", n)
	}
}

// TestRequestsToOTLP: a receiver of OTLP has the spans that clients would draw, within their traces, and no content.
func TestRequestsToOTLP(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	var mu sync.Mutex
	spans := map[string]*trace.Span{} // by parent
	counted := uint64(0)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil || bytes.Contains(body, []byte(canary)) || bytes.Contains(body, []byte("secret")) {
			t.Errorf("%v; content of a request or an answer: %q", err, body)
		}
		mu.Lock()
		defer mu.Unlock()
		var td trace.TracesData
		var md metrics.MetricsData
		if r.URL.Path == "/v1/traces" && proto.Unmarshal(body, &td) == nil {
			for _, s := range td.ResourceSpans[0].ScopeSpans[0].Spans {
				spans[hex.EncodeToString(s.ParentSpanId)] = s
			}
		} else if proto.Unmarshal(body, &md) == nil {
			counted = md.ResourceMetrics[0].ScopeMetrics[0].Metrics[0].GetHistogram().DataPoints[0].Count
		}
	}))
	defer receiver.Close()
	pid, url := sseServer(t)
	d := startDaemon(t, pid, "--gpu", "off", "--otlp-endpoint", receiver.URL, "--otlp-sample", "0",
		"--pin-level", "requests=all")
	const id = "0af7651916cd43dd8448eb211c80319c"
	type times struct{ sent, ended time.Time }
	clients := map[string]times{}
	for i := range 4 {
		body := `{"model":"small","stream":true,"max_tokens":3,"gap_ms":5,"prefill_ms":20,"prompt":"` + canary + `"}`
		req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions?key="+canary, strings.NewReader(body))
		must.NoError(t, err)
		parent := fmt.Sprintf("%016x", i+1)
		if i > 0 { // the first one is not sampled: it has no parent
			req.Header.Set("traceparent", "00-"+id+"-"+parent+"-01")
		}
		c := times{sent: time.Now()}
		resp, err := http.DefaultClient.Do(req)
		must.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if c.ended = time.Now(); i > 0 {
			clients[parent] = c
		}
	}
	waitFor(t, "spans", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(spans) >= len(clients)
	})
	d.stop() // what is left is sent, and metrics
	mu.Lock()
	defer mu.Unlock()
	if len(spans) != len(clients) || counted != 4 {
		t.Errorf("%d spans, want %d; %d requests in metrics", len(spans), len(clients), counted)
	}
	for parent, c := range clients {
		s := spans[parent]
		if s == nil || hex.EncodeToString(s.TraceId) != id || s.Name != "chat small" {
			t.Fatalf("the span below %s is %v", parent, s)
		}
		// The wall clock is read when the span is made: it may have been set meanwhile, by a little.
		const slack = 5 * time.Millisecond
		from, to := time.Unix(0, int64(s.StartTimeUnixNano)), time.Unix(0, int64(s.EndTimeUnixNano))
		if from.Before(c.sent.Add(-slack)) || to.After(c.ended.Add(slack)) || to.Sub(from) < 30*time.Millisecond {
			t.Errorf("a span is from %v to %v, its client's from %v to %v", from, to, c.sent, c.ended)
		}
	}
}

// TestOneCommandSendsNothing: OTEL_EXPORTER_OTLP_ENDPOINT is the program's where a command brings a daemon of its own.
func TestOneCommandSendsNothing(t *testing.T) {
	needs.Long(t)
	a := newStandalone(t)
	var asked atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer receiver.Close()
	pid, url := sseServer(t)
	stop := make(chan struct{})
	var client sync.WaitGroup
	client.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"max_tokens":3}`))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
	// Longer than it takes until a daemon sends.
	a.does("record", strconv.Itoa(pid), "--for", "7s", "-o", "t.isc")
	close(stop)
	client.Wait()
	text, err := exec.Command(program(t, "inferscope"), "export", filepath.Join(a.dir, "t.isc"),
		"--to", "otlp", "-o", "-").
		Output()
	if err != nil || !bytes.Contains(text, []byte(`"text_completion"`)) {
		t.Errorf("nothing was recorded that could be sent: %v %.300s", err, text)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the receiver was asked %d times", n)
	}
}
