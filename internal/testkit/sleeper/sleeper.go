// Package sleeper starts processes that do nothing, for tests of what follows processes.
package sleeper

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Start starts a process that sleeps until the test ends.
func Start(t testing.TB) *proc.Process {
	t.Helper()
	return start(t)
}

// Mapping starts one that maps an empty library of this name, such as libcuda.so.1.
func Mapping(t testing.TB, base string) *proc.Process {
	t.Helper()
	cc := needs.Tool(t, "cc")
	library := filepath.Join(t.TempDir(), base)
	build := exec.CommandContext(t.Context(), cc, "-shared", "-o", library, "-x", "c", os.DevNull)
	must.Run(t, build)
	p := start(t, "LD_PRELOAD="+library)
	must.Become(t, "a process that maps "+base, func() bool {
		found, err := proc.Libraries(p, func(name string) bool { return strings.HasPrefix(name, base) })
		return err == nil && len(found) > 0
	})
	return p
}

func start(t testing.TB, environ ...string) *proc.Process {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "sleep", "600") // its end is that of the test
	cmd.Env = append(os.Environ(), environ...)
	p, err := proc.Describe(child.Start(t, cmd).PID)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}
