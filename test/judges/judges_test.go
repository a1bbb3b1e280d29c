// Package judges has other people's tools judge what is exported and imported: HolisticTraceAnalysis, Perfetto's
// published schema, pprof, and files that real profilers wrote. A tool that is not there is skipped, with the reason.
//
// The Python ones need an interpreter with HolisticTraceAnalysis 0.5.0 and perfetto 0.59.1, named by
// INFERSCOPE_JUDGES_PYTHON:
//
//	python3 -m venv v && v/bin/pip install HolisticTraceAnalysis==0.5.0 perfetto==0.59.1
//	INFERSCOPE_JUDGES_PYTHON=v/bin/python go test ./test/judges
package judges

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/report/export"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const pythonEnv = "INFERSCOPE_JUDGES_PYTHON"

// judge runs a script of this folder, which prints JSON, and skips the test where the package that it needs is missing.
func judge(t *testing.T, pkg, script, file string, into any) {
	t.Helper()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skipf("%s is not set: name a Python that has %s", pythonEnv, pkg)
	}
	if out, err := exec.Command(python, "-c", "import "+pkg).CombinedOutput(); err != nil {
		t.Skipf("%s has no %s: %s", python, pkg, lastLine(out))
	}
	cmd := exec.Command(python, script, file)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, errors.String())
	}
	if err := json.Unmarshal([]byte(lastLine(out)), into); err != nil {
		t.Fatalf("%s printed %q: %v", script, out, err)
	}
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// exported writes a recording to a file.
func exported(t *testing.T, rec *recording.Recording, format string) string {
	t.Helper()
	f, ok := export.Find(format)
	if !ok {
		t.Fatal(format)
	}
	path := filepath.Join(t.TempDir(), "trace"+f.Extension)
	out, err := os.Create(path)
	must.NoError(t, err)
	defer out.Close()
	must.NoError(t, f.Write(out, rec))
	return path
}

// recordings are what the judges look at: made ones, and real ones of torch.profiler.
func recordings(t *testing.T) map[string]*recording.Recording {
	t.Helper()
	out := map[string]*recording.Recording{"made": exporttest.Decode(200)}
	files, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(files) == 0 {
		t.Fatal("no traces in testdata", err)
	}
	more, err := filepath.Glob(os.Getenv("INFERSCOPE_JUDGES_TRACES"))
	must.NoError(t, err)
	for _, f := range append(files, more...) {
		rec, err := importer.Open(f)
		must.NoError(t, err)
		out[filepath.Base(f)] = rec
	}
	return out
}

// idle is how long the GPU ran nothing between its first activity and its last, and how long that is, in µs.
func idle(rec *recording.Recording) (idle, whole float64) {
	t := timeline.Build(rec)
	var spans []timeline.Span
	for i := range t.Activities {
		spans = append(spans, timeline.Span{From: t.Activities[i].Start, To: t.Activities[i].End})
	}
	busy := timeline.Join(spans)
	length := busy[len(busy)-1].To - busy[0].From
	return float64(length-busy.Total()) / 1e3, float64(length) / 1e3
}

// TestHolisticTraceAnalysis holds that its breakdowns run on our Kineto export and that its idle time is ours within
// 1%.
func TestHolisticTraceAnalysis(t *testing.T) {
	for name, rec := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			var its struct {
				Idle       float64  `json:"idle_us"`
				Kernel     float64  `json:"kernel_us"`
				Categories []string `json:"idle_categories"`
				Rows       int      `json:"kernel_rows"`
				Launches   int      `json:"launches"`
			}
			judge(t, "hta", "hta_judge.py", exported(t, rec, "kineto"), &its)
			ours, whole := idle(rec)
			t.Logf("idle: ours %.1f µs of %.1f, HolisticTraceAnalysis %.1f of %.1f; %+v",
				ours, whole, its.Idle, its.Kernel, its)
			if math.Abs(its.Idle-ours) > 0.01*ours || math.Abs(its.Kernel-whole) > 0.01*whole {
				t.Error("it differs by more than 1%")
			}
			// Launches are not asked for: it counts those of the runtime only, and the made recording has driver calls.
			if len(its.Categories) == 0 || its.Rows == 0 {
				t.Error("a breakdown is empty")
			}
		})
	}
}

// TestPerfettoSchema decodes the trace with Perfetto's published schema, and counts.
func TestPerfettoSchema(t *testing.T) {
	for name, rec := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			var its struct {
				Problems []string       `json:"problems"`
				Counts   map[string]int `json:"counts"`
				Idle     int            `json:"idle_tracks"`
			}
			judge(t, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto_judge.py",
				exported(t, rec, "perfetto"), &its)
			t.Logf("%+v", its.Counts)
			for _, p := range its.Problems {
				t.Error(p)
			}
			tl := timeline.Build(rec)
			kernels, linked := 0, map[int32]bool{}
			for i := range tl.Activities {
				if tl.Activities[i].Kind == timeline.Kernel {
					kernels++
				}
				if op := tl.Activities[i].Op; op != timeline.None {
					linked[op] = true
				}
			}
			if its.Counts["slices of kernel"] != kernels || its.Counts["gpu_render_stage_event"] != kernels {
				t.Errorf("%d slices and %d render stages for %d kernels",
					its.Counts["slices of kernel"], its.Counts["gpu_render_stage_event"], kernels)
			}
			if its.Counts["flows whole"] != len(linked) || its.Idle != len(tl.Devices) ||
				its.Counts["slices of gap"] == 0 {
				t.Errorf("%d whole flows for %d linked calls; %d idle tracks for %d devices; %d gaps",
					its.Counts["flows whole"], len(linked), its.Idle, len(tl.Devices),
					its.Counts["slices of gap"])
			}
		})
	}
}

// TestPprofTool reads the profile with the pprof that comes with Go.
func TestPprofTool(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go tool")
	}
	rec := exporttest.Decode(50)
	path := exported(t, rec, "pprof")
	for index, want := range map[string]string{
		"cpu": "forward", "cpu_gpu_idle": "tokenize", "gpu": "gemm", "off_cpu": "blocked",
	} {
		out, err := exec.Command(goTool, "tool", "pprof", "-top", "-sample_index="+index, path).CombinedOutput()
		if err != nil && strings.Contains(string(out), "no such tool") {
			t.Skip("this Go has no pprof")
		}
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("-sample_index=%s: %v, no %q in\n%s", index, err, want, out)
		}
	}
}

// TestNsys reads a SQLite file that a real Nsight Systems wrote, named by INFERSCOPE_NSYS_SQLITE, and holds its
// kernels, samples and switches against SQLite's own counts.
func TestNsys(t *testing.T) {
	path := os.Getenv("INFERSCOPE_NSYS_SQLITE")
	if path == "" {
		t.Skip("INFERSCOPE_NSYS_SQLITE is not set: name a file of nsys export --type sqlite")
	}
	rec, err := importer.Open(path)
	must.NoError(t, err)
	counts := map[event.Kind]int{}
	for i := range rec.Events {
		counts[rec.Events[i].Kind]++
	}
	t.Logf("%v, %d stacks, sources %+v", counts, len(rec.Meta.Stacks), rec.Meta.Sources)
	for kind, table := range map[event.Kind]string{
		event.Kernel: "CUPTI_ACTIVITY_KIND_KERNEL", event.Sample: "COMPOSITE_EVENTS",
		event.Copy: "CUPTI_ACTIVITY_KIND_MEMCPY",
	} {
		if want := rowsOf(t, path, table); counts[kind] != want {
			t.Errorf("%d events for %d rows of %s", counts[kind], want, table)
		}
	}
	if err := timeline.Build(rec).Check(); err != nil {
		t.Error(err)
	}
}
