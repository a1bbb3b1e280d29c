package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestTheSecurityPageNamesTests: each claim of docs/gpu-agent.md names tests that exist, in the package that it names.
func TestTheSecurityPageNamesTests(t *testing.T) {
	page, err := os.ReadFile("../docs/gpu-agent.md")
	must.NoError(t, err)
	sources := map[string]string{} // by directory: its tests
	err = filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		sources["./"+filepath.Dir(path)[len("../"):]] += string(text)
		return err
	})
	must.NoError(t, err)
	group := regexp.MustCompile("((?:(?:Test|Fuzz)[A-Z]\\w*(?:, )?)+) `(\\./[\\w/]+)`")
	named := 0
	for _, m := range group.FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			named++
			if !strings.Contains(sources[m[2]], "\nfunc "+name+"(") {
				t.Errorf("%s has no test %s", m[2], name)
			}
		}
	}
	all := ""
	for _, text := range sources {
		all += text
	}
	for _, name := range regexp.MustCompile(`\bFuzz[A-Z]\w*`).FindAllString(string(page), -1) {
		named++
		if !strings.Contains(all, "\nfunc "+name+"(") {
			t.Errorf("there is no fuzz test %s", name)
		}
	}
	claims, one := 0, regexp.MustCompile(`\b(Test|Fuzz)[A-Z]`)
	for _, table := range strings.Split(string(page), "\n| claim | test |\n|---|---|\n")[1:] {
		rows, _, _ := strings.Cut(table, "\n\n")
		for row := range strings.SplitSeq(rows, "\n") {
			if claims++; !one.MatchString(row) {
				t.Errorf("a claim names no test: %s", row)
			}
		}
	}
	if claims < 30 {
		t.Errorf("the page has only %d claims: it is not read as it is written", claims)
	}
	if named < 60 {
		t.Errorf("the page names only %d tests: it is not read as it is written", named)
	}
}

// TestLimits: what docs/gpu-agent.md says of the daemon's memory and CPU is what units and manifests say.
func TestLimits(t *testing.T) {
	for file, limit := range map[string]string{
		"systemd/inferscoped.service": `\nMemoryMax=1G\n`, "systemd/inferscoped@.service": `\nMemoryMax=512M\n`,
		"kubernetes/daemonset.yaml": `limits:\n +cpu: "1"\n +memory: 1Gi\n`,
		"kubernetes/sidecar.yaml":   `limits:\n +cpu: 500m\n +memory: 512Mi\n`,
	} {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		if !regexp.MustCompile(limit).Match(text) {
			t.Errorf("%s has no %s", file, limit)
		}
	}
}
