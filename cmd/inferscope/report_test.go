package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestReportOfTheOnlyTarget(t *testing.T) {
	d := newFakeDaemon()
	r := at(t, serve(t, d), "report", "--full")
	want(t, r, clierror.OK)
	if r.stderr != "" {
		t.Errorf("stderr = %q, want nothing", r.stderr)
	}
	for _, text := range []string{"python (pid 1234)", "2 CUDA operations", "cuCtxSynchronize", "cuLaunchKernel"} {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("no %q in:\n%s", text, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "\x1b") {
		t.Error("colour in something that is no terminal")
	}
}

func TestReportNeedsAPIDWhereThereAreSeveral(t *testing.T) {
	d := newFakeDaemon()
	d.targets = append(d.targets, api.Target{PID: 99, Comm: "vllm", State: api.Waiting})
	socket := serve(t, d)
	want(t, at(t, socket, "report"), clierror.Usage, "watches 2 processes: 1234 (python), 99 (vllm)", "--pid")
	want(t, at(t, socket, "report", "--pid", "1234"), clierror.OK)
}

func TestReportWindow(t *testing.T) {
	d := newFakeDaemon()
	socket := serve(t, d)
	want(t, at(t, socket, "report", "--last", "1m30s"), clierror.OK)
	if d.last != 90*time.Second || d.window {
		t.Errorf("the daemon was asked for the last %s", d.last)
	}
	want(t, at(t, socket, "report", "--for", "5"), clierror.Usage, `--for: "5" is not a duration, such as`)
	want(t, at(t, socket, "report", "--pid", "x"), clierror.Usage, `--pid: "x" is not a whole number`)
	want(t, at(t, socket, "report", "--for", "20ms"), clierror.OK)
	if !d.window {
		t.Error("--for did not ask for a window from now on")
	}
}

// kind says in which format a report is.
// TestReportOfAllGPUActivity: it is asked for where that is said, and needs a time to come.
func TestReportOfAllGPUActivity(t *testing.T) {
	d := newFakeDaemon()
	socket := serve(t, d)
	if r := at(t, socket, "report", "--for", "10ms", "--gpu", "continuous"); r.code != clierror.OK ||
		d.continuous.Load() != 1 {
		t.Errorf("code %d, asked for %d times: %s", r.code, d.continuous.Load(), r.stderr)
	}
	for _, args := range [][]string{{"--gpu", "continuous"}, {"--for", "10ms", "--gpu", "windows"}, {"--last", "1s", "--gpu", "continuous"}} {
		if r := at(t, socket, append([]string{"report"}, args...)...); r.code != clierror.Usage {
			t.Errorf("%v: code %d: %s", args, r.code, r.stderr)
		}
	}
	if d.continuous.Load() != 1 {
		t.Error("it was asked for although the flags are off")
	}
}

func kind(s string) string {
	var m report.Model
	switch {
	case json.Unmarshal([]byte(s), &m) == nil && m.Kind == report.Kind:
		return formatJSON
	case strings.HasPrefix(s, "# InferScope report\n"):
		return formatMarkdown
	case strings.HasPrefix(s, "InferScope report\n"):
		return formatText
	case strings.HasPrefix(s, "<!doctype html>\n"):
		return formatHTML
	}
	return "unknown: " + s
}

func TestFormatOfStandardOutput(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	tests := []struct{ env, args, want string }{
		{"", "", formatText},
		{"", "--format json", formatJSON},
		{"", "--json", formatJSON},
		{"", "-f md", formatMarkdown},
		{"", "-o -", formatText},
		{"markdown", "", formatMarkdown},
		{"json", "", formatJSON},
		{"json", "--format text", formatText},
		{"html", "--format text", formatText},
		{"html", "", formatHTML},
		{"", "--format html", formatHTML},
	}
	for _, tt := range tests {
		env := []string{"INFERSCOPE_SOCKET=" + socket, "INFERSCOPE_REPORT_FORMAT=" + tt.env}
		r := inferscope(t.Context(), env, append([]string{"report"}, strings.Fields(tt.args)...)...)
		want(t, r, clierror.OK)
		if got := kind(r.stdout); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
	}
	r := inferscope(t.Context(), []string{"INFERSCOPE_SOCKET=" + socket, "INFERSCOPE_REPORT_FORMAT=nonsense"}, "report")
	want(t, r, clierror.Usage, "INFERSCOPE_REPORT_FORMAT")
}

func TestFormatOfFiles(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	dir := t.TempDir()
	tests := []struct{ name, env, args, want string }{
		{"report.md", "json", "", formatMarkdown},
		{"report.json", "", "", formatJSON},
		{"report.TXT", "", "", formatText},
		{"report.html", "json", "", formatHTML},
		{"report", "", "", formatMarkdown},
		{"report.pdf", "", "", formatMarkdown},
		{"report2", "json", "", formatJSON},
		{"report.json", "", "--format text", formatText}, // over what the former left there
	}
	for _, tt := range tests {
		path := filepath.Join(dir, tt.name)
		env := []string{"INFERSCOPE_SOCKET=" + socket, "INFERSCOPE_REPORT_FORMAT=" + tt.env}
		r := inferscope(t.Context(), env, append([]string{"report", "-o", path}, strings.Fields(tt.args)...)...)
		says := "wrote " + path + "\n"
		if byExtension(path) != tt.want { // the name does not say what it is
			says = "wrote " + path + " as " + tt.want + "\n"
		}
		want(t, r, clierror.OK, says)
		if r.stdout != "" {
			t.Errorf("%+v: it wrote to standard output too", tt)
		}
		got, err := os.ReadFile(path)
		if err != nil || kind(string(got)) != tt.want {
			t.Errorf("%+v: got %s, %v", tt, kind(string(got)), err)
		}
	}
	onlyThese(t, dir, "report", "report.TXT", "report.html", "report.json", "report.md", "report.pdf", "report2")
}

// onlyThese holds that nothing else was left in dir.
func onlyThese(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("%s holds %q, want %q", dir, got, names)
	}
}

func TestNowhereToWrite(t *testing.T) {
	d := newFakeDaemon()
	socket := serve(t, d)
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "missing", "report.md"), dir} {
		want(t, at(t, socket, "report", "-o", path), clierror.General, "writing the output", "choose a file")
	}
	if d.asked != 0 {
		t.Errorf("%d recordings were fetched for a report that could not be written", d.asked)
	}
}

func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full:", err)
	}
	r := at(t, serve(t, newFakeDaemon()), "report", "-o", "/dev/full")
	want(t, r, clierror.General, "no space left on device", "the daemon still has the recording")
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode().IsRegular() {
		t.Errorf("the device was replaced: %v, %v", info, err)
	}
}

func TestAFailureLeavesTheOldReport(t *testing.T) {
	socket := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.PathRecording {
			_, _ = w.Write([]byte(`[{"pid": 1, "state": "watching"}]`))
			return
		}
		w.Header().Set("Content-Type", api.RecordingType)
		_, _ = w.Write([]byte("ISC"))
	})
	dir := t.TempDir()
	path := filepath.Join(dir, "report.md")
	must.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	want(t, at(t, socket, "report", "--pid", "1", "-o", path), clierror.General, "pid 1")
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("the old report became %q", got)
	}
	onlyThese(t, dir, "report.md")
}

func TestALinkStaysALink(t *testing.T) {
	dir := t.TempDir()
	goal, link := filepath.Join(dir, "goal.md"), filepath.Join(dir, "link.md")
	must.NoError(t, os.WriteFile(goal, nil, 0o600))
	must.NoError(t, os.Symlink("goal.md", link))
	want(t, at(t, serve(t, newFakeDaemon()), "report", "-o", link), clierror.OK)
	if to, err := os.Readlink(link); err != nil || to != "goal.md" {
		t.Errorf("the link became %q, %v", to, err)
	}
	if got, _ := os.ReadFile(goal); kind(string(got)) != formatMarkdown {
		t.Errorf("the report is not where the link points: %q", got)
	}
}

func TestInterrupt(t *testing.T) {
	d := newFakeDaemon()
	d.stuck, d.began = true, make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-d.began
		cancel()
	}()
	dir := t.TempDir()
	r := inferscope(ctx, []string{"INFERSCOPE_SOCKET=" + serve(t, d)}, "report", "-o", filepath.Join(dir, "report.md"))
	want(t, r, clierror.General, "interrupted")
	onlyThese(t, dir)
}

// TestClockMargin: flag over environment over file, and a report that says it.
func TestClockMargin(t *testing.T) {
	t.Chdir(t.TempDir())
	must.NoError(t, os.WriteFile(".inferscope.yaml", []byte("sync_error_margin_us: 70\n"), 0o600))
	d := newFakeDaemon()
	d.rec.Meta.GPU = &recording.GPU{Mode: "windows"}
	socket := serve(t, d)
	for _, c := range []struct {
		environ []string
		args    []string
		margin  uint64 // ns
	}{
		{nil, nil, 70_000},
		{[]string{"INFERSCOPE_SYNC_ERROR_MARGIN_US=5"}, nil, 5_000},
		{[]string{"INFERSCOPE_SYNC_ERROR_MARGIN_US=5"}, []string{"--sync-error-margin-us", "3"}, 3_000},
	} {
		r := inferscope(
			t.Context(),
			append(c.environ, "INFERSCOPE_SOCKET="+socket),
			append([]string{"report", "--json"}, c.args...)...)
		want(t, r, clierror.OK)
		var m report.Model
		if err := json.Unmarshal([]byte(r.stdout), &m); err != nil || m.Margin != c.margin {
			t.Errorf("%v %v: a margin of %d ns (%v), want %d", c.environ, c.args, m.Margin, err, c.margin)
		}
	}
	want(t, inferscope(t.Context(), nil, "report", "--sync-error-margin-us", "much"), clierror.Usage,
		"--sync-error-margin-us", "not a whole number")
}

// TestHangup: a terminal that is closed ends a command as Ctrl-C does, and does not where nohup says so.
func TestHangup(t *testing.T) {
	child.NoticesHangup(t)
	for _, nohup := range []bool{false, true} {
		d := newFakeDaemon()
		d.began, d.stuck = make(chan struct{}), true
		cmd, stderr := client(t, "report", "--last", "10s")
		if nohup {
			cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
		}
		cmd.Env = append(cmd.Env, "INFERSCOPE_SOCKET="+serve(t, d))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-d.began
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if ignored := regexp.MustCompile(`SigIgn:\t[0-9a-f]*[13579bdf]\n`).Match(status); ignored != nohup {
			t.Errorf("SIGHUP is ignored: %t, want %t", ignored, nohup)
		}
		if nohup {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			continue
		}
		if err := cmd.Process.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if cmd.ProcessState.ExitCode() != int(clierror.General) || !strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("it ended with %v and said %s", err, stderr)
		}
	}
}
