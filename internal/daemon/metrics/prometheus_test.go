package metrics

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/promtest"
)

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
	s.Sensors = []recording.Sensor{{
		UUID: "GPU-a", Power: 540_500, Temperature: 61, SMClock: 1755, MemoryClock: 2619, Reasons: 0x40,
		Utilization: 98, MemoryUsed: 5 << 30, MemoryTotal: 80 << 30,
	}}
	s.Xids = []recording.XidCount{{Bus: "0000:65:00", Code: 31, Count: 3}}
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
	must.NoError(t, err)
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
	promtool := promtest.Tool(t, "promtool")
	resp, err := http.Get("http://" + scraped(t) + "/metrics")
	must.NoError(t, err)
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

// TestPrometheus: a real Prometheus scrapes the daemon, native histograms too, and finds nothing wrong with the alerts.
// What the dashboard asks is in test/e2e.
func TestPrometheus(t *testing.T) {
	s := promtest.Start(t, scraped(t))
	s.Eventually(`up{job="inferscope"} == 1`)
	// Only a native histogram has these answers: the classic one has no sample without _bucket, _sum or _count.
	near(t, s, `histogram_quantile(0.5, rate(inferscope_iteration_seconds[5s]))`, 0.010, 0.012)
	near(t, s,
		`histogram_quantile(0.5, rate(gen_ai_server_time_to_first_token_seconds{gen_ai_request_model="llama"}[5s]))`,
		0.19, 0.21)
	s.Eventually(`ALERTS{alertname="InferScopeAgentRefused"}`)
}

// near checks that an expression has a value between two others.
func near(t *testing.T, s *promtest.Server, expression string, least, most float64) {
	t.Helper()
	for _, series := range s.Eventually(expression) {
		if v, err := strconv.ParseFloat(series.Number(), 64); err != nil || v < least || v > most {
			t.Errorf("%s is %s (%v), want %g to %g", expression, series.Number(), err, least, most)
		}
	}
}

// TestNamesInDeploy: alerts and the dashboard name metrics that exist.
func TestNamesInDeploy(t *testing.T) {
	tally := filled()
	tally.Request(answered(10, "llama"))
	all, err := registry(t, tally, busyStatus).Gather()
	must.NoError(t, err)
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
		must.NoError(t, err)
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
