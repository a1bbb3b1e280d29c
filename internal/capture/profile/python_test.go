package profile

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// TestInterpreterIsOfOneProgram: what is known of an interpreter is kept while the process runs its program, whatever
// it calls itself, and not when it has replaced the program by the same one.
func TestInterpreterIsOfOneProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the maps of another process are read by root")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python: ", err)
	}
	cmd := exec.Command(python, "-c", "import sys; print(1, flush=True); sys.stdin.read()")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("Python does not run")
	}
	p, err := proc.Describe(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
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
