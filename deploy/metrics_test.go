package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// classic is the form of dashboards that every Grafana imports.
type classic = dashboard.Dashboard //nolint:staticcheck // its successor is for Grafana 13 and later

const dashboardFile = "grafana/inferscope.json"

// promtool runs promtool in a folder, and returns what it complains about.
func promtool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(tool(t, "promtool"), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return string(out)
	}
	return ""
}

// TestAlerts: promtool understands the rules, each fires where it should, and its test would notice if it did not.
func TestAlerts(t *testing.T) {
	if complaint := promtool(t, ".", "check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml"); complaint != "" {
		t.Errorf("promtool check rules: %s", complaint)
	}
	rules, tests := read(t, "alerts.yaml"), read(t, "testdata/alerts_test.yaml")
	try := func(rules string) string {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "alerts.yaml"), rules)
		write(t, filepath.Join(dir, "testdata", "alerts_test.yaml"), tests)
		return promtool(t, filepath.Join(dir, "testdata"), "test", "rules", "alerts_test.yaml")
	}
	if complaint := try(rules); complaint != "" {
		t.Errorf("promtool test rules: %s", complaint)
	}
	names := matches(rules, `(?m)- alert: (\w+)$`)
	if len(names) < 8 {
		t.Errorf("there are %d alerts: %v", len(names), names)
	}
	for _, name := range names {
		if try(strings.Replace(rules, "- alert: "+name+"\n", "- alert: Nothing\n", 1)) == "" {
			t.Errorf("the tests pass without %s", name)
		}
	}
}

// TestAlertsInTheChart: the chart has the rules as they are, where that is asked for.
func TestAlertsInTheChart(t *testing.T) {
	if text := render(t); strings.Contains(text, "PrometheusRule") {
		t.Error("there are rules that nobody asked for")
	}
	_, rule, ok := strings.Cut(render(t, "metrics.alerts=true"), "kind: PrometheusRule")
	if !ok {
		t.Fatal("there is no PrometheusRule")
	}
	rule, _, _ = strings.Cut(rule, "\n---")
	for line := range strings.Lines(read(t, "alerts.yaml")) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(rule, "  "+line) {
			t.Errorf("the chart's rules lack %q", line)
		}
	}
}

// TestDashboard: the dashboard is what Grafana's own types take, field by field, and its panels do not cover each
// other.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	must.NoError(t, err)
	plugins.RegisterDefaultPlugins()
	var d classic
	// Where nothing is wrong the error is an empty list, and not nil.
	strictly := func(d *classic, data []byte) string {
		if err := d.UnmarshalJSONStrict(data); err != nil {
			return err.Error()
		}
		return ""
	}
	if complaint := strictly(&d, data); complaint != "" {
		t.Errorf("Grafana's types refuse it: %s", complaint)
	}
	if err := d.Validate(); err != nil {
		t.Errorf("Grafana's types find it invalid: %v", err)
	}
	broken := strings.Replace(string(data), `"gridPos"`, `"gridpos"`, 1)
	if strictly(new(classic), []byte(broken)) == "" {
		t.Error("a misspelt field passes: this check says nothing")
	}
	var plain struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	must.NoError(t, json.Unmarshal(data, &plain))
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range plain.Panels {
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.X+g.W > 24 || ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %q at %+v, id %d", p.Title, g, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%q covers %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
