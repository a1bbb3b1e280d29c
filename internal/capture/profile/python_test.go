package profile

import (
	"os/exec"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestInterpreterIsOfOneProgram: what is known of an interpreter is kept while the process runs its program, whatever
// it calls itself, and not when it has replaced the program by the same one.
func TestInterpreterIsOfOneProgram(t *testing.T) {
	needs.Root(t, "it reads the maps of another process")
	python := needs.Tool(t, "python3")
	program := child.Start(t, exec.Command(python, "-c", "import sys; print(1, flush=True); sys.stdin.read()"))
	program.Line()
	p, err := proc.Describe(program.PID)
	must.NoError(t, err)
	defer p.Close()

	all := newPythons()
	first, err := all.find(p, nil)
	if err != nil || first == nil {
		t.Fatalf("an interpreter %v is found, with error %v", first, err)
	}
	renamed := *p
	renamed.Comm, renamed.Cmdline = "worker", "a title of its own"
	if again, err := all.find(&renamed, first); err != nil || again != first {
		t.Errorf("renamed, it is another interpreter: %v", err)
	}
	restarted := *p
	restarted.Execs++
	if again, err := all.find(&restarted, first); err != nil || again == first || again == nil {
		t.Errorf("restarted, it is the same interpreter, or none: %v", err)
	}
}
