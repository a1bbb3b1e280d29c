package threaddump

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// victim starts a program that prints a line when it is ready and ends with its standard input.
func victim(t *testing.T, name string, args ...string) *proc.Process {
	t.Helper()
	program := child.Start(t, exec.Command(name, args...)) //nolint:noctx // ended with the test
	program.Line()
	p, err := proc.Describe(program.PID)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func take(t *testing.T, p *proc.Process) *dump.Process {
	t.Helper()
	d, err := New(symbol.New(symbol.Options{}), threads.Describe).Take(t.Context(), p.PID, []*proc.Process{p})
	must.NoError(t, err)
	if len(d.Processes) != 1 {
		t.Fatalf("%d processes, want 1", len(d.Processes))
	}
	return &d.Processes[0]
}

// pythons returns the interpreters of this machine by version: python3.N in $PATH, and what pyenv has.
func pythons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for minor := 6; minor <= 14; minor++ {
		name := fmt.Sprintf("3.%d", minor)
		if path, err := exec.LookPath("python" + name); err == nil &&
			exec.Command(path, "-c", "").Run() == nil { //nolint:noctx // short
			found[name] = path
		}
	}
	root, err := exec.Command("pyenv", "root").Output() //nolint:noctx // short
	if err != nil {
		return found
	}
	paths, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "versions", "3.*", "bin", "python3"))
	for _, path := range paths {
		parts := strings.SplitN(filepath.Base(filepath.Dir(filepath.Dir(path))), ".", 3)
		found[strings.Join(parts[:2], ".")] = path
	}
	return found
}

func somePython(t *testing.T) string {
	t.Helper()
	for _, path := range pythons(t) {
		return path
	}
	path := needs.Tool(t, "python3")
	return path
}
