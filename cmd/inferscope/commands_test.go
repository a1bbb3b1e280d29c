package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// want checks how a command ended; each text must stand in what it said to people.
func want(t *testing.T, r result, code clierror.Code, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; it said: %s", r.code, code, r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			t.Errorf("stderr lacks %q:\n%s", text, r.stderr)
		}
	}
	if code != clierror.OK && r.stdout != "" {
		t.Errorf("a failed command wrote data: %q", r.stdout)
	}
	if code != clierror.OK && !strings.HasPrefix(r.stderr, "inferscope: ") {
		t.Errorf("stderr does not say who speaks: %q", r.stderr)
	}
}

func TestNoDaemon(t *testing.T) {
	socket := socketPath(t)
	for _, command := range []string{"report", "status", "targets"} {
		r := at(t, socket, command)
		want(t, r, clierror.NoDaemon, "inferscope: no daemon answers on "+socket, "sudo inferscoped")
	}
	r := at(t, socket, "version")
	want(t, r, clierror.OK, "no daemon answers")
	if !strings.HasPrefix(r.stdout, "inferscope  ") || strings.Contains(r.stdout, "inferscoped") {
		t.Errorf("version without a daemon says %q", r.stdout)
	}
}

func TestPermissionDenied(t *testing.T) {
	socket := refuse(t)
	for _, args := range [][]string{{"report"}, {"report", "--pid", "5"}, {"status"}, {"targets", "--json"}} {
		want(t, at(t, socket, args...), clierror.Permission, "user 7 owns none", "ask as root (sudo)")
	}
}

func TestUnknownTarget(t *testing.T) {
	want(t, at(t, serve(t, newFakeDaemon()), "report", "--pid", "4321"), clierror.NoProcess, "4321",
		"sudo inferscoped --pid 4321")
}

func TestBadFlags(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	tests := []struct {
		args string
		text string
	}{
		{"report --pid x", "--pid"},
		{"report --pid 0", "not a process id"},
		{"report --pid -3", "not a process id"},
		{"report --pid 99999999", "not a process id"},
		{"report --last 5", "--last"},
		{"report --last -5s", "not a duration above 0"},
		{"report --for 0s", "not a duration above 0"},
		{"report --for 2h --pid 1234", "longer than the 1m0s"},
		{"report --last 5s --for 5s", "cannot be used together"},
		{"report --json --format text", "cannot be used together"},
		{"report --format yaml", `does not write "yaml"`},
		{"report 1234 5", "at most 1 arg"},
		{"status 1234", `does not understand "1234"`},
		{"report report.go", "inferscope analyze report.go makes the report of a recording"},
		{"report --nonsense", "see inferscope report --help"},
		{"status --pid 1", "see inferscope status --help"},
		{"nonsense", "see inferscope --help"},
		{"reprot", "do you mean inferscope report?"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			want(t, at(t, socket, strings.Fields(tt.args)...), clierror.Usage, tt.text)
		})
	}
}

func TestTargets(t *testing.T) {
	d := newFakeDaemon()
	d.targets[0].Comm = "py\x1b[31mthon"
	socket := serve(t, d)
	r := at(t, socket, "targets")
	want(t, r, clierror.OK)
	for _, text := range []string{"1234", "py?[31mthon", "watching", "12.5 s", "python infer.py"} {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("no %q in:\n%s", text, r.stdout)
		}
	}
	var got []api.Target
	if err := json.Unmarshal([]byte(at(t, socket, "targets", "--json").stdout), &got); err != nil || len(got) != 1 ||
		got[0].PID != 1234 {
		t.Errorf("--json gives %+v, %v", got, err)
	}
}

func TestNoTargets(t *testing.T) {
	d := newFakeDaemon()
	d.targets = nil
	socket := serve(t, d)
	r := at(t, socket, "targets")
	want(t, r, clierror.OK, "watches no process")
	if r.stdout != "" {
		t.Errorf("stdout = %q, want nothing: there is no data", r.stdout)
	}
	if got := at(t, socket, "targets", "--json").stdout; strings.TrimSpace(got) != "[]" {
		t.Errorf("--json gives %q, want []", got)
	}
	want(t, at(t, socket, "report"), clierror.NoProcess, "watches no process", "sudo inferscoped")
}

func TestStatus(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	r := at(t, socket, "status")
	want(t, r, clierror.OK)
	for _, text := range []string{
		"inferscoped 1.2.3", "pid 77 for 100 s", "500 ms of CPU time (0.5% of a core)", "45.0 MB of memory",
		"67.1 MB of kernel memory", "780,000 events in 50.0 MB of 100 MB, reaching back 42.0 s",
		"Events were dropped because a CPU's ring buffer was full (7; cpu 1)", "python", "cuda",
		"/lib/libcuda.so.1", "10 to 33 times more", "running: probes are attached by session, ", "and stay",
		"unavailable: nvidia-smi is not installed here", ", to its end",
		"12 recordings on the disk, 34.0 MB, of 26 made; 3 deleted by quota or age, not uploaded; 2 lost, " +
			"as they had just begun; up to 10 s are missing where the recorder was killed, once; " +
			"a stretch was not written: no room",
		"9 recordings, 12 to go; 4 attempts failed",
		"0 NVIDIA H200 540 W 61 1755 MHz 98% 5.00 GB of 80.0 GB power limit, too hot (hardware)",
		"0 PCIe 12.3 GB/s 40 MB/s",
		"H200 - - 345 MHz - 0 B of 80.0 GB", "Xid 31 (a kernel used an address that is not mapped) of GPU 1 2 times",
	} {
		if !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), text) {
			t.Errorf("no %q in:\n%s", text, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "NVLink") || strings.Contains(r.stdout, "\x1b[31m") {
		t.Errorf("a link that no GPU tells of, or an escape of a GPU's name, in:\n%s", r.stdout)
	}
	var got api.Status
	if err := json.Unmarshal([]byte(at(t, socket, "status", "--json").stdout), &got); err != nil || got.PID != 77 ||
		len(got.Libraries) != 1 {
		t.Errorf("--json gives %+v, %v", got, err)
	}
}

func TestVersion(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	r := at(t, socket, "version")
	want(t, r, clierror.OK)
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) != 2 ||
		!strings.HasPrefix(lines[1], "inferscoped ") {
		t.Errorf("version says %q, want a line for each program", r.stdout)
	}
	var got versions
	if err := json.Unmarshal([]byte(at(t, socket, "version", "--json").stdout), &got); err != nil ||
		got.Daemon == nil ||
		got.Client.Go == "" {
		t.Errorf("--json gives %+v, %v", got, err)
	}
}

func TestSocketFlagGoesOverTheEnvironment(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	r := inferscope(t.Context(), []string{"INFERSCOPE_SOCKET=/nowhere"}, "targets", "--socket", socket)
	want(t, r, clierror.OK)
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	r := inferscope(t.Context(), []string{"INFERSCOPE_SOKET=/x"}, "version")
	want(t, r, clierror.OK, "INFERSCOPE_SOKET is not known", "INFERSCOPE_SOCKET")
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := at(t, "/nowhere", "completion", shell); r.code != clierror.OK ||
			!strings.Contains(r.stdout, "inferscope") {
			t.Errorf("completion %s: code %d, %d bytes", shell, r.code, len(r.stdout))
		}
	}
	if r := at(t, "/nowhere", "__complete", "report", "--format", ""); !strings.Contains(r.stdout, "markdown") {
		t.Errorf("--format completes to %q", r.stdout)
	}
}

func TestNotADaemon(t *testing.T) {
	socket := answer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	want(t, at(t, socket, "report", "--pid", "1"), clierror.General, "reading the daemon's answer")
	want(t, at(t, socket, "status"), clierror.General)
}

func TestStatusAgainAndAgain(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	r := inferscope(ctx, []string{"INFERSCOPE_SOCKET=" + socket}, "status", "--watch=100ms")
	if n := strings.Count(r.stdout, "inferscoped 1.2.3"); r.code != clierror.OK || n < 2 {
		t.Errorf("it ended with %d after %d pages", r.code, n)
	}
	want(t, at(t, socket, "status", "--watch=1ms"), clierror.Usage, "--watch")
}
