package fuzzing_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

var held []byte

// FuzzFault fails where TestFloodFinds asks for it.
func FuzzFault(f *testing.F) {
	f.Add([]byte("abcd"), uint16(7), "x")
	fuzzing.Run(f, func(t *testing.T, b []byte, n uint16, s string) {
		if len(b) > 0 && b[0] == 'z' && os.Getenv("FUZZ_FAULT") == "1" {
			panic("found")
		}
		if len(b) > 0 && b[0] == 'y' && os.Getenv("FUZZ_FAULT") == "memory" {
			held = make([]byte, 3<<30)
			time.Sleep(time.Minute)
		}
		if n > 1<<15 && len(s) > 5 && os.Getenv("FUZZ_FAULT") == "1" {
			t.Errorf("%d %q", n, s)
		}
	})
}

// TestFloodFinds: a flood finds a fault behind a few changes, and leaves the input where the next test run reads it.
func TestFloodFinds(t *testing.T) {
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	run := func(env ...string) (string, error) {
		cmd := exec.Command(os.Args[0], "-test.run=^FuzzFault$")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("INFERSCOPE_FLOOD=30s", "INFERSCOPE_FLOOD_LOG="+log, "FUZZ_FAULT=1"); err == nil {
		t.Fatalf("nothing was found: %s", out)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "testdata", "fuzz", "FuzzFault", "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%d inputs are kept (%v)", len(kept), err)
	}
	if out, err := run("FUZZ_FAULT=1"); err == nil || !strings.Contains(out, filepath.Base(kept[0])) {
		t.Errorf("the input that was kept does not fail: %v\n%s", err, out)
	}
	must.NoError(t, os.RemoveAll(filepath.Join(dir, "testdata")))
	out, err := run("INFERSCOPE_FLOOD=50s", "FUZZ_FAULT=memory")
	if kept, _ = filepath.Glob(filepath.Join(dir, "testdata", "fuzz", "FuzzFault", "*")); err == nil ||
		len(kept) != 1 ||
		!strings.Contains(out, "an input takes") {
		t.Errorf("an input that takes 3 GB passes, or %d inputs are kept: %v\n%s", len(kept), err, out)
	}
	must.NoError(t, os.RemoveAll(filepath.Join(dir, "testdata")))
	if out, err := run("INFERSCOPE_FLOOD=50ms", "INFERSCOPE_FLOOD_LOG="+log); err != nil {
		t.Errorf("without the fault: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(log); err != nil || !bytes.Contains(text, []byte("FuzzFault ")) {
		t.Errorf("the log says %q (%v)", text, err)
	}
}
