package diagnose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/importer"
)

// steps is a trace of six steps of 10 ms: each launches a kernel of 1 ms, and is in a row of some category for 8 ms.
func steps(category, name string) string {
	var b strings.Builder
	row := func(category, name string, tid, ts, dur int, args string) {
		fmt.Fprintf(&b, `{"ph":"X","cat":%q,"name":%q,"pid":9,"tid":%d,"ts":%d,"dur":%d,"args":{%s}},`, category, name, tid, ts, dur, args)
	}
	for i := range 6 {
		at := 1000 + i*10_000
		row("user_annotation", fmt.Sprintf("ProfilerStep#%d", i), 9, at, 10_000, "")
		row(category, name, 9, at, 8000, "")
		row("cuda_runtime", "cudaLaunchKernel", 9, at+8100, 10, fmt.Sprintf(`"correlation":%d`, i+1))
		fmt.Fprintf(&b, `{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":%d,"dur":1000,"args":{"device":0,"stream":7,"correlation":%d}},`, at+8120, i+1)
	}
	return `{"traceEvents":[` + strings.TrimSuffix(b.String(), ",") + `]}`
}

// diagnosed makes the diagnosis of a trace.
func diagnosed(t *testing.T, text string) *diagnose.Diagnosis {
	t.Helper()
	rec, err := importer.ReadKineto(strings.NewReader(text), importer.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	tl := timeline.Build(rec)
	return diagnose.New(tl, gap.Build(tl), gpu.Summarize(tl), cpu.SummarizeThreads(tl, tl.Index.Threads()), nil)
}

// TestImportedRangesAreCauses holds that rows of operators, functions and annotations say why a GPU was idle, and where.
func TestImportedRangesAreCauses(t *testing.T) {
	for _, c := range []struct{ category, name, cause, place string }{
		{"Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "preprocessing", "enumerate(DataLoader)"},
		{"cpu_op", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "worker", "enumerate(DataLoader)"},
		{"python_function", "infer.py(12): clean", "python-work", "clean (infer.py:12)"},
		{"python_function", "<built-in method sleep>", "sleep", ""},
		{"cpu_op", "aten::sort", "native-work", "aten::sort"},
		{"python_function", "tokenizers/__init__.py(3): encode", "preprocessing", "encode"},
	} {
		d := diagnosed(t, steps(c.category, c.name))
		if len(d.Findings) == 0 || d.Verdict != diagnose.CPUBound {
			t.Errorf("%s: verdict %s (%v), findings %+v", c.name, d.Verdict, d.Reasons, d.Findings)
			continue
		}
		f := &d.Findings[0]
		if f.Cause != c.cause || !strings.Contains(f.Place, c.place) || f.Share < 0.75 || f.Share > 0.9 {
			t.Errorf("%s: %s at %q for %.2f of the time, want %s at %q", c.name, f.Cause, f.Place, f.Share, c.cause, c.place)
		}
	}
}

// TestImportedAdvice holds that nobody who has a file of another tool is told of the daemon.
func TestImportedAdvice(t *testing.T) {
	text := `{"traceEvents":[{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":1,"dur":900000,"args":{"correlation":1}}]}`
	d := diagnosed(t, text)
	if d.Verdict != diagnose.NotEnough || len(d.Reasons) != 1 || !strings.Contains(d.Reasons[0], "ProfilerActivity.CUDA") {
		t.Errorf("a trace without GPU rows: %s, %q", d.Verdict, d.Reasons)
	}
	for _, r := range d.Reasons {
		if strings.Contains(r, "--gpu") || strings.Contains(r, "daemon") {
			t.Errorf("advice about the daemon: %s", r)
		}
	}
}
