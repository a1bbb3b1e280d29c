package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// keep is a folder for what all tests share.
var keep string

func TestMain(m *testing.M) {
	if os.Getenv(hostileVariable) != "" {
		hostileProcess()
	}
	dir, err := os.MkdirTemp("", "gpu-test-")
	if err != nil {
		panic(err)
	}
	keep = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// compileKept builds the producer into the shared folder.
func compileKept(t testing.TB) string {
	t.Helper()
	built := compile(t, filepath.Join("testdata", "producer.c"))
	kept := filepath.Join(keep, "producer")
	if text, err := exec.Command("cp", built, kept).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return kept
}
