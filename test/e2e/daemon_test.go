// Package e2e tests the real programs, as a user starts them, against the real
// kernel and real processes, and compares what they say with what the simulated
// CUDA wrote down. It needs root.
//
// Tests wait more than they compute. One that holds at any pace of the machine, and looks at nothing but its own target
// and daemon, is parallel; it runs when those that want the machine for themselves are done.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// testTimeout is how long anything may take on a slow machine before a test gives up.
const testTimeout = 30 * time.Second

var programs struct {
	once sync.Once
	dir  string
	err  error
}

// TestMain removes the programs that tests have built.
func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// program builds inferscope and inferscoped once and returns the path of one.
func program(t testing.TB, name string) string {
	t.Helper()
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "inferscope-e2e-"); programs.err != nil {
			return
		}
		if programs.err = os.Chmod(programs.dir, 0o711); programs.err != nil { // a daemon of another user starts from there
			return
		}
		build := exec.Command("go", "build", "-o", programs.dir+"/", "../../cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			programs.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return filepath.Join(programs.dir, name)
}

// daemon is a running inferscoped.
type daemon struct {
	t      testing.TB
	cmd    *exec.Cmd
	socket string
	log    *output
	done   chan error
}

// output collects what a program writes, for a test that reads it meanwhile.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// probesOnly makes every call be seen by probes, all the time: what is compared call by call with the truth.
var probesOnly = []string{"--gpu", "continuous", "--no-inject"}

// inWindows are the flags for GPU activity in windows.
func inWindows(length, period string, more ...string) []string {
	return append([]string{"--gpu", "windows", "--gpu-window", length, "--gpu-period", period}, more...)
}

// startDaemon starts inferscoped on a process and returns when its probes are on.
func startDaemon(t testing.TB, pid int, flags ...string) *daemon {
	t.Helper()
	d := launchDaemon(t, append([]string{"--pid", fmt.Sprint(pid)}, flags...)...)
	d.waitLog("ready")
	return d
}

// launchDaemon starts inferscoped and does not wait for anything.
func launchDaemon(t testing.TB, flags ...string) *daemon {
	t.Helper()
	return launchDaemonAs(t, nil, flags...)
}

// launchDaemonAs is launchDaemon with other rights than the test's.
func launchDaemonAs(t testing.TB, rights *syscall.SysProcAttr, flags ...string) *daemon {
	t.Helper()
	return launchBy(t, rights, []string{program(t, "inferscoped")}, flags...)
}

// launchBy is launchDaemonAs by a command that executes inferscoped.
func launchBy(t testing.TB, rights *syscall.SysProcAttr, command []string, flags ...string) *daemon {
	t.Helper()
	needs.Root(t, "it loads BPF programs and attaches probes")
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "s"), log: &output{}, done: make(chan error, 1)}
	d.cmd = exec.Command(command[0], slices.Concat(command[1:], []string{"--socket", d.socket}, flags)...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if d.cmd.SysProcAttr = rights; rights != nil {
		must.NoError(t, os.Chown(filepath.Dir(d.socket), int(rights.Credential.Uid), int(rights.Credential.Gid)))
	}
	must.NoError(t, d.cmd.Start())
	go func() { d.done <- d.cmd.Wait() }()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("inferscoped said:\n%s", d.log)
		}
	})
	return d
}

// waitLog waits until the daemon has written text.
func (d *daemon) waitLog(text string) {
	d.t.Helper()
	waitFor(d.t, "inferscoped to write "+text, func() bool {
		select {
		case err := <-d.done:
			d.t.Fatalf("inferscoped ended (%v) before it wrote %q:\n%s", err, text, d.log)
		default:
		}
		return strings.Contains(d.log.String(), text)
	})
}

// waitFor polls until ok, and fails the test after testTimeout.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", testTimeout, what)
		}
	}
}

// stop ends the daemon as a service manager does; it must end well.
func (d *daemon) stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if code := d.exitCode(); code != 0 {
		d.t.Fatalf("inferscoped ended with %d:\n%s", code, d.log)
	}
}

// exitCode waits for the daemon's end.
func (d *daemon) exitCode() int {
	d.t.Helper()
	select {
	case err := <-d.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			d.t.Fatal(err)
		}
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(testTimeout):
		d.t.Fatalf("inferscoped does not end:\n%s", d.log)
		return -1
	}
}

// client returns a client of the daemon.
func (d *daemon) client() *api.Client {
	d.t.Helper()
	c, err := api.Dial(d.socket)
	must.NoError(d.t, err)
	d.t.Cleanup(c.Close)
	return c
}

// recording fetches everything that the daemon holds about pid.
func (d *daemon) recording(pid int) *recording.Recording {
	d.t.Helper()
	rec, err := d.client().Recording(context.Background(), uint32(pid), api.Window{})
	must.NoError(d.t, err)
	return rec
}

func (d *daemon) status() api.Status {
	d.t.Helper()
	s, err := d.client().Status(context.Background())
	must.NoError(d.t, err)
	return s
}

// inferscope runs the client and returns what it wrote and its exit code.
func (d *daemon) inferscope(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.Command(program(d.t, "inferscope"), append([]string{"--socket", d.socket}, args...)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.t.Fatal(err)
	}
	return out.String(), complaint.String(), cmd.ProcessState.ExitCode()
}

// A terminal that closes stops the daemon in order; under nohup it goes on.
func TestDaemonIsHungUp(t *testing.T) {
	t.Parallel()
	child.NoticesHangup(t)
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "until { launch 10; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, probesOnly...)
	must.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	if code := d.exitCode(); code != 0 {
		t.Errorf("it ended with %d, want 0", code)
	}
	if n := cudasim.ChangedText(t, v.PID, "libcuda.so"); n != 0 {
		t.Errorf("%d bytes of the text are changed", n)
	}
	command := []string{"nohup", program(t, "inferscoped"), "--pid", fmt.Sprint(v.PID)}
	d = launchBy(t, nil, command, probesOnly...)
	d.waitLog("ready")
	must.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	before := v.Truth().Count("cuLaunchKernel")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuLaunchKernel") > before+100 })
	d.recording(v.PID)
	d.stop()
	unharmed(t, v)
}
