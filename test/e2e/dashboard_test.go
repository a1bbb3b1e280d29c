package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/promtest"
)

// compared are comparisons of an alert, with what is compared in front.
var compared = regexp.MustCompile(`\s(>|<|==)\s`)

// TestDashboard: a real Prometheus that scrapes the daemon, which watches programs, has an answer to every expression
// of the dashboard, and to every alert, whether that fires or not.
func TestDashboard(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	promtest.Tool(t, "prometheus")
	worker := cudasim.Start(t, cudasim.Options{Lib: "runtime", Level: "counts"},
		"until { decode 10 kernels=24 h2d=65536 d2h=4 cpu=300us sample=50us }")
	// Another profiler is in this one: its agent is refused.
	refused := cudasim.Start(t, cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_BUSY=1"}}, busy)
	server, address := sseServer(t)
	stop := ask(t, address)
	defer stop()
	d := launchDaemon(t, "--pid", strconv.Itoa(worker.PID), "--pid", strconv.Itoa(refused.PID),
		"--pid", strconv.Itoa(server), "--record-dir", t.TempDir(), "--metrics-addr", ":0", "--overhead-budget", "80")
	d.waitLog("metrics are served")
	s := promtest.Start(t, regexp.MustCompile(`http://([0-9.:]+)/metrics`).FindStringSubmatch(d.log.String())[1])
	for _, p := range promtest.Panels(t, "20s") {
		for _, expression := range p.Expressions {
			s.Eventually(expression)
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	if err := s.Get("rules", nil, &rules); err != nil || len(rules.Groups) != 1 || len(rules.Groups[0].Rules) < 8 {
		t.Fatalf("%v: the rules are %+v", err, rules)
	}
	for _, r := range rules.Groups[0].Rules {
		if r.Health == "err" {
			t.Errorf("%s: %s", r.Name, r.LastError)
		}
		// With bool a comparison is 0 or 1 instead of an answer or none.
		s.Eventually(compared.ReplaceAllString(promtest.Shorter(r.Query, "20s"), " $1 bool "))
	}
	s.Eventually(`ALERTS{alertname="InferScopeAgentRefused", pid="` + strconv.Itoa(refused.PID) + `"}`)
	s.Eventually(`ALERTS{alertname="InferScopeRequestsFail", pid="` + strconv.Itoa(server) + `"}`)
	if file := os.Getenv("INFERSCOPE_DASHBOARD"); file != "" {
		history(t, s, file)
	}
	d.stop()
	unharmed(t, worker)
}

// ask is two clients of a server, of whose requests every fourth fails, until stop is called.
func ask(t *testing.T, address string) (stop func()) {
	done := make(chan struct{})
	for range 2 {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				body := `{"model":"small","stream":true,"max_tokens":12,"gap_ms":10,"prefill_ms":40}`
				if n%4 == 3 {
					body = `{"model":"small","status":503}`
				}
				resp, err := http.Post(address+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Errorf("ask the server: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
	}
	return func() { close(done) }
}

// history writes what Prometheus answers to each panel for three minutes: deploy/grafana/draw.py makes a picture of it.
func history(t *testing.T, s *promtest.Server, file string) {
	t.Helper()
	began := time.Now()
	time.Sleep(3 * time.Minute)
	out := map[string][]json.RawMessage{}
	for _, p := range promtest.Panels(t, "20s") {
		for _, expression := range p.Expressions {
			var answer json.RawMessage
			query := url.Values{
				"query": {expression}, "step": {"2"}, "start": {began.Format(time.RFC3339)},
				"end": {time.Now().Format(time.RFC3339)},
			}
			must.NoError(t, s.Get("query_range", query, &answer))
			out[p.Title] = append(out[p.Title], answer)
		}
	}
	text, err := json.Marshal(out)
	must.NoError(t, err)
	if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // for whoever draws it
		t.Fatal(err)
	}
}
