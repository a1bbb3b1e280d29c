package gpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/debugger"
)

// TestDebuggers: gdb and gcore work on a process with an agent in it, and on one that it has left, and find it under a
// name that is no file's.
func TestDebuggers(t *testing.T) {
	opts := simOptions(t, Continuous)
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	v := cudasim.Start(t, cudasim.Options{}, "until { rate 2000 for 20ms; sync }")
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "the agent records",
		func() bool { return stateOf(s, p.PID) == string(running) && s.recording(p.Root) })
	look := func(when string) {
		t.Helper()
		text := debugger.Run(t, p.PID, "gdb", "--batch", "-nx", "-ex", "info sharedlibrary", "-p")
		if !strings.Contains(text, "libcuda.so.1") || !strings.Contains(text, "/memfd:inferscope\n") ||
			strings.Contains(text, "/fd/") {
			t.Errorf("%s, gdb says:\n%s", when, text)
		}
		core := filepath.Join(t.TempDir(), "core")
		debugger.Run(t, p.PID, "gcore", "-o", core)
		if info, err := os.Stat(core + "." + strconv.FormatUint(uint64(p.PID), 10)); err != nil || info.Size() == 0 {
			t.Errorf("%s, gcore wrote nothing: %v", when, err)
		}
	}
	look("with the agent")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	look("after the agent")
	v.Go()
	v.Finish()
}
