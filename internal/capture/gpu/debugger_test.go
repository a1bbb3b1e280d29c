package gpu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// debugger runs gdb or gcore on a process. A number of its own descriptors are a pipe that nobody writes: were it to
// open one of them by the name of a library, it would wait there for ever.
func debugger(t *testing.T, pid uint32, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs gdb: ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append(args, strconv.FormatUint(uint64(pid), 10))...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd.Stdin, cmd.WaitDelay = r, time.Second
	for range 32 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
	}
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s hangs: %s", name, text)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return string(text)
}

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
	drain(
		t,
		s,
		&got,
		"the agent records",
		func() bool { return stateOf(s, p.PID) == string(running) && s.recording(p.Root) },
	)
	look := func(when string) {
		t.Helper()
		text := debugger(t, p.PID, "gdb", "--batch", "-nx", "-ex", "info sharedlibrary", "-p")
		if !strings.Contains(text, "libcuda.so.1") || !strings.Contains(text, "/memfd:inferscope\n") ||
			strings.Contains(text, "/fd/") {
			t.Errorf("%s, gdb says:\n%s", when, text)
		}
		core := filepath.Join(t.TempDir(), "core")
		debugger(t, p.PID, "gcore", "-o", core)
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
