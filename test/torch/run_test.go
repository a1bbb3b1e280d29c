package torch

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// The program of test/gpu/programs, which names each step of a workload with a scope, and how far a report's median may
// be from what the program measured itself.
const (
	scopeName = "llm_inference"
	tolerance = 0.05
)

// TestRunDebiansPyTorch starts the three workloads that people were promised under `inferscope run`, on the CPU, and
// holds the report against what the program says of itself.
func TestRunDebiansPyTorch(t *testing.T) {
	watch.NeedRoot(t)
	if out, err := exec.Command(debianPython, "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("needs tool python3-torch (scripts/install-deps.sh judges): %v\n%s", err, out)
	}
	runWorkloads(t, debianPython)
}

// TestRunTheInterpretersPyTorch is the same with another PyTorch, and with transformers where it is installed.
func TestRunTheInterpretersPyTorch(t *testing.T) {
	watch.NeedRoot(t)
	python := os.Getenv("TORCH_PYTHON")
	if python == "" {
		t.Skip("TORCH_PYTHON names no interpreter: make test-torch does, and installs PyTorch from PyPI for it")
	}
	runWorkloads(t, python)
}

func runWorkloads(t *testing.T, python string) {
	t.Helper()
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "github.com/inferscope/inferscope/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	must.Run(t, build)
	for _, w := range []struct {
		name  string
		steps string
		frame string // some of the CPU's time is in a file of such a name
	}{
		{"gpt2", "12", "torch"}, {"resnet50", "10", "torch"}, {"minilm", "8", "torch"},
	} {
		t.Run(w.name, func(t *testing.T) {
			m, own := runScoped(t, bin, python, w.name, w.steps)
			checkScoped(t, m, own)
			if !slices.ContainsFunc(
				m.CPU.Functions,
				func(f cpu.Function) bool { return strings.Contains(f.File, w.frame) },
			) {
				t.Errorf("no sample is in %s: %+v", w.frame, m.CPU.Functions)
			}
			t.Logf("%s: median %.1f ms; %s", w.name, float64(m.Diagnosis.Iterations.P50)/1e6, m.Diagnosis.Headline)
		})
	}
}

// measured is what a program says of itself.
type measured struct {
	Steps int
	NS    []uint64
}

// runScoped runs a workload and returns its report, and what it printed.
func runScoped(t *testing.T, bin, python, name, steps string) (*report.Model, measured) {
	t.Helper()
	dir := t.TempDir()
	programs, err := filepath.Abs("../gpu")
	must.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "inferscope"), "run", "--report", "r.json",
		"--", python, "-m", "programs.scoped", name, steps)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "INFERSCOPE_SOCKET="+filepath.Join(dir, "none.sock"),
		"PYTHONPATH="+programs+":"+filepath.Join(programs, "../../python"))
	cmd.WaitDelay = watch.Timeout
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	began := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("inferscope run ended with %v after %v:\n%s", err, time.Since(began), &said)
	}
	var own measured
	var m report.Model
	text, err := os.ReadFile(filepath.Join(dir, "r.json"))
	if err := errors.Join(err, json.Unmarshal(out.Bytes(), &own)); err != nil {
		t.Fatalf("%v; it wrote %q and said %s", err, &out, &said)
	}
	must.NoError(t, json.Unmarshal(text, &m))
	return &m, own
}

// checkScoped holds a report against what the program said.
func checkScoped(t *testing.T, m *report.Model, own measured) {
	t.Helper()
	if !m.Target.Exited || m.Target.Ending == nil || m.Target.Ending.Code != 0 {
		t.Errorf("the report says that the program ended like this: %+v", m.Target)
	}
	count := uint64(0)
	for _, r := range m.GPU.Ranges {
		if r.Name == scopeName {
			count = r.Count
		}
	}
	if own.Steps == 0 || count != uint64(own.Steps) {
		t.Errorf("%d scopes in the report, and the program left %d", count, own.Steps)
	}
	it := m.Diagnosis.Iterations
	if it == nil || !it.Named || !strings.Contains(it.Source, scopeName) || it.Count != count {
		t.Fatalf("the iterations are %+v", it)
	}
	slices.Sort(own.NS)
	low, high := own.NS[(len(own.NS)-1)/2], own.NS[len(own.NS)/2]
	if p50 := float64(it.P50); p50 < float64(low)*(1-tolerance) || p50 > float64(high)*(1+tolerance) {
		t.Errorf("the median is %d ns, and the program measured %d", it.P50, low)
	}
	b, sum := m.Diagnosis.Breakdown, uint64(0)
	for _, p := range b.Parts {
		sum += p.Time
	}
	if sum != b.Time || b.Time == 0 {
		t.Errorf("the parts take %d ns of %d", sum, b.Time)
	}
	if m.Diagnosis.Verdict != diagnose.CPUOnly {
		t.Errorf("the verdict is %s", m.Diagnosis.Verdict)
	}
}
