package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// These provoke what docs/operating.md lists under "Failures"; those for want of memory are in failures_memory_test.go,
// crashes and Ctrl-C in run_test.go.

// simulated makes a runner whose programs use the simulated CUDA.
func simulated(t *testing.T, env ...string) (*runner, cudasim.Paths) {
	t.Helper()
	p := cudasim.Build(t)
	return newRunner(t, append(env, "LD_LIBRARY_PATH="+p.LibraryPath(cudasim.Shape580))...), p
}

// model reads a report in JSON.
func (f *finished) model(t *testing.T, path string) report.Model {
	t.Helper()
	var m report.Model
	must.NoError(t, json.Unmarshal([]byte(f.report(t, path)), &m))
	return m
}

// doubt returns a doubt of a report.
func doubt(t *testing.T, m *report.Model, reason loss.Reason) report.Doubt {
	t.Helper()
	for _, d := range m.Doubts {
		if d.Reason == reason {
			return d
		}
	}
	t.Fatalf("the report has no doubt %s: %+v", reason, m.Doubts)
	return report.Doubt{}
}

func TestFailureNoCUDA(t *testing.T) {
	r := newRunner(t)
	f := r.run("sleep", "0.3")
	f.says(t, 0, "warning: the program loaded no CUDA library", "about the CPU only", "wrote ./report.md")
	f.report(t, "report.md", "CPU only", "never mapped a CUDA library")
}

func TestFailureCUPTITaken(t *testing.T) {
	t.Parallel()
	r, p := simulated(t, "CUDASIM_CUPTI_BUSY=1")
	f := r.run("--report", "r.json", "--", p.Victim, "repeat 1500 { launch 10 kernel=gemm_us50; sync; sleep 2ms }")
	f.says(t, 0, "wrote r.json")
	m := f.model(t, "r.json")
	if d := doubt(t, &m, loss.AgentRefused); !strings.Contains(strings.Join(d.Details, " "), "CUPTI") {
		t.Errorf("it does not say why: %+v", d)
	}
	if m.Summary.Operations == 0 {
		t.Error("calls are not recorded either")
	}
}

// TestFailureCUPTIMissing: the program finds no CUPTI, and no toolkit is installed where one is looked for.
func TestFailureCUPTIMissing(t *testing.T) {
	t.Parallel()
	p := cudasim.Build(t)
	r := newRunner(t, "LD_LIBRARY_PATH="+filepath.Dir(p.Libcuda(cudasim.Shape580)))
	f := r.run("--report", "r.json", "--", p.Victim, "repeat 1500 { launch 10 kernel=gemm_us50; sync; sleep 2ms }")
	f.says(t, 0, "wrote r.json", "warning: the agent of a process cannot record",
		"no libcupti was found", "--cupti PATH")
	m := f.model(t, "r.json")
	if d := doubt(t, &m, loss.AgentRefused); !strings.Contains(strings.Join(d.Details, " "), "no libcupti was found") ||
		!strings.Contains(strings.Join(d.Details, " "), "--cupti PATH") {
		t.Errorf("it does not say why: %+v", d)
	}
	if m.Summary.Operations == 0 {
		t.Error("calls are not recorded either")
	}
}

// TestFailureTraceBufferFull: where the memory for events is too small, the report says so, and which setting gives
// more.
func TestFailureTraceBufferFull(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, "until { launch 2 kernel=gemm_us5; sync }")
	// Without a budget: else it depends on the machine how many of the calls are recorded.
	d := startDaemon(t, v.PID, "--trace-size-mb", "1", "--overhead-budget", "0")
	var m *report.Model
	waitFor(t, "events to be overwritten", func() bool {
		m = report.New(d.fetch(v.PID))
		return slices.ContainsFunc(m.Doubts, func(d report.Doubt) bool { return d.Reason == loss.Overwritten })
	})
	if d := doubt(t, m, loss.Overwritten); d.Count == 0 || !strings.Contains(d.Do, "INFERSCOPE_TRACE_SIZE_MB") {
		t.Errorf("the doubt is %+v", d)
	}
	v.Go()
	v.Finish()
}

// TestFailureClockError: records of the GPU begin 3 ms before the calls that asked for them. Where the margin is wider,
// nothing is said.
func TestFailureClockError(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	r, p := simulated(t, "CUDASIM_CUPTI_SKEW_NS=-3000000")
	script := "repeat 900 { launch 10 kernel=gemm_us50; sync; sleep 2ms }"
	f := r.run("--gpu", "continuous", "--report", "r.json", "--", p.Victim, script)
	f.says(t, 0)
	m := f.model(t, "r.json")
	if e := m.GPU.Clock.Error; e < 2_900_000 || e > 3_100_000 {
		t.Errorf("the error found is %d ns, and is 3 ms", e)
	}
	d := doubt(t, &m, "clock_error")
	if said := strings.Join(d.Details, " "); !strings.Contains(said, "margin 1.00 ms") ||
		!strings.Contains(said, "as the uncertainty") ||
		!strings.Contains(d.Do, "check the GPU's clock") {
		t.Errorf("the doubt is %+v", d)
	}
	r.env = append(r.env, "INFERSCOPE_SYNC_ERROR_MARGIN_US=5000")
	f = r.run("--gpu", "continuous", "--report", "s.json", "--", p.Victim, script)
	m = f.model(t, "s.json")
	for _, d := range m.Doubts {
		if d.Reason == "clock_error" {
			t.Errorf("an error within the margin is a doubt: %+v", d)
		}
	}
}

func TestFailureReportCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.write("infer.py", work)
	f := r.run("--report", "no/such/folder/r.md", "--", python(t), "infer.py")
	f.says(t, 1, "warning: writing the output", "the report was not written",
		"the recording is kept in inferscope-", "inferscope analyze inferscope-", "room on the disk")
	kept, err := filepath.Glob(filepath.Join(r.dir, "inferscope-*.isc"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept is %q, %v", kept, err)
	}
	if entries, err := os.ReadDir(kept[0]); err != nil || len(entries) == 0 {
		t.Errorf("the recording is empty: %v", err)
	}
	f = r.run("--report", "no/such/folder/r.md", "--", python(t), "-c", "raise SystemExit(9)")
	f.says(t, 9, "the recording is kept in")
}

func TestFailureSeveralGPUs(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	r, p := simulated(t, "CUDASIM_DEVICES=2")
	// victims use one; what counts is what they see
	script := "repeat 1000 { launch 5 kernel=gemm_us50; sync; sleep 2ms }"
	f := r.run("--gpu", "continuous", "--report", "r.json", "--", p.Victim, script)
	f.says(t, 0)
	m := f.model(t, "r.json")
	if m.GPU == nil || len(m.GPU.Devices) == 0 {
		t.Fatalf("no GPU is analysed: %+v", m.GPU)
	}
	r.env = append(r.env, "INFERSCOPE_SINGLE_GPU=true")
	f = r.run("--gpu", "continuous", "--report", "s.json", "--", p.Victim, script)
	f.says(t, 1, "single_gpu", "CUDA_VISIBLE_DEVICES=0", "the recording is kept in")
}
