package agent_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTextsEndAnywhere: names are read by words, and nothing outside of their page is touched, wherever in it they
// begin and end.
func TestTextsEndAnywhere(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skipf("needs tool clang-19: %v", err)
	}
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"plain": {"-O2"},
		// behaviour that is not defined ends it
		"undefined": {"-O1", "-fsanitize=undefined", "-fsanitize-trap=undefined"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "texts")
			args := append([]string{"-std=gnu11", "-fno-builtin", "-o", program, "testdata/texts.c"}, flags...)
			if text, err := exec.Command(clang, append(args, sources...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			got, err := exec.Command(program).CombinedOutput()
			if want := "301 lengths, 301 names\n"; err != nil || string(got) != want {
				t.Errorf("%v\n%s\nwant %s", err, got, want)
			}
		})
	}
}
