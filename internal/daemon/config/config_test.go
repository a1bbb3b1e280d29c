package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func everything(Setting) bool { return true }

func flags(kv map[string]string) Values { return Values{Where: Flag, ByKey: kv} }

func TestDefaultsAreAsPromised(t *testing.T) {
	got, err := Load(everything)
	must.NoError(t, err)
	want := Settings{
		Enabled: true, LogLevel: "info", TraceSizeMB: 100, SyncErrorMarginUS: 1000,
		ReportFormat: "markdown", ReportPath: "./report.md", CPUSamplingHz: 99,
		TriggerExit: true, TriggerCooldown: "5m", TriggerPerDay: 24,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
}

func TestOrder(t *testing.T) {
	file := Values{Where: func(k string) string { return ".inferscope.yaml: " + k }, ByKey: map[string]string{
		"trace_size_mb": "3", "log_level": "error", "single_gpu": "true",
	}}
	env := Environment{"INFERSCOPE_TRACE_SIZE_MB=2", "INFERSCOPE_LOG_LEVEL=warn", "INFERSCOPE_SINGLE_GPU="}
	got, err := Load(everything, flags(map[string]string{"trace_size_mb": "1"}), env, file)
	must.NoError(t, err)
	if got.TraceSizeMB != 1 {
		t.Errorf("trace_size_mb = %d, want the flag's 1", got.TraceSizeMB)
	}
	if got.LogLevel != "warn" {
		t.Errorf("log_level = %q, want the environment's warn", got.LogLevel)
	}
	if !got.SingleGPU {
		t.Error("single_gpu: an empty variable hid the file's true")
	}
}

func TestLastOfTwoVariablesWins(t *testing.T) {
	got, err := Load(everything, Environment{"INFERSCOPE_TRACE_SIZE_MB=5", "INFERSCOPE_TRACE_SIZE_MB=6"})
	if err != nil || got.TraceSizeMB != 6 {
		t.Errorf("trace_size_mb = %d, %v, want 6", got.TraceSizeMB, err)
	}
}

func TestBadValues(t *testing.T) {
	for env, says := range map[string]string{
		"INFERSCOPE_ENABLED=maybe":                  `"maybe" is neither true nor false`,
		"INFERSCOPE_LOG_LEVEL=loud":                 "debug, info, warn, error",
		"INFERSCOPE_TRACE_SIZE_MB=100MB":            "not a whole number",
		"INFERSCOPE_TRACE_SIZE_MB=0":                "not between 1 and 65536",
		"INFERSCOPE_TRACE_SIZE_MB=65537":            "not between",
		"INFERSCOPE_REPORT_FORMAT=pdf":              "markdown, html, json",
		"INFERSCOPE_CUDA_VERSION=12.x":              "not a version",
		"INFERSCOPE_CUDA_VERSION=1.2.3.4":           "not a version",
		"INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ=2001": "not between 0 and 2000",
		"INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ=-1":   "not between 0 and 2000",
		"INFERSCOPE_SYNC_ERROR_MARGIN_US=1e3":       "not a whole number",
		"INFERSCOPE_SINGLE_GPU=2":                   "neither true nor false",
	} {
		t.Run(env, func(t *testing.T) {
			_, err := Load(everything, Environment{env})
			if clierror.CodeOf(err) != clierror.Usage {
				t.Fatalf("error = %v, want a usage fault", err)
			}
			name, _, _ := strings.Cut(env, "=")
			if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), says) {
				t.Errorf("error %q does not name %s and say %q", err, name, says)
			}
			if clierror.HintOf(err) == "" {
				t.Error("no hint")
			}
		})
	}
}

func TestValuesThatAreTaken(t *testing.T) {
	got, err := Load(everything, Environment{
		"INFERSCOPE_ENABLED=OFF", "INFERSCOPE_LOG_LEVEL= Debug ", "INFERSCOPE_CUDA_VERSION=12.4.1",
		"INFERSCOPE_SINGLE_GPU=1",
	})
	must.NoError(t, err)
	if got.Enabled || got.LogLevel != "debug" || got.CUDAVersion != "12.4" || !got.SingleGPU {
		t.Errorf("got %+v", got)
	}
}

func TestDaemonIgnoresTheClientsSettings(t *testing.T) {
	if _, err := Load(ForDaemon, Environment{"INFERSCOPE_REPORT_FORMAT=pdf"}); err != nil {
		t.Errorf("a bad setting of the client stopped the daemon: %v", err)
	}
	format := func(s Setting) bool { return s.Key == "report_format" }
	got, err := Load(format, Environment{"INFERSCOPE_REPORT_FORMAT=json", "INFERSCOPE_TRACE_SIZE_MB=x"})
	if err != nil || got.ReportFormat != "json" {
		t.Errorf("report_format = %q, %v", got.ReportFormat, err)
	}
}

func TestWarnings(t *testing.T) {
	got := Environment{
		"PATH=/bin", "INFERSCOPE_TRACE_SIZE=5", "INFERSCOPE_LOGLEVEL=debug", "INFERSCOPE_QWXYZ=1",
		"INFERSCOPE_SOCKET=/x", "INFERSCOPE_ENABLED=1", "INFERSCOPE_" + strings.Repeat("A", 1<<20) + "=1",
	}.Warnings()
	if len(got) != 4 {
		t.Fatalf("%d warnings, want 4", len(got))
	}
	want := []string{
		"INFERSCOPE_LOGLEVEL is not known and does nothing; did you mean INFERSCOPE_LOG_LEVEL?",
		"INFERSCOPE_QWXYZ is not known and does nothing",
		"INFERSCOPE_TRACE_SIZE is not known and does nothing; did you mean INFERSCOPE_TRACE_SIZE_MB?",
	}
	if d := cmp.Diff(want, got[1:]); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestEverySettingIsNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range all() {
		if s.Env != prefix+strings.ToUpper(s.Key) {
			t.Errorf("%s: variable %s does not follow from the key", s.Key, s.Env)
		}
		if seen[s.Key] || s.Means == "" {
			t.Errorf("%s: twice, or without a meaning", s.Key)
		}
		seen[s.Key] = true
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("true", "info", "100", "12.4")
	f.Add("", "\x00", "9999999999999999999999", "..")
	fuzzing.Run(f, func(t *testing.T, enabled, level, size, cuda string) {
		s, err := Load(everything, flags(map[string]string{
			"enabled": enabled, "log_level": level, "trace_size_mb": size, "cuda_version": cuda,
		}))
		if err == nil && (s.TraceSizeMB < 1 || s.TraceSizeMB > 65536 || s.LogLevel == "") {
			t.Errorf("accepted %+v", s)
		}
	})
}

func ExampleEnvironment_Warnings() {
	fmt.Println(Environment{"INFERSCOPE_TRACE_SIZ_MB=5"}.Warnings()[0])
	// Output: INFERSCOPE_TRACE_SIZ_MB is not known and does nothing; did you mean INFERSCOPE_TRACE_SIZE_MB?
}

func TestVisibleGPUs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"} {
		must.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for env, want := range map[string]int{
		"": 3, "CUDA_VISIBLE_DEVICES=0": 1, "CUDA_VISIBLE_DEVICES=1, 2": 2,
		"CUDA_VISIBLE_DEVICES=": 0, "CUDA_VISIBLE_DEVICES=-1": 0,
		"CUDA_VISIBLE_DEVICES=0,-1,1": 1, "CUDA_VISIBLE_DEVICES=0,1,2,3,4": 3, "CUDA_VISIBLE_DEVICES=GPU-8932f937": 1,
		"CUDA_VISIBLE_DEVICES=MIG-1b8bd92d-43d7,MIG-7b2c1d3e-99aa": 1,
	} {
		if got := (Environment{env}).VisibleGPUs(dir); got != want {
			t.Errorf("%q: %d, want %d", env, got, want)
		}
	}
	if got := (Environment{}).VisibleGPUs(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("without a driver: %d", got)
	}
}
