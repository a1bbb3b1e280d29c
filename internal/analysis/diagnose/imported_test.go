package diagnose_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/collectives"
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
		fmt.Fprintf(&b, `{"ph":"X","cat":%q,"name":%q,"pid":9,"tid":%d,"ts":%d,"dur":%d,"args":{%s}},`,
			category, name, tid, ts, dur, args)
	}
	for i := range 6 {
		at := 1000 + i*10_000
		row("user_annotation", fmt.Sprintf("ProfilerStep#%d", i), 9, at, 10_000, "")
		row(category, name, 9, at, 8000, "")
		row("cuda_runtime", "cudaLaunchKernel", 9, at+8100, 10, fmt.Sprintf(`"correlation":%d`, i+1))
		fmt.Fprintf(
			&b,
			`{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":%d,"dur":1000,"args":{"device":0,"stream":7,"correlation":%d}},`,
			at+8120,
			i+1,
		)
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

// TestImportedRangesAreCauses holds that rows of operators, functions and annotations say why a GPU was idle, and
// where.
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
			t.Errorf("%s: %s at %q for %.2f of the time, want %s at %q",
				c.name, f.Cause, f.Place, f.Share, c.cause, c.place)
		}
	}
}

// TestImportedAdvice holds that nobody who has a file of another tool is told of the daemon.
func TestImportedAdvice(t *testing.T) {
	text := `{"traceEvents":[{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":1,"dur":900000,"args":{"correlation":1}}]}`
	d := diagnosed(t, text)
	if d.Verdict != diagnose.NotEnough || len(d.Reasons) != 1 ||
		!strings.Contains(d.Reasons[0], "ProfilerActivity.CUDA") {
		t.Errorf("a trace without GPU rows: %s, %q", d.Verdict, d.Reasons)
	}
	for _, r := range d.Reasons {
		if strings.Contains(r, "--gpu") || strings.Contains(r, "daemon") {
			t.Errorf("advice about the daemon: %s", r)
		}
	}
}

// rank is a trace of a rank of a program: in each of twenty steps a kernel computes for some time, and all ranks
// exchange data until the last one has come.
func rank(n int, compute func(step int) int, slowest func(step int) int) string {
	var b strings.Builder
	for i := range 20 {
		at := 1000 + i*6500
		for k, name := range []string{"gemm", "ncclDevKernel_AllReduce_Sum_f16_RING_LL"} {
			start, end := at+20, at+20+compute(i)
			if k == 1 {
				start, end = end, at+20+slowest(i)+200
			}
			id := 2*i + k + 1
			fmt.Fprintf(
				&b,
				`{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":%d,"dur":5,"args":{"correlation":%d}},`,
				at+5*k,
				id,
			)
			fmt.Fprintf(
				&b,
				`{"ph":"X","cat":"kernel","name":%q,"pid":0,"tid":7,"ts":%d,"dur":%d,"args":{"device":%d,"stream":7,"correlation":%d}},`,
				name,
				start,
				end-start,
				n,
				id,
			)
		}
	}
	return fmt.Sprintf(
		`{"distributedInfo":{"rank":%d,"world_size":3},"baseTimeNanoseconds":1700000000000000000,"traceEvents":[%s]}`,
		n,
		strings.TrimSuffix(b.String(), ","),
	)
}

// TestRanks holds that the traces of ranks, which have one pid on three hosts, are one recording of three processes,
// and that the one whom the others wait for is named where it is the same, and only there.
func TestRanks(t *testing.T) {
	for name, late := range map[string]func(step int) int{ // which rank computes for 6 ms, the others for 1 ms
		"rank 2 is always late":  func(int) int { return 2 },
		"ranks are late in turn": func(step int) int { return step % 3 },
	} {
		dir := t.TempDir()
		for n := range 3 {
			compute := func(step int) int {
				if late(step) == n {
					return 6000
				}
				return 1000
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("r%d.json", n)), []byte(rank(n, compute, func(int) int { return 6000 })), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"name":"no trace"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		files, err := importer.Traces(dir)
		if err != nil || len(files) != 4 {
			t.Fatalf("%v, %v", files, err)
		}
		rec, err := importer.OpenAll(t.Context(), files, importer.DefaultLimits(), true)
		if err != nil {
			t.Fatal(err)
		}
		tl := timeline.Build(rec)
		if err := tl.Check(); err != nil || len(tl.Devices) != 3 || len(tl.Processes) != 3 {
			t.Fatalf("%v, %d devices, %d processes", err, len(tl.Devices), len(tl.Processes))
		}
		d := diagnose.New(tl, gap.Build(tl), gpu.Summarize(tl), cpu.SummarizeThreads(tl, tl.Index.Threads()), nil)
		want := "imbalance"
		if late(0) == late(1) {
			want = "straggler"
		}
		skew := collectives.Summarize(tl, nil).Skew
		if skew == nil || skew.Collectives != 20 || skew.Median != 5_000_000 || skew.P99 != 5_000_000 {
			t.Fatalf("%s: %+v, want 20 collectives that begin 5 ms apart", name, skew)
		}
		for i, r := range skew.Ranks {
			last := 0
			for step := range 20 {
				if late(step) == i {
					last++
				}
			}
			if r.Last != last || r.Waited != uint64(20-last)*5_000_000 {
				t.Errorf("%s: rank %d: %+v, want %d times last", name, i, r, last)
			}
		}
		if len(d.Findings) == 0 {
			t.Fatalf("%s: no finding", name)
		}
		f := &d.Findings[0]
		if f.Cause != want || want == "straggler" && !strings.Contains(f.Title, "rank 2") {
			t.Errorf("%s: %s, %q, want %s", name, f.Cause, f.Title, want)
		}
		if want == "straggler" &&
			!strings.Contains(text(f), "While the others waited for it, its GPU computed for 100.0%") {
			t.Errorf("%s: the evidence does not say what the last rank did: %s", name, text(f))
		}
		if want == "imbalance" {
			for _, s := range []string{
				"In 19 steps between collectives in which all 3 ranks took part, the busiest GPU computed for 6.00 ms on average; " +
					"the mean of all GPUs is 2.67 ms.",
				"waited for 190 ms in all because of that, of 200 ms that they waited", // no step is known before the first collective
				"rank 0", "rank 1", "rank 2", "at most",
			} {
				if !strings.Contains(text(f), s) {
					t.Errorf("%s: the evidence lacks %q: %s", name, s, text(f))
				}
			}
		}
		if d.Verdict != diagnose.CommunicationBound { // 5 of 6.5 ms on two of three GPUs
			t.Errorf("%s: verdict %s", name, d.Verdict)
		}
	}
}

// rows is a trace of one thread that launches a kernel in each of a number of rows of 1 ms, all inside of others.
func rows(n int, name string, around ...string) string {
	var b strings.Builder
	row := func(category, name string, ts, dur int) {
		fmt.Fprintf(&b, `{"ph":"X","cat":%q,"name":%q,"pid":9,"tid":9,"ts":%d,"dur":%d},`, category, name, ts, dur)
	}
	for i, a := range around {
		category := "python_function"
		if strings.HasPrefix(a, "ProfilerStep") {
			category = "user_annotation"
		}
		row(category, a, 1000+i, n*1000+500-2*i)
	}
	for i := range n {
		at := 1100 + i*1000
		row("user_annotation", name, at, 900)
		for k, kernel := range []string{"gemm", "norm"} {
			id := 2*i + k + 1
			fmt.Fprintf(
				&b,
				`{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,`+
					`"ts":%d,"dur":10,"args":{"correlation":%d}},`,
				at+100+20*k, id,
			)
			fmt.Fprintf(
				&b,
				`{"ph":"X","cat":"kernel","name":%q,"pid":0,"tid":7,`+
					`"ts":%d,"dur":300,"args":{"device":0,"stream":7,"correlation":%d}},`,
				kernel, at+200+310*k, id,
			)
		}
	}
	return `{"traceEvents":[` + strings.TrimSuffix(b.String(), ",") + `]}`
}

// modules are calls of a module, of which each is around one of the rows that rows makes.
func modules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(
			&b,
			`{"ph":"X","cat":"python_function","name":"nn.Module: GPT_0","pid":9,"tid":9,"ts":%d,"dur":950},`,
			1090+i*1000,
		)
	}
	return b.String()
}

// oneGraph makes all kernels of a trace come from its first call.
func oneGraph(text string) string {
	calls := regexp.MustCompile(`{"ph":"X","cat":"cuda_runtime"[^}]*}},`)
	first := calls.FindString(text)
	text = regexp.MustCompile(`"correlation":\d+`).ReplaceAllString(calls.ReplaceAllString(text, ""), `"correlation":1`)
	return strings.Replace(text, "[", "["+strings.Replace(first, "cudaLaunchKernel", "cudaGraphLaunch", 1), 1)
}

// twoThreads makes another thread do the same on another stream.
func twoThreads(text string) string {
	const begin, end = `{"traceEvents":[`, `]}`
	list := strings.TrimSuffix(strings.TrimPrefix(text, begin), end)
	other := strings.NewReplacer(`"tid":9`, `"tid":10`, `"tid":7`, `"tid":8`, `"stream":7`, `"stream":8`,
		`"correlation":`, `"correlation":1000`).Replace(list)
	return begin + list + "," + other + end
}

// TestLayersAreNoIterations holds that what comes back within one step, or one call of a module, is no iteration.
func TestLayersAreNoIterations(t *testing.T) {
	for _, c := range []struct {
		name   string
		text   string
		source string // "": none
		few    string
	}{
		{"a program's own ranges", rows(20, "decode"), `ranges named "decode"`, ""},
		{"ranges in a call of a module", rows(20, "layer", "run.py(3): main", "nn.Module: GPT_0"), "", ""},
		{"kernels in a step", rows(20, "DataLoader", "ProfilerStep#4"), "", `1 range was named "ProfilerStep"`},
		{"kernels in a call of a module", rows(20, "DataLoader", "nn.Module: GPT_0"), "", ""},
		{"kernels", rows(20, "DataLoader", "run.py(3): main"), "period of the kernel gemm", ""},
		{
			"ranges that launch nothing",
			strings.Replace(rows(20, "DataLoader", "run.py(3): main"), "[", `[`+strings.Repeat(
				`{"ph":"X","cat":"user_annotation","name":"detach_","pid":9,"tid":9,"ts":1050,"dur":1},`, 4), 1),
			"period of the kernel gemm", "",
		},
		{"a call of a module in each", strings.Replace(
			rows(20, "DataLoader", "run.py(3): main"), "[", "["+modules(20), 1,
		), "period of the kernel gemm", ""},
		{"ranges of two threads, each in a call of its own", twoThreads(
			strings.Replace(rows(20, "decode"), "[", "["+modules(20), 1),
		), `ranges named "decode"`, ""},
		{"kernels of one graph", oneGraph(rows(20, "DataLoader")), "", ""},
	} {
		d := diagnosed(t, c.text)
		source := ""
		if d.Iterations != nil {
			source = d.Iterations.Source
		}
		if source != c.source || !strings.HasPrefix(d.Few, c.few) {
			t.Errorf("%s: iterations are %q (%q), want %q", c.name, source, d.Few, c.source)
		}
	}
}
