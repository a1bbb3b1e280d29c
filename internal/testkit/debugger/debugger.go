// Package debugger runs debuggers on the processes of tests.
package debugger

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Run runs gdb or gcore on a process and returns what it writes. The debugger's own descriptors are a pipe that nobody
// writes: one that opens a descriptor of its own by the name of a library waits there for ever, with the process
// stopped.
func Run(t *testing.T, pid uint32, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs gdb: ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append(args, strconv.FormatUint(uint64(pid), 10))...)
	r, w, err := os.Pipe()
	must.NoError(t, err)
	defer r.Close()
	defer w.Close()
	cmd.Stdin, cmd.WaitDelay = r, time.Second
	for range 32 { // whatever number the library's file had in the process
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
