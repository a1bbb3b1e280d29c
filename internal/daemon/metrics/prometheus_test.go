package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
)

// program finds a tool where scripts/tools.sh puts it, or on PATH.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../bin/tools", name))
	if err == nil {
		if _, err = os.Stat(path); err != nil {
			path, err = exec.LookPath(name)
		}
	}
	if err != nil {
		t.Skipf("needs tool %s: scripts/tools.sh %s installs it", name, name)
	}
	return path
}

// busyStatus is that of a daemon of which every metric has a value.
func busyStatus() api.Status {
	s := status()
	s.Discovery = &api.Discovery{Watched: 3}
	s.Kept = &api.Kept{Recordings: 5, Bytes: 1000, Deleted: 1, Uploaded: 2, Pending: 2, UploadFailed: 7}
	s.Agents = []recording.AgentStatus{
		{Agent: recording.Agent{PID: 10, State: "refused"}, Kernels: 9, Windows: 3, Observed: 2e9},
	}
	s.Overhead = []recording.Overhead{
		{Target: 10, Budget: 0.03, Total: recording.Cost{Share: 0.05, Low: 0.04, High: 0.06, Basis: "measured"}},
	}
	return s
}

// scraped serves a registry whose numbers grow, until the test ends.
func scraped(t *testing.T) (address string) {
	t.Helper()
	tally := filled()
	stop := make(chan struct{})
	stopped := make(chan struct{})
	began := time.Now()
	st := func() api.Status {
		s := busyStatus()
		s.Agents[0].Observed = uint64(time.Since(began))
		return s
	}
	s, err := Listen(context.Background(), "127.0.0.1:0", nil, registry(t, tally, st), nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve() }()
	go func() {
		defer close(stopped)
		for {
			tally.Add(calls(10, launch, 5, 0, 0))
			tally.Add(calls(10, driverCopy, 2, 1e6, 1000))
			tally.Add(calls(10, driverSync, 2, 1e6, 0))
			tally.Request(answered(10, "llama"))
			tally.Facts(api.Facts{
				PID: 10, Watched: 4e8, Busy: 1e8, Idle: map[string]uint64{"host-sync": 3e8},
				Durations: []uint64{1e7, 1.1e7, 1.2e7},
			})
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		_ = s.Close()
	})
	return s.Addr()
}

// TestPromtoolFindsNothing: promtool check metrics has nothing to say of a scrape.
func TestPromtoolFindsNothing(t *testing.T) {
	promtool := program(t, "promtool")
	resp, err := http.Get("http://" + scraped(t) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(text, []byte("inferscope_gpu_idle_seconds_total")) {
		t.Fatalf("%v: %.500s", err, text)
	}
	check := func(text []byte) string {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	if said := check(text); said != "" {
		t.Errorf("promtool: %s", said)
	}
	if check(bytes.ReplaceAll(text, []byte("inferscope_cuda_calls_total"), []byte("inferscope_cuda_calls"))) == "" {
		t.Error("a counter without _total passes: this check says nothing")
	}
}

// server is a Prometheus that scrapes an address.
type server struct {
	t   *testing.T
	url string
}

func newServer(t *testing.T, target string) *server {
	t.Helper()
	prometheus := program(t, "prometheus")
	dir := t.TempDir()
	config := fmt.Sprintf(`global: {scrape_interval: 250ms, evaluation_interval: 250ms, scrape_timeout: 250ms}
rule_files: [%q]
scrape_configs:
  - job_name: inferscope
    scrape_native_histograms: true
    static_configs: [{targets: [%q]}]
`, absolute(t, "../../../deploy/alerts.yaml"), target)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(
		prometheus,
		"--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address,
	)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus said: %.4000s", out.String())
		}
	})
	return &server{t, "http://" + address}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	whole, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// ask returns how many series an expression has now, and the value of the first.
func (s *server) ask(expression string) (series int, value string, err error) {
	resp, err := http.Get(s.url + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, "", err
	}
	if answer.Status != "success" {
		return 0, "", fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	var vector []struct{ Value [2]any }
	if err := json.Unmarshal(answer.Data.Result, &vector); err != nil || len(vector) == 0 {
		return 0, "", err
	}
	return len(vector), fmt.Sprint(vector[0].Value[1]), nil
}

// eventually asks until an expression has series.
func (s *server) eventually(expression string) string {
	s.t.Helper()
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var n int
		var value string
		if n, value, err = s.ask(expression); n > 0 {
			return value
		}
	}
	s.t.Errorf("there are no series of %s: %v", expression, err)
	return ""
}

// TestPrometheus: a real Prometheus scrapes the daemon, native histograms too, loads the alerts, and has an answer to
// every expression of the dashboard.
func TestPrometheus(t *testing.T) {
	s := newServer(t, scraped(t))
	if v := s.eventually(`up{job="inferscope"} == 1`); v != "1" {
		t.Fatal("it is not scraped")
	}
	for _, expression := range panels(t) {
		if v := s.eventually(expression); v == "NaN" {
			t.Errorf("%s is no number", expression)
		}
	}
	// Only a native histogram has this answer: the classic one has no sample without _bucket, _sum or _count.
	var p50 float64
	if _, err := fmt.Sscan(s.eventually(`histogram_quantile(0.5, rate(inferscope_iteration_seconds[5s]))`), &p50); err != nil ||
		p50 < 0.010 ||
		p50 > 0.012 {
		t.Errorf("the median iteration takes %g s (%v), want 0.011", p50, err)
	}
	var first float64
	_, err := fmt.Sscan(
		s.eventually(
			`histogram_quantile(0.5, rate(gen_ai_server_time_to_first_token_seconds{gen_ai_request_model="llama"}[5s]))`,
		),
		&first,
	)
	if err != nil || first < 0.19 || first > 0.21 {
		t.Errorf("the median time to the first token is %g s (%v), want 0.2", first, err)
	}
	resp, err := http.Get(s.url + "/api/v1/rules")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(text), `"type":"alerting"`) < 8 ||
		strings.Contains(string(text), `"health":"err"`) {
		t.Errorf("%v: rules are %.2000s", err, text)
	}
	s.eventually(`ALERTS{alertname="InferScopeAgentRefused"}`)
}

// panels returns the expressions of the dashboard, with its variables filled in.
func panels(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/grafana/inferscope.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer(
		"$__rate_interval",
		"5s",
		"$instance",
		".*",
		"$pid",
		".*",
		"[10m]",
		"[5s]",
		"[1h]",
		"[5s]",
	)
	var out []string
	for _, p := range d.Panels {
		for _, e := range p.Targets {
			expression := fill.Replace(e.Expr)
			if strings.Contains(expression, "$") {
				t.Errorf("a variable is unknown in %s", expression)
			}
			out = append(out, expression)
		}
	}
	if len(out) < 10 {
		t.Fatalf("the dashboard has %d expressions", len(out))
	}
	return out
}

// TestNamesInDeploy: alerts and the dashboard name metrics that exist.
func TestNamesInDeploy(t *testing.T) {
	tally := filled()
	tally.Request(answered(10, "llama"))
	all, err := registry(t, tally, busyStatus).Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{
		"inferscope_gpu_seconds_total":      true,
		"inferscope_gpu_idle_seconds_total": true,
		"inferscope_iteration_seconds":      true,
	}
	for _, f := range all {
		known[f.GetName()] = true
	}
	for _, file := range []string{"../../../deploy/alerts.yaml", "../../../deploy/grafana/inferscope.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`(inferscope|gen_ai)_[a-z_]+`).FindAllString(string(text), -1) {
			if strings.HasPrefix(name, "gen_ai_") && !strings.HasPrefix(name, "gen_ai_server_") {
				continue // a label
			}
			if !known[name] {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}
