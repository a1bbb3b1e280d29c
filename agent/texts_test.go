package agent_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// unit compiles a program of testdata with the agent's sources, runs it and returns what it writes.
func unit(t *testing.T, name string, flags ...string) string {
	t.Helper()
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skipf("needs tool clang-19: %v", err)
	}
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=gnu11", "-fno-builtin", "-o", program, "testdata/" + name + ".c"}, flags...)
	if text, err := exec.Command(clang, append(args, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// TestTextsEndAnywhere: names are read by words, and nothing outside of their page is touched, wherever in it they
// begin and end.
func TestTextsEndAnywhere(t *testing.T) {
	needs.Long(t)
	for name, flags := range map[string][]string{
		"plain": {"-O2"},
		// behaviour that is not defined ends it
		"undefined": {"-O1", "-fsanitize=undefined", "-fsanitize-trap=undefined"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := unit(t, "texts", flags...), "301 lengths, 301 names\n"; got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
}
