package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestAnalyzeSaysWhatReportSays: a recording on the disk gives the report of the daemon's data, byte for byte, in every
// format, from the folder and packed.
func TestAnalyzeSaysWhatReportSays(t *testing.T) {
	d := newFakeDaemon()
	socket := serve(t, d)
	dir := t.TempDir()
	folder, zip := filepath.Join(dir, "t.isc"), filepath.Join(dir, "t.isc.zip")
	want(t, at(t, socket, "record", "--for", "10ms", "-o", folder), clierror.OK, "wrote "+folder)
	want(t, inferscope(t.Context(), nil, "pack", folder), clierror.OK, "wrote "+zip)
	for _, format := range formats() {
		live := at(t, socket, "report", "--format", format)
		want(t, live, clierror.OK)
		for _, place := range []string{folder, zip} {
			later := inferscope(t.Context(), nil, "analyze", place, "--format", format)
			want(t, later, clierror.OK)
			if later.stdout != live.stdout {
				t.Errorf("%s of %s differs:\n%s\ninstead of\n%s",
					format, filepath.Base(place), later.stdout, live.stdout)
			}
			if later.stderr != "" {
				t.Errorf("stderr = %q", later.stderr)
			}
		}
	}
	out := filepath.Join(dir, "report.json")
	want(t, inferscope(t.Context(), nil, "analyze", zip, "-o", out), clierror.OK, "wrote "+out)
	if text, err := os.ReadFile(out); err != nil || kind(string(text)) != formatJSON {
		t.Errorf("%s: %v", out, err)
	}
}

func TestRecordRefusesToOverwrite(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	folder := filepath.Join(t.TempDir(), "t.isc")
	want(t, at(t, socket, "record", "--for", "1ms", "-o", folder), clierror.OK)
	want(t, at(t, socket, "record", "--for", "1ms", "-o", folder), clierror.Usage, "is there", "--force")
	want(t, inferscope(t.Context(), nil, "analyze", filepath.Dir(folder)), clierror.Usage, "it has recordings", "query")
	want(t, at(t, socket, "record", "--for", "1ms", "-o", folder, "--force"), clierror.OK)
	want(t, at(t, socket, "record", "--for", "0s", "-o", folder), clierror.Usage, "--for")
	want(t, at(t, socket, "record", "--pid", "99", "-o", folder+"2"), clierror.NoProcess, "99")
	if _, err := os.Stat(folder + "2"); err == nil {
		t.Error("a folder was made for a process that is not watched")
	}
}

// TestCtrlCEndsARecordingWell: it has no --for, so nothing else ends it.
func TestCtrlCEndsARecordingWell(t *testing.T) {
	d := newFakeDaemon()
	socket := serve(t, d)
	folder := filepath.Join(t.TempDir(), "t.isc")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	want(t, inferscope(ctx, []string{"INFERSCOPE_SOCKET=" + socket}, "record", "-o", folder), clierror.OK, "wrote")
	in, err := archive.Inspect(folder, true)
	if err != nil || in.Manifest.State != archive.Complete || in.Manifest.Events() != len(d.rec.Events) {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestInfoAndLs(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	folder := filepath.Join(t.TempDir(), "t.isc")
	want(t, at(t, socket, "record", "--for", "1ms", "-o", folder), clierror.OK)
	info := inferscope(t.Context(), nil, "info", "--verify", folder)
	want(t, info, clierror.OK)
	for _, text := range []string{"pid 1234", "complete", "0 missing, 0 damaged"} {
		if !strings.Contains(info.stdout, text) {
			t.Errorf("info lacks %q:\n%s", text, info.stdout)
		}
	}
	ls := inferscope(t.Context(), nil, "ls", folder)
	want(t, ls, clierror.OK)
	for _, text := range []string{"launches", "calls", "processes", "Bytes/row"} {
		if !strings.Contains(ls.stdout, text) {
			t.Errorf("ls lacks %q:\n%s", text, ls.stdout)
		}
	}
	files, _ := filepath.Glob(filepath.Join(folder, "calls", "*.parquet"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	must.NoError(t, os.Remove(files[0]))
	r := inferscope(t.Context(), nil, "info", folder)
	if r.code != clierror.General || !strings.Contains(r.stderr, "calls/000001.parquet") {
		t.Errorf("code %d: %s", r.code, r.stderr)
	}
	for _, command := range []string{"analyze", "info", "ls", "pack", "unpack"} {
		if r := inferscope(t.Context(), nil, command, folder+".nowhere"); r.code == clierror.OK ||
			!strings.Contains(r.stderr, "nowhere") {
			t.Errorf("%s: code %d: %s", command, r.code, r.stderr)
		}
		want(t, inferscope(t.Context(), nil, command), clierror.Usage, "takes one file")
	}
}
