package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// standalone runs the client where no daemon is, with a folder of its own for temporary files.
type standalone struct {
	t   *testing.T
	dir string
}

func newStandalone(t *testing.T) standalone {
	t.Helper()
	needs.Root(t, "it loads BPF programs and attaches probes")
	program(t, "inferscoped")
	return standalone{t, t.TempDir()}
}

func (a standalone) command(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	a.t.Cleanup(cancel)
	cmd := exec.CommandContext(
		ctx,
		program(a.t, "inferscope"),
		append([]string{"--socket", filepath.Join(a.dir, "none")}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &said, a.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+a.dir)
	return cmd, &out, &said
}

// does runs a command that succeeds and leaves nothing behind.
func (a standalone) does(args ...string) (stdout string) {
	a.t.Helper()
	cmd, out, said := a.command(args...)
	if err := cmd.Run(); err != nil {
		a.t.Fatalf("%v: %v: %s", args, err, said)
	}
	a.left()
	return out.String()
}

// left checks that nothing of a daemon is left.
func (a standalone) left() {
	a.t.Helper()
	if left, err := filepath.Glob(filepath.Join(a.dir, "inferscope-run-*")); err != nil || len(left) > 0 {
		a.t.Errorf("these are left: %v, %v", left, err)
	}
}

// TestWithoutADaemon: each command about a process that runs brings a daemon of its own where there is none, and takes
// everything out again.
func TestWithoutADaemon(t *testing.T) {
	t.Parallel()
	a := newStandalone(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	pid := strconv.Itoa(v.PID)
	clean := func() {
		t.Helper()
		waitFor(t, "everything to come off",
			func() bool { return agentThreads(v.PID) == 0 && cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	}
	var report struct {
		Summary struct{ Operations uint64 }
	}
	text := a.does("report", "--pid", pid, "--for", "2s", "--json")
	if err := json.Unmarshal([]byte(text), &report); err != nil || report.Summary.Operations == 0 {
		t.Errorf("a report with %d operations, %v", report.Summary.Operations, err)
	}
	clean()
	if text := a.does("dump", pid); !strings.Contains(text, "Process "+pid) {
		t.Errorf("a dump is\n%s", text)
	}
	clean()
	a.does("record", pid, "--for", "1s", "-o", "t.isc")
	if text := a.does("info", "t.isc"); !strings.Contains(text, pid) {
		t.Errorf("the recording is\n%s", text)
	}
	a.does("whatif", pid, "--for", "1s", "--json")
	clean()
	unharmed(t, v)
}

// TestInterruptedWithoutADaemon: Ctrl-C ends the command and its daemon, and leaves nothing in the process.
func TestInterruptedWithoutADaemon(t *testing.T) {
	t.Parallel()
	a := newStandalone(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	cmd, _, said := a.command("report", strconv.Itoa(v.PID), "--for", "100s")
	must.NoError(t, cmd.Start())
	waitFor(t, "probes", func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") > 0 })
	must.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 ||
		!strings.Contains(said.String(), "interrupted") {
		t.Errorf("it ended with %v: %s", err, said)
	}
	a.left()
	waitFor(t, "everything to come off",
		func() bool { return agentThreads(v.PID) == 0 && cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	unharmed(t, v)
}

// TestUnwatchedProcess: a running daemon watches a process for one command, and releases it.
func TestUnwatchedProcess(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	d := launchDaemon(t, "--on-request")
	d.waitLog("ready")
	out, said, code := d.inferscope("report", strconv.Itoa(v.PID), "--for", "1s", "--json")
	if code != 0 || !strings.Contains(said, "watching it for this command") || !strings.Contains(out, `"operations"`) {
		t.Fatalf("it ended with %d: %s", code, said)
	}
	waitFor(t, "everything to come off",
		func() bool { return agentThreads(v.PID) == 0 && cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	unharmed(t, v)
}
