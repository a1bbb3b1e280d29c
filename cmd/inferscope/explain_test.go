package main

import (
	"os"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// explain runs the command where no daemon is.
func explain(t *testing.T, args ...string) result {
	t.Helper()
	return at(t, socketPath(t), append([]string{"explain"}, args...)...)
}

func TestExplainListsEveryCause(t *testing.T) {
	r := explain(t)
	want(t, r, clierror.OK)
	for _, c := range cause.All() {
		if n := strings.Count(r.stdout, "\n  "+c.Key+" "); n != 1 {
			t.Errorf("%s stands there %d times:\n%s", c.Key, n, r.stdout)
		}
	}
}

// TestTheReportPageNamesEveryCause: docs/report.md has each key that explain takes.
func TestTheReportPageNamesEveryCause(t *testing.T) {
	page, err := os.ReadFile("../../docs/report.md")
	must.NoError(t, err)
	_, causes, ok := strings.Cut(string(page), "\n### Causes\n")
	causes, _, end := strings.Cut(causes, "\n## ")
	if !ok || !end {
		t.Fatal("docs/report.md has no section Causes")
	}
	for _, key := range causeKeys() {
		if !strings.Contains(causes, "`"+key+"`") {
			t.Errorf("the section Causes of docs/report.md lacks %s", key)
		}
	}
}

// TestExplainSaysAllOfACause, and so that examples can be copied: line by line, as they are.
func TestExplainSaysAllOfACause(t *testing.T) {
	for _, c := range cause.All() {
		r := explain(t, c.Key)
		want(t, r, clierror.OK)
		flat := strings.Join(strings.Fields(r.stdout), " ")
		texts := []string{c.Title, c.Means, c.Proves, c.Refutes}
		for _, ch := range c.Changes {
			texts = append(texts, ch.Text)
			for line := range strings.Lines(ch.Example) {
				if line = strings.TrimRight(line, "\n"); line != "" && len(line) < 116 &&
					!strings.Contains(r.stdout, "    "+line+"\n") {
					t.Errorf("%s lacks the line %q", c.Key, line)
				}
			}
		}
		for _, text := range texts {
			if !strings.Contains(flat, strings.Join(strings.Fields(text), " ")) {
				t.Errorf("%s lacks %q", c.Key, text)
			}
		}
	}
}

func TestExplainNamesTheNearestCause(t *testing.T) {
	want(t, explain(t, "host-sink"), clierror.Usage, `no cause is called "host-sink"`,
		"did you mean inferscope explain host-sync?")
	want(t, explain(t, "\x1b[31m"), clierror.Usage, `"?[31m"`, "inferscope explain lists all causes")
	want(t, explain(t, "host-sync", "gil"), clierror.Usage, "takes one cause, not 2", "inferscope explain host-sync")
	if r := explain(t, "Host_Sync"); r.code != clierror.OK || !strings.HasPrefix(r.stdout, "host-sync: ") {
		t.Errorf("code %d: %s%s", r.code, r.stdout, r.stderr)
	}
}
