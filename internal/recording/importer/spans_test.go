package importer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// traceRow is a row of a trace that a test makes.
type traceRow struct {
	Ph   string         `json:"ph"`
	Cat  string         `json:"cat"`
	Name string         `json:"name"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	TS   int            `json:"ts"`
	Dur  int            `json:"dur"`
	Args map[string]any `json:"args,omitempty"`
}

func readRows(t testing.TB, rows []traceRow, limits importer.Limits) *recording.Recording {
	t.Helper()
	text, err := json.Marshal(map[string]any{"traceEvents": rows})
	must.NoError(t, err)
	rec, err := importer.ReadKineto(strings.NewReader(string(text)), limits)
	must.NoError(t, err)
	return rec
}

// stackAt is the names of the frames of the last event of a thread at a time, the root first.
func stackAt(rec *recording.Recording, tid uint32, ns uint64) []string {
	stack := uint64(0)
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Sample && e.TID == tid && e.TS <= ns {
			stack = e.Args[0]
		}
	}
	out := []string{}
	for at := int32(stack) - 1; at >= 0; at = rec.Meta.Stacks[at].Parent {
		out = append(out, rec.Meta.Frames[rec.Meta.Stacks[at].Frame].Name)
	}
	slices.Reverse(out)
	return out
}

// TestSpansAreStacks compares the stacks of random nested rows with those that the rows have at random times.
func TestSpansAreStacks(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var rows []traceRow
		var nest func(tid, from, to, depth int)
		nest = func(tid, from, to, depth int) {
			for at := from + rng.IntN(5); at < to && depth < 5; {
				end := min(to, at+1+rng.IntN(max(1, (to-from)/2)))
				category := []string{"cpu_op", "python_function", "user_annotation"}[rng.IntN(3)]
				rows = append(rows,
					traceRow{"X", category, fmt.Sprintf("f%d", rng.IntN(20)), 9, tid, at, end - at, nil})
				nest(tid, at, end, depth+1)
				at = end + rng.IntN(10)
			}
		}
		nest(1, 100, 1000, 0)
		nest(2, 100, 1000, 0)
		want := slices.Clone(rows) // the outer before the inner, as they were made
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		rec := readRows(t, rows, importer.DefaultLimits())
		for range 200 {
			tid, ns := 1+rng.IntN(2), uint64(100_000+rng.IntN(900_000))
			names := map[string]bool{}
			n := 0
			for _, r := range want {
				if r.TID == tid && uint64(r.TS)*1000 <= ns && ns < uint64(r.TS+r.Dur)*1000 {
					names[r.Name] = true
					n++
				}
			}
			got := stackAt(rec, uint32(tid), ns)
			if len(got) != n || slices.ContainsFunc(got, func(s string) bool { return !names[s] }) {
				t.Fatalf("seed %d: at %d ns thread %d is in %v, want the %d of %v", seed, ns, tid, got, n, names)
			}
		}
	}
}

// TestFramesOfRows holds that rows of torch.profiler's Python tracer have their file and line, and that what is
// installed is told from the program's own.
func TestFramesOfRows(t *testing.T) {
	rec := readRows(t, []traceRow{
		{"X", "python_function", "train.py(12): main", 9, 9, 0, 100, nil},
		{"X", "python_function", "torch/nn/modules/module.py(1501): _call_impl", 9, 9, 1, 90, nil},
		{"X", "python_function", "threading.py(300): wait", 9, 9, 2, 80, nil},
		{"X", "python_function", "<built-in method acquire of _thread.lock object at 0x7f0a>", 9, 9, 3, 70, nil},
		{"X", "cpu_op", "aten::mm", 9, 9, 4, 60, nil},
		{"X", "cpu_op", "Optimizer.step#SGD.step", 9, 9, 5, 50, nil},
	}, importer.DefaultLimits())
	want := []recording.Frame{
		{Kind: recording.PythonFrame, Name: "main", File: "train.py", Line: 12},
		{
			Kind: recording.PythonFrame,
			Name: "_call_impl",
			File: "/site-packages/torch/nn/modules/module.py",
			Line: 1501,
		},
		{Kind: recording.PythonFrame, Name: "wait", File: "/lib/python3/threading.py", Line: 300},
		{Kind: recording.NativeFrame, Name: "<built-in method acquire of _thread.lock object>", File: "python"},
		{Kind: recording.NativeFrame, Name: "aten::mm", File: "libtorch_cpu.so"},
		{Kind: recording.PythonFrame, Name: "Optimizer.step#SGD.step"},
	}
	if !slices.Equal(rec.Meta.Frames, want) {
		t.Errorf("frames %+v, want %+v", rec.Meta.Frames, want)
	}
}

// TestShortSpansGiveWay holds that too many rows cost the shortest of them, and that this is said.
func TestShortSpansGiveWay(t *testing.T) {
	rows := []traceRow{{"X", "cpu_op", "long", 9, 9, 0, 100_000, nil}}
	for i := range 5000 {
		rows = append(rows, traceRow{"X", "cpu_op", "short", 9, 9, i * 10, 1 + i%5, nil})
	}
	rec := readRows(t, rows, importer.Limits{Bytes: 1 << 20, Events: 1000, Names: 1 << 20})
	if len(rec.Events) > 1000 {
		t.Errorf("%d events, the limit is 1000", len(rec.Events))
	}
	if got := stackAt(rec, 9, 99_000_000); !slices.Equal(got, []string{"long"}) {
		t.Errorf("after all short rows the thread is in %v", got)
	}
	if !slices.ContainsFunc(
		rec.Meta.Sources,
		func(s recording.Source) bool { return strings.Contains(s.Detail, "shortest rows of operators") },
	) {
		t.Errorf("what was left out is not said: %+v", rec.Meta.Sources)
	}
}

// TestStepsHaveOneName holds that steps of an engine are ranges of one name, whatever is in their batches.
func TestStepsHaveOneName(t *testing.T) {
	rec := readRows(t, []traceRow{
		{"X", "user_annotation", "execute_16_context_0(sq0sk0)_generation_16(sq16sk8209)", 9, 9, 0, 100, nil},
		{"X", "user_annotation", "execute_context_1(888_788544)_generation_0(0)", 9, 9, 200, 100, nil},
		{"X", "user_annotation", "step[DECODE bs=32]", 9, 9, 400, 100, nil},
		{"X", "user_annotation", "step[EXTEND bs=15 toks=15360]", 9, 9, 600, 100, nil},
		{"X", "user_annotation", "execute_plan", 9, 9, 800, 100, nil},
	}, importer.DefaultLimits())
	if want := []string{"execute", "step[DECODE]", "step[EXTEND]", "execute_plan"}; !slices.Equal(
		rec.Meta.GPU.Ranges, want,
	) {
		t.Errorf("ranges %q, want %q", rec.Meta.GPU.Ranges, want)
	}
}
