// Package watch lets tests and benchmarks run the real daemon on a process, as a
// user does, and look at the samples that it recorded.
package watch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Timeout is how long anything may take on a slow and busy machine before a test gives up. The verifier alone takes
// the unwinder's programs seconds there, and reading the tables of a PyTorch as many more.
const Timeout = 120 * time.Second

// NeedRoot skips a test that cannot run without root.
func NeedRoot(t testing.TB) {
	t.Helper()
	needs.Root(t, "it loads BPF programs and samples other processes")
}

// Daemon is a running inferscoped.
type Daemon struct {
	Began  time.Time // when it was started
	Memory *Memory   // of it and its helpers
	t      testing.TB
	cmd    *exec.Cmd
	socket string
	log    *os.File
	done   chan error
}

// Start builds the daemon, starts it on a process with flags, and returns once it
// says that it is ready. It ends with the test.
func Start(t testing.TB, pid int, flags ...string) *Daemon {
	t.Helper()
	NeedRoot(t)
	return StartBuilt(t, Build(t, t.TempDir()), pid, flags...)
}

// StartBuilt is Start with a daemon that Build has made.
func StartBuilt(t testing.TB, program string, pid int, flags ...string) *Daemon {
	t.Helper()
	NeedRoot(t)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	must.NoError(t, err)
	d := &Daemon{t: t, socket: filepath.Join(dir, "s"), log: log, done: make(chan error, 1)}
	d.cmd = exec.CommandContext(
		t.Context(),
		program,
		append([]string{"--socket", d.socket, "--pid", strconv.Itoa(pid)}, flags...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.Began = time.Now()
	must.NoError(t, d.cmd.Start())
	d.Memory = follow(d.cmd.Process.Pid)
	go func() { d.done <- d.cmd.Wait() }()
	t.Cleanup(d.cleanup)
	d.Until("inferscoped to be ready", func() bool { return strings.Contains(d.said(), "ready") })
	return d
}

// Build compiles the daemon into a folder and returns its path; what it is made of comes from Go's build cache.
func Build(t testing.TB, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/",
		"github.com/inferscope/inferscope/cmd/inferscoped")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	must.Run(t, cmd)
	return filepath.Join(dir, "inferscoped")
}

func (d *Daemon) said() string {
	text, err := os.ReadFile(d.log.Name())
	must.NoError(d.t, err)
	return string(text)
}

func (d *Daemon) cleanup() {
	d.Memory.close()
	_ = d.cmd.Process.Kill()
	if d.t.Failed() {
		d.t.Logf("inferscoped said:\n%s", d.said())
	}
	_ = d.log.Close()
}

// Until waits until ok, and fails the test if the daemon ends or after Timeout.
func (d *Daemon) Until(what string, ok func() bool) {
	d.t.Helper()
	for end := time.Now().Add(Timeout); !ok(); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-d.done:
			d.t.Fatalf("inferscoped ended (%v) while the test waited for %s:\n%s", err, what, d.said())
		default:
		}
		if time.Now().After(end) {
			d.t.Fatalf("waited %v for %s", Timeout, what)
		}
	}
}

// Recording fetches what the daemon holds about pid within win.
func (d *Daemon) Recording(pid int, win api.Window) *recording.Recording {
	d.t.Helper()
	client := d.client()
	defer client.Close()
	rec, err := client.Recording(context.Background(), uint32(pid), win)
	must.NoError(d.t, err)
	return rec
}

// Status is what the daemon says about itself.
func (d *Daemon) Status() api.Status {
	d.t.Helper()
	client := d.client()
	defer client.Close()
	s, err := client.Status(context.Background())
	must.NoError(d.t, err)
	return s
}

func (d *Daemon) client() *api.Client {
	d.t.Helper()
	client, err := api.Dial(d.socket)
	must.NoError(d.t, err)
	return client
}

// Stop ends the daemon as a service manager does; it must end well.
func (d *Daemon) Stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-d.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || d.cmd.ProcessState.ExitCode() != 0 {
			d.t.Fatalf("inferscoped ended with %v:\n%s", d.cmd.ProcessState, d.said())
		}
	case <-time.After(Timeout):
		d.t.Fatalf("inferscoped does not end:\n%s", d.said())
	}
}
