package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// flaky is a test that fails where its folder has no file named after it, and makes that file; always fails always.
const flaky = `package flaky

import ("os"; "testing")

func TestOnce(t *testing.T) {
	t.Run("a case, with words", func(t *testing.T) {
		if _, err := os.Stat("once"); err != nil {
			os.WriteFile("once", nil, 0o600)
			t.Fatal("the first time")
		}
	})
}

func TestAlways(t *testing.T) {
	if os.Getenv("ALWAYS") != "" { t.Fatal("every time") }
}

func TestHarm(t *testing.T) {
	if _, err := os.Stat("harm"); err != nil && os.Getenv("HARM") != "" {
		os.WriteFile("harm", nil, 0o600)
		t.Fatal("the target ended: signal: segmentation fault")
	}
}
`

// TestRerun checks that only a test that passes each time it is run again is taken out of the failures, and that harm
// to a target stays one.
func TestRerun(t *testing.T) {
	for _, c := range []struct {
		name, env, rerun, last string
		fails                  bool
	}{
		{"a test that passes afterwards", "", "2", "3 passed, 0 failed, 0 skipped", false},
		{"no reruns", "", "0", "2 passed, 1 failed, 0 skipped", true},
		{"a test that fails again", "ALWAYS", "2", "2 passed, 1 failed, 0 skipped", true},
		{"harm", "HARM", "2", "2 passed, 1 failed, 0 skipped", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module flaky\n\ngo 1.24\n", "flaky_test.go": flaky} {
				must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			t.Chdir(dir)
			if c.env != "" {
				t.Setenv(c.env, "1")
			}
			var out strings.Builder
			err := run([]string{"-rerun", c.rerun, "go", "test", "-json", "-count=1", "./..."}, &out)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; last != c.last {
				t.Errorf("last line %q, want %q; all:\n%s", last, c.last, out.String())
			}
			if errors.Is(err, errFailed) != c.fails {
				t.Errorf("error %v, want a failure: %v", err, c.fails)
			}
			if unsteady := strings.Contains(out.String(), "\nunsteady"); unsteady != (c.rerun == "2") {
				t.Errorf("lists an unsteady test: %v; all:\n%s", unsteady, out.String())
			}
		})
	}
}
