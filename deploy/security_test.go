package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheSecurityPageNamesTests: each claim of docs/gpu-agent.md names tests that exist, in the package that it names.
func TestTheSecurityPageNamesTests(t *testing.T) {
	page, err := os.ReadFile("../docs/gpu-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // by directory: its tests
	err = filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		sources["./"+filepath.Dir(path)[len("../"):]] += string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if named < 60 {
		t.Errorf("the page names only %d tests: it is not read as it is written", named)
	}
}
