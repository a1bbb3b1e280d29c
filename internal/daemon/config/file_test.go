package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func own() uint32 { return uint32(os.Geteuid()) }

func TestFile(t *testing.T) {
	path := write(
		t,
		"---\n# a comment\ntrace_size_mb: 250   # MB\nlog_level: \"debug\" # quoted\r\n\ncpu_sampling_frequency_hz: '199'\nreport_path: a#b\ncuda_version:\n",
		0o644,
	)
	f, err := ReadFile(path, own())
	must.NoError(t, err)
	want := map[string]string{
		"trace_size_mb":             "250",
		"log_level":                 "debug",
		"cpu_sampling_frequency_hz": "199",
		"report_path":               "a#b",
		"cuda_version":              "",
	}
	if d := cmp.Diff(want, f.ByKey); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	if len(f.Warnings) != 0 {
		t.Errorf("warnings = %q", f.Warnings)
	}
	// The order of the layers: flag, environment, file, default.
	for _, c := range []struct {
		flag, env string
		want      int
	}{{"1000", "499", 1000}, {"", "499", 499}, {"", "", 199}} {
		typed := map[string]string{}
		if c.flag != "" {
			typed["cpu_sampling_frequency_hz"] = c.flag
		}
		got, err := Load(ForDaemon, flags(typed), Environment{"INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ=" + c.env}, f)
		if err != nil || got.CPUSamplingHz != c.want || got.TraceSizeMB != 250 {
			t.Errorf("flag %q, environment %q: %d Hz, %d MB, %v",
				c.flag, c.env, got.CPUSamplingHz, got.TraceSizeMB, err)
		}
	}
}

func TestNoFile(t *testing.T) {
	f, err := ReadFile(filepath.Join(t.TempDir(), FileName), own())
	if err != nil || len(f.ByKey) != 0 || len(f.Warnings) != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

// A key that nobody knows is an error that names the nearest one.
func TestUnknownKeys(t *testing.T) {
	for text, hint := range map[string]string{
		"trace_size: 7":       "did you mean trace_size_mb?",
		"log_levels: debug":   "did you mean log_level?",
		"zzzzzzzzzzzzzzzz: 1": "the keys are enabled, log_level,",
	} {
		_, err := ReadFile(write(t, "enabled: true\n"+text+"\n", 0o600), own())
		if clierror.CodeOf(err) != clierror.Usage || !strings.Contains(err.Error(), ":2: ") ||
			!strings.Contains(err.Error(), "is not known") ||
			!strings.HasPrefix(clierror.HintOf(err), hint) {
			t.Errorf("%q gives %v, %q, want %q", text, err, clierror.HintOf(err), hint)
		}
	}
}

// Every value says where it comes from.
func TestExplain(t *testing.T) {
	f, err := ReadFile(write(t, "trace_size_mb: 250\nlog_level: debug\nreport_path: r.md\n", 0o600), own())
	must.NoError(t, err)
	s, origins, err := Explain(everything, flags(map[string]string{"log_level": "error"}),
		Environment{"INFERSCOPE_TRACE_SIZE_MB=300", "INFERSCOPE_LOG_LEVEL=warn"}, f)
	if err != nil || s.TraceSizeMB != 300 || s.LogLevel != "error" || s.ReportPath != "r.md" ||
		len(origins) != len(all()) {
		t.Fatalf("%+v, %d origins, %v", s, len(origins), err)
	}
	want := map[string]string{
		"log_level":     "--log-level",
		"trace_size_mb": "INFERSCOPE_TRACE_SIZE_MB",
		"report_path":   ": report_path",
		"report_format": "",
	}
	for _, o := range origins {
		if w, ok := want[o.Key]; ok && !strings.HasSuffix(o.Where, w) || w == "" && o.Where != "" {
			t.Errorf("%s comes from %q, want %q", o.Key, o.Where, w)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for text, says := range map[string]string{
		"trace_size_mb":              ":1: \"trace_size_mb\" is no `key: value`",
		"enabled: 1\n  b: 2":         ":2: ",
		"- a":                        "is no `key: value`",
		"trace_size_mb:5":            "is no `key: value`",
		"report_path: [a]":           "is no plain value",
		"report_path: \"a":           "cannot be read",
		"log_level: x\nlog_level: y": ":2: log_level stands there twice",
	} {
		_, err := ReadFile(write(t, text, 0o600), own())
		if clierror.CodeOf(err) != clierror.Usage || !strings.Contains(err.Error(), says) ||
			clierror.HintOf(err) == "" {
			t.Errorf("%q gives %v, want a usage fault that says %q", text, err, says)
		}
	}
	f, err := ReadFile(write(t, "trace_size_mb: lots\n", 0o600), own())
	if err == nil {
		_, err = Load(ForDaemon, f)
	}
	if err == nil || !strings.Contains(err.Error(), FileName+": trace_size_mb: \"lots\" is not a whole number") {
		t.Errorf("a bad value gives %v", err)
	}
}

// A file that somebody else has put there is not heeded, and the user is told.
func TestForeignFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.NoError(t, unix.Mkfifo(pipe, 0o600))
	real := write(t, "log_level: debug\n", 0o600)
	link := filepath.Join(t.TempDir(), "link")
	must.NoError(t, os.Symlink(real, link))
	for name, c := range map[string]struct {
		path  string
		owner uint32
	}{
		"another's":         {real, own() + 1},
		"group may write":   {write(t, "log_level: debug\n", 0o660), own()},
		"anybody may write": {write(t, "log_level: debug\n", 0o606), own()},
		"pipe":              {pipe, own()},
		"symlink":           {link, own()},
		"folder":            {t.TempDir(), own()},
		"too large":         {write(t, strings.Repeat("#", maxFile+1), 0o600), own()},
	} {
		f, err := ReadFile(c.path, c.owner)
		if err != nil || len(f.ByKey) != 0 || len(f.Warnings) != 1 ||
			!strings.Contains(f.Warnings[0], "is not heeded") {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func FuzzEntry(f *testing.F) {
	for _, s := range []string{"a: b", "a: 'b' # c", "", "---", "# x", "a:", "a: \"", "ä: 1"} {
		f.Add(s)
	}
	fuzzing.Run(f, func(t *testing.T, line string) {
		key, value, err := entry(line)
		if err == nil &&
			(len(key)+len(value) > len(line) || !strings.Contains(line, key) || !strings.Contains(line, value)) {
			t.Errorf("%q gives %q and %q", line, key, value)
		}
	})
}

// TestRootTakesNoPaths: a path in a file that others than root can have written is dropped, and said; other settings
// stay.
func TestRootTakesNoPaths(t *testing.T) {
	if own() != 0 {
		t.Skip("needs root: it makes files of another user")
	}
	const other = 1000
	for name, c := range map[string]struct {
		file, dir int
		mode      os.FileMode
		why       string // "": it is heeded
	}{
		"root's":                   {0, 0, 0o755, ""},
		"another's":                {other, 0, 0o755, "it belongs to user 1000"},
		"in another's directory":   {0, other, 0o755, "its directory belongs to user 1000"},
		"in a directory for all":   {0, 0, 0o1777, "others may write to its directory"},
		"in another's shared one":  {other, other, 0o777, "it belongs to user 1000"},
		"in a directory of a team": {0, 0, 0o775, ""},
	} {
		path := write(t, "report_path: /etc/cron.d/x\ntrace_size_mb: 250\n", 0o644)
		dir := filepath.Dir(path)
		if err := errors.Join(os.Chown(path, c.file, c.file), os.Chown(dir, c.dir, c.dir), unix.Chmod(dir, uint32(c.mode))); err != nil {
			t.Fatal(err)
		}
		f, err := ReadFile(path, 0, other)
		if err != nil || len(f.Warnings) != 0 {
			t.Fatalf("%s: %q, %v", name, f.Warnings, err)
		}
		warnings := f.DropPaths()
		_, there := f.ByKey["report_path"]
		switch {
		case f.ByKey["trace_size_mb"] != "250":
			t.Errorf("%s: the other settings are %q", name, f.ByKey)
		case c.why == "" && (!there || len(warnings) != 0):
			t.Errorf("%s is dropped: %q", name, warnings)
		case c.why != "" && (there || len(warnings) != 1 || !strings.Contains(warnings[0], "report_path is ignored, because "+c.why)):
			t.Errorf("%s: %q, warnings %q", name, f.ByKey, warnings)
		}
	}
}
