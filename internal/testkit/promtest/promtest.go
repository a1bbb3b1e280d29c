// Package promtest is test support: a real Prometheus that scrapes one address and evaluates the alerts of
// deploy/alerts.yaml, and the expressions of the dashboard in deploy/grafana.
package promtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// answerTimeout is how long series of an expression may take to appear: two windows of a daemon that records in
// windows, on a busy machine.
const answerTimeout = 2 * time.Minute

// Tool finds a program where scripts/tools.sh puts it, or on PATH, and skips the test where it is not.
func Tool(tb testing.TB, name string) string {
	tb.Helper()
	path := filepath.Join(root(tb), "bin/tools", name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("needs tool %s: scripts/tools.sh %s installs it", name, name)
	}
	return path
}

func root(tb testing.TB) string {
	tb.Helper()
	path, err := cudasim.Root()
	must.NoError(tb, err)
	return path
}

// Server is a Prometheus.
type Server struct {
	URL string // without a slash at its end
	tb  testing.TB
}

// Series is one series of an answer.
type Series struct {
	Labels map[string]string `json:"metric"`
	Value  [2]any            `json:"value"` // time in seconds, number as text
}

// Number is the value of a series as text.
func (s Series) Number() string { return fmt.Sprint(s.Value[1]) }

// Start runs a Prometheus that scrapes target, native histograms too, four times a second, until the test ends.
func Start(tb testing.TB, target string) *Server {
	tb.Helper()
	program := Tool(tb, "prometheus")
	dir := tb.TempDir()
	config := fmt.Sprintf(`global: {scrape_interval: 250ms, evaluation_interval: 250ms, scrape_timeout: 250ms}
rule_files: [%q]
scrape_configs:
  - job_name: inferscope
    scrape_native_histograms: true
    static_configs: [{targets: [%q]}]
`, filepath.Join(root(tb), "deploy/alerts.yaml"), target)
	file := filepath.Join(dir, "prometheus.yml")
	must.NoError(tb, os.WriteFile(file, []byte(config), 0o600))
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must.NoError(tb, err)
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.CommandContext(tb.Context(), program,
		"--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if tb.Failed() {
			tb.Logf("Prometheus said: %.4000s", out.String())
		}
	})
	return &Server{URL: "http://" + address, tb: tb}
}

// Get decodes the data of an answer of the HTTP API into data.
func (s *Server) Get(path string, query url.Values, data any) error {
	address := s.URL + "/api/v1/" + path + "?" + query.Encode()
	req, err := http.NewRequestWithContext(s.tb.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask Prometheus: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask Prometheus: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("decode the answer to %s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s", path, answer.Status, answer.Error)
	}
	return nil
}

// Ask returns the series of an expression now.
func (s *Server) Ask(expression string) ([]Series, error) {
	var data struct{ Result []Series }
	err := s.Get("query", url.Values{"query": {expression}}, &data)
	return data.Result, err
}

// Eventually asks until an expression has series with a number, and returns those: what divides by a rate has none while
// nothing has happened.
func (s *Server) Eventually(expression string) []Series {
	s.tb.Helper()
	var err error
	for end := time.Now().Add(answerTimeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var found []Series
		found, err = s.Ask(expression)
		found = slices.DeleteFunc(found, func(one Series) bool { return one.Number() == "NaN" })
		if len(found) > 0 {
			return found
		}
	}
	s.tb.Errorf("there is no number of %s: %v", expression, err)
	return nil
}

// Panel is one panel of the dashboard.
type Panel struct {
	Title       string
	Expressions []string // with the variables filled in
}

// spans are the ranges and offsets of expressions, which are too long for a test.
var spans = regexp.MustCompile(`\[(\d+[mh]|\$__rate_interval)\]`)

// Shorter makes the ranges and offsets of an expression short, ranges so long as span says.
func Shorter(expression, span string) string {
	return strings.ReplaceAll(spans.ReplaceAllLiteralString(expression, "["+span+"]"), "offset 1h", "offset 1s")
}

// Panels returns the panels of the dashboard, whose ranges are of a length.
func Panels(tb testing.TB, span string) []Panel {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(root(tb), "deploy/grafana/inferscope.json"))
	must.NoError(tb, err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must.NoError(tb, json.Unmarshal(data, &d))
	fill := strings.NewReplacer("$instance", ".*", "$pid", ".*")
	out := make([]Panel, 0, len(d.Panels))
	for _, p := range d.Panels {
		panel := Panel{Title: p.Title}
		for _, e := range p.Targets {
			expression := fill.Replace(Shorter(e.Expr, span))
			if strings.Contains(expression, "$") {
				tb.Errorf("a variable is unknown in %s", expression)
			}
			panel.Expressions = append(panel.Expressions, expression)
		}
		if len(panel.Expressions) == 0 {
			tb.Errorf("the panel %q asks nothing", p.Title)
		}
		out = append(out, panel)
	}
	if len(out) < 10 {
		tb.Fatalf("the dashboard has %d panels", len(out))
	}
	return out
}
