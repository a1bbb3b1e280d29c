package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// doctor runs `inferscope doctor --json` as a user.
func doctor(t *testing.T, uid uint32, args ...string) (found map[string]string, works bool, code int) {
	t.Helper()
	// It runs inferscoped, which lies beside it and which the user must reach.
	if err := os.Chmod(filepath.Dir(program(t, "inferscoped")), 0o755); err != nil { //nolint:gosec // a test's own
		t.Fatal(err)
	}
	cmd := exec.Command(
		program(t, "inferscope"),
		append([]string{"--socket", filepath.Join(t.TempDir(), "none"), "doctor", "--json"}, args...)...)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	var d struct {
		Works    bool
		Sections []struct {
			Checks []struct{ Name, State string }
		}
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found = map[string]string{}
	for _, s := range d.Sections {
		for _, c := range s.Checks {
			found[c.Name] = c.State
		}
	}
	return found, d.Works, cmd.ProcessState.ExitCode()
}

func TestDoctor(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	found, works, code := doctor(t, 0, "--pid", strconv.Itoa(v.PID))
	if !works || code != 0 || found["driver library"] != "ok" || found["CAP_BPF, CAP_PERFMON"] != "ok" {
		t.Errorf("as root it works %v, code %d: %v", works, code, found)
	}
	if _, works, code := doctor(t, 0, "--pid", "4194304"); works || code != int(clierror.NoProcess) {
		t.Errorf("without a process it works %v, code %d", works, code)
	}
	if found, works, code := doctor(t, 65534); works || code != int(clierror.Permission) ||
		found["CAP_BPF, CAP_PERFMON"] != "missing" {
		t.Errorf("as nobody it works %v, code %d: %v", works, code, found)
	}
}
