package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestScopesOfARunningProgram: a daemon that is attached later has the scopes from then on, of forked
// children too, with their attributes, beside everything else; and --gpu off does not lose them.
func TestScopesOfARunningProgram(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	dir := t.TempDir()
	path := filepath.Join(dir, "p.py")
	text := `
import os, time
from inferscope import scope
if os.fork() == 0:
    while True:
        with scope("child"): time.sleep(.01)
while True:
    with scope("step", batch=8):
        with scope("inner"): time.sleep(.01)
`
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	cmd := exec.Command(python(t), path)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+absolute(t, "../../python"))
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = exec.Command("pkill", "-P", strconv.Itoa(cmd.Process.Pid)).Run()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off")
	count := map[string]int{}
	attributes := false
	waitFor(t, "scopes in a recording", func() bool {
		rec := d.recording(cmd.Process.Pid)
		clear(count)
		for i := range rec.Events {
			e := &rec.Events[i]
			if e.Kind != event.Range || e.Ret == 0 || int(e.Ret) > len(rec.Meta.GPU.Ranges) {
				continue
			}
			name := rec.Meta.GPU.Ranges[e.Ret-1]
			count[name]++
			if at := e.Args[3]; name == "step" && at > 0 {
				attributes = rec.Meta.GPU.Attributes[at-1] == `{"batch": 8}`
			}
			if (name == "child") == (int(e.PID) == cmd.Process.Pid) {
				t.Fatalf("%s is of process %d", name, e.PID)
			}
		}
		return count["step"] > 10 && count["inner"] > 10 && count["child"] > 10
	})
	if !attributes {
		t.Error("the attributes are missing")
	}
	out, _, code := d.inferscope("report", "--full")
	if code != 0 || !strings.Contains(out, "Named ranges") ||
		!strings.Contains(out, `ranges named "step"`) && !strings.Contains(out, `ranges named "child"`) {
		t.Errorf("the report does not speak of them: %d\n%.4000s", code, out)
	}
}
