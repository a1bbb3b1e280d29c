package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// result is what a person sees of a run.
type result struct {
	code           int
	stdout, stderr string
}

func runWith(environ []string, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), process{args: args, environ: environ, stdout: &stdout, stderr: &stderr})
	return result{code, stdout.String(), stderr.String()}
}

func TestBadFlags(t *testing.T) {
	many := []string{}
	for i := range maxTargets + 1 {
		many = append(many, "--pid", strconv.Itoa(i+1))
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--exit-with-target"}, "no process to watch"},
		{[]string{"--allow", "python"}, `"python" is not KEY=PATTERN`},
		{[]string{"--discover", "--exit-with-target"}, "does not go with --discover"},
		{many, "at most 64, not 65"},
		{[]string{"--pid", "abc"}, `--pid: "abc" is not a whole number`},
		{[]string{"--pid", "0"}, "0 is not a process id"},
		{[]string{"--pid", "-5"}, "-5 is not a process id"},
		{[]string{"--pid", "4194305"}, "not a process id"},
		{[]string{"--pid", "1", "--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"1234"}, `"1234" is not understood`},
		{[]string{"--pid", "1", "--keep", "0s"}, "--keep: 0s is out of range"},
		{[]string{"--pid", "1", "--keep", "25h"}, "out of range"},
		{[]string{"--pid", "1", "--ring-mb", "0"}, "--ring-mb: 0 is out of range"},
		{[]string{"--pid", "1", "--trace-size-mb", "0"}, "--trace-size-mb: 0 is not between 1 and 65536"},
		{[]string{"--pid", "1", "--trace-size-mb", "lots"}, "--trace-size-mb: \"lots\" is not a whole number"},
		{[]string{"--pid", "1", "--log-level", "loud"}, "--log-level"},
		{[]string{"--pid", "1", "--cpu-sampling-frequency-hz", "2001"}, "--cpu-sampling-frequency-hz: 2001 is not between 0 and 2000"},
		{[]string{"--pid", "1", "--log-format", "xml"}, `--log-format: "xml" is not known`},
		{[]string{"--pid", "1", "--probe-mode", "kprobe"}, `--probe-mode: "kprobe" is not known`},
		{[]string{"--pid", "1", "--gpu", "sometimes"}, `"sometimes" is no mode`},
		{[]string{"--pid", "1", "--gpu-window", "1ms"}, "a window of 1ms is too short"},
		{[]string{"--pid", "1", "--gpu-window", "2s"}, "a window every 2s is out of range"},
		{[]string{"--pid", "1", "--cupti", strings.Repeat("x", 480)}, "too long"},
		{[]string{"--pid", "1", "--metrics-addr", "host"}, `--metrics-addr "host"`},
	} {
		t.Run(strings.Join(c.args[:min(4, len(c.args))], " "), func(t *testing.T) {
			r := runWith(nil, c.args...)
			if r.code != int(clierror.Usage) || r.stdout != "" {
				t.Errorf("code %d, stdout %q, want a usage error", r.code, r.stdout)
			}
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			if !strings.HasPrefix(lines[0], "inferscoped: ") || !strings.Contains(lines[0], c.says) {
				t.Errorf("error %q does not say %q", lines[0], c.says)
			}
			if len(lines) < 2 || lines[1] == "" {
				t.Error("no hint follows the error")
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	r := runWith([]string{"INFERSCOPE_TRACE_SIZE_MB=lots"}, "--pid", "1")
	if r.code != int(clierror.Usage) ||
		!strings.Contains(r.stderr, `INFERSCOPE_TRACE_SIZE_MB: "lots" is not a whole number`) {
		t.Errorf("code %d: %s", r.code, r.stderr)
	}
}

func TestBadSettingsFile(t *testing.T) {
	t.Chdir(t.TempDir())
	must.NoError(t, os.WriteFile(".inferscope.yaml", []byte("cpu_sampling_frequency_hz: 5000\n"), 0o600))
	r := runWith(nil, "--pid", "1")
	if r.code != int(clierror.Usage) ||
		!strings.Contains(r.stderr, ".inferscope.yaml: cpu_sampling_frequency_hz: 5000 is not between 0 and 2000") {
		t.Errorf("code %d: %s", r.code, r.stderr)
	}
	// The environment goes over it; then the missing process is what is wrong.
	r = runWith([]string{"INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ=0"}, "--exit-with-target")
	if r.code != int(clierror.Usage) || !strings.Contains(r.stderr, "no process to watch") {
		t.Errorf("code %d: %s", r.code, r.stderr)
	}
}

func TestVersionAndHelpAreData(t *testing.T) {
	r := runWith(nil, "--version")
	if r.code != 0 || !strings.HasPrefix(r.stdout, "inferscoped ") || r.stderr != "" {
		t.Errorf("--version: %+v", r)
	}
	r = runWith([]string{"INFERSCOPE_SOCKET=/x/y.sock"}, "--help")
	if r.code != 0 || !strings.Contains(r.stdout, "--exit-with-target") || !strings.Contains(r.stdout, "/x/y.sock") ||
		r.stderr != "" {
		t.Errorf("--help: %+v", r)
	}
}

func TestSwitchedOffDoesNothingLoudly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	notify := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	must.NoError(t, err)
	defer l.Close()
	r := runWith([]string{"INFERSCOPE_ENABLED=0", "NOTIFY_SOCKET=" + notify}, "--pid", "1", "--socket", socket)
	if r.code != 0 || !strings.Contains(r.stderr, "switched off by INFERSCOPE_ENABLED=0") {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("a socket was made")
	}
	buf := make([]byte, 200)
	if n, err := l.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "READY=1\n") {
		t.Errorf("the service manager was told %q, %v", buf[:n], err)
	}
}

func TestProcessesThatCannotBeWatched(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Skipf("cannot run true: %v", err)
	}
	for name, c := range map[string]struct {
		pid  int
		says string
	}{
		"a kernel thread": {2, "kernel thread"},
		"no such process": {dead.Process.Pid, strconv.Itoa(dead.Process.Pid)},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s.sock")
			r := runWith(nil, "--pid", strconv.Itoa(c.pid), "--socket", socket)
			first, _, _ := strings.Cut(r.stderr, "\n")
			if r.code != int(clierror.NoProcess) || !strings.Contains(first, c.says) {
				t.Errorf("code %d: %s", r.code, r.stderr)
			}
			if _, err := os.Stat(socket); err == nil {
				t.Error("the socket stays behind")
			}
		})
	}
}

func TestSecondDaemon(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	socket := filepath.Join(t.TempDir(), "s.sock")
	l, err := api.Listen(socket)
	must.NoError(t, err)
	defer l.Close()
	r := runWith(nil, "--pid", strconv.Itoa(os.Getpid()), "--socket", socket)
	if r.code != int(clierror.Busy) ||
		!strings.Contains(r.stderr, fmt.Sprintf("pid %d already serves %s", os.Getpid(), socket)) {
		t.Errorf("code %d: %s", r.code, r.stderr)
	}
}

// lines collects what is written, for several goroutines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestDaemonOnARealProcess(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	target := exec.Command("sleep", "1000")
	if err := target.Start(); err != nil {
		t.Skipf("cannot run sleep: %v", err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	socket := filepath.Join(t.TempDir(), "s.sock")
	var log lines
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan int)
	go func() {
		ended <- run(ctx, process{
			args:    []string{"--pid", strconv.Itoa(target.Process.Pid), "--socket", socket, "--log-format", "json", "--metrics-addr", ":0", "--cpu-cycles"},
			environ: []string{"INFERSCOPE_TRACE_SIZE=7"}, stdout: io.Discard, stderr: &log,
		})
	}()
	for !strings.Contains(log.String(), `"msg":"ready"`) { // a hang here is the failure
		select {
		case code := <-ended:
			t.Fatalf("ended with %d before it was ready: %s", code, log.String())
		case <-time.After(time.Millisecond):
		}
	}
	if !strings.Contains(log.String(), "did you mean INFERSCOPE_TRACE_SIZE_MB?") {
		t.Errorf("no warning of a misspelt setting: %s", log.String())
	}
	client, err := api.Dial(socket)
	must.NoError(t, err)
	targets, err := client.Targets(ctx)
	if err != nil || len(targets) != 1 || targets[0].Comm != "sleep" || targets[0].State != api.Waiting {
		t.Errorf("targets = %+v, %v", targets, err)
	}
	rec, err := client.Recording(ctx, uint32(target.Process.Pid), api.Window{Last: time.Second})
	if err != nil || len(rec.Meta.Processes) != 1 {
		t.Errorf("recording = %+v, %v", rec, err)
	}
	// By default it says of a process that sleeps that it sleeps, and on what.
	if n := len(rec.Events); n == 0 || rec.Events[n-1].Kind != event.OffCPU ||
		rec.Events[n-1].Func != unix.SYS_CLOCK_NANOSLEEP {
		t.Errorf("events = %+v", rec.Events)
	}
	for _, name := range []string{"cuda calls", "cpu samples", "scheduling", "host pressure"} {
		if !slices.ContainsFunc(rec.Meta.Sources, func(s recording.Source) bool { return s.Name == name }) {
			t.Errorf("there is no source %q: %+v", name, rec.Meta.Sources)
		}
	}
	for _, source := range rec.Meta.Sources {
		if source.Name == "cpu samples" && !strings.Contains(source.Detail, "cycles") { // also where it counts none
			t.Errorf("asked for cycles, the samples are by %s", source.Detail)
		}
	}
	scrape(t, log.String())
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("ended with %d: %s", code, log.String())
	}
	if err := target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target is gone: %v", err)
	}
}

func scrape(t *testing.T, log string) {
	t.Helper()
	_, rest, _ := strings.Cut(log, `"address":"`)
	url, _, _ := strings.Cut(rest, `"`)
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("metrics are served at %q, want this machine only", url)
	}
	resp, err := http.Get(url)
	must.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), `inferscope_target_up{comm="sleep"`) {
		t.Errorf("metrics: %v\n%s", err, body)
	}
}

// TestMain lets the test binary be the daemon itself, for a test that runs it as another user, and what the daemon
// starts itself as.
func TestMain(m *testing.M) {
	if os.Getenv("INFERSCOPED_BE_THE_DAEMON") != "" || len(os.Args) > 1 && helpers()[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestWithoutPrivilegesItNamesTheMissingCapability(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	self, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	dir, err := os.MkdirTemp("", "inferscoped") // t.TempDir lets no other user in
	must.NoError(t, err)
	defer os.RemoveAll(dir)
	must.NoError(t, os.Chmod(dir, 0o755))
	binary := filepath.Join(dir, "inferscoped")
	must.NoError(t, os.WriteFile(binary, self, 0o755))
	cmd := exec.Command(binary, "--pid", "1", "--socket", filepath.Join(dir, "s.sock"))
	cmd.Env = []string{"INFERSCOPED_BE_THE_DAEMON=1"}
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 40001, Gid: 40001}}
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != int(clierror.Permission) {
		t.Errorf("exit code %d, want %d: %v: %s", code, clierror.Permission, err, out)
	}
	for _, name := range []string{"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"} {
		if first, _, _ := strings.Cut(string(out), "\n"); !strings.Contains(first, name) {
			t.Errorf("the error does not name %s: %s", name, out)
		}
	}
}
