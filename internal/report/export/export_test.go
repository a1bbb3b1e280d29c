package export_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/report/export"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
)

func write(t testing.TB, rec *recording.Recording, format string) []byte {
	t.Helper()
	f, ok := export.Find(format)
	if !ok {
		t.Fatalf("no format %s", format)
	}
	var b bytes.Buffer
	if err := f.Write(&b, rec); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestEveryFormatIsPure writes each format twice: the bytes are the same, and the recording is untouched.
func TestEveryFormatIsPure(t *testing.T) {
	rec := exporttest.Decode(20)
	rec.Meta.Requests = []recording.Request{{
		PID: rec.Meta.Target, Received: rec.Meta.From, End: rec.Meta.To, Route: "/v1/completions", Status: 200,
		Outcome: "complete",
	}}
	before := slices.Clone(rec.Events)
	for _, f := range export.Formats() {
		first, second := write(t, rec, f.Name), write(t, rec, f.Name)
		if len(first) == 0 || !bytes.Equal(first, second) {
			t.Errorf("%s: %d bytes, then %d others", f.Name, len(first), len(second))
		}
		if found, ok := export.ForPath("x" + f.Extension); !ok || found.Name != f.Name {
			t.Errorf("%s is not found by its extension %s", f.Name, f.Extension)
		}
	}
	if !slices.Equal(before, rec.Events) {
		t.Error("an export changed the recording")
	}
	for _, f := range export.Formats() {
		write(t, &recording.Recording{Meta: recording.Meta{Schema: recording.SchemaVersion}}, f.Name)
	}
}

// relation is what must survive a round trip: what ran, where, when, and which call asked for it.
type relation struct {
	name        string
	start, dur  uint64
	pid, stream uint32
	args        [2]uint64
	call        string
	callStart   uint64
	callTID     uint32
}

func relations(t testing.TB, rec *recording.Recording) (acts []relation, calls []relation) {
	t.Helper()
	tl := timeline.Build(rec)
	if err := tl.Check(); err != nil {
		t.Fatal(err)
	}
	callOf := func(r *relation, op int32) {
		if tl.Ops[op].Via == timeline.Twin {
			op = tl.Ops[op].Parent
		}
		e := tl.RawEvent(&tl.Ops[op])
		r.call, r.callStart, r.callTID = rec.Meta.Functions[e.Func].Name, e.TS, e.TID
	}
	for i := range tl.Activities {
		a := &tl.Activities[i]
		e := &rec.Events[a.Event]
		r := relation{start: e.TS, dur: e.Dur, pid: e.PID, stream: e.TID, args: [2]uint64{e.Args[2], e.Args[3]}}
		if k := tl.Kernel(a); k != nil {
			r.name = k.Name
		}
		if a.Op != timeline.None {
			callOf(&r, a.Op)
		}
		acts = append(acts, r)
	}
	for i := range tl.Ops {
		if tl.Ops[i].Via == timeline.Twin {
			continue
		}
		r := relation{dur: tl.Ops[i].Dur}
		callOf(&r, int32(i))
		calls = append(calls, r)
	}
	return acts, calls
}

// TestKinetoRoundTrip holds that every kernel, copy, call and correlation comes back.
func TestKinetoRoundTrip(t *testing.T) {
	for name, rec := range map[string]*recording.Recording{
		"one process": exporttest.Decode(50), "ids that repeat": exporttest.Repeating(),
		"two processes": exporttest.TwoProcesses(),
	} {
		back, err := importer.ReadKineto(bytes.NewReader(write(t, rec, "kineto")), importer.DefaultLimits())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		acts, calls := relations(t, rec)
		acts2, calls2 := relations(t, back)
		sortAll(acts, acts2, calls, calls2)
		if len(acts) == 0 || len(calls) == 0 {
			t.Fatalf("%s: the test has nothing to lose", name)
		}
		if !slices.Equal(acts, acts2) {
			t.Errorf("%s: activities differ: %d and %d, %+v", name, len(acts), len(acts2), firstDifference(acts, acts2))
		}
		if !slices.Equal(calls, calls2) {
			t.Errorf("%s: calls differ: %d and %d, %+v", name, len(calls), len(calls2), firstDifference(calls, calls2))
		}
		if n := len(timeline.Build(rec).Ranges); n != len(timeline.Build(back).Ranges) {
			t.Errorf("%s: %d ranges became %d", name, n, len(timeline.Build(back).Ranges))
		}
	}
}

// TestKinetoWindows: what lies outside of windows is not recorded in what is imported again either.
func TestKinetoWindows(t *testing.T) {
	rec := exporttest.Decode(50)
	gpu := rec.Meta.GPU
	whole := gpu.Windows[0]
	gpu.Mode, gpu.Windows = "windows", nil
	for _, at := range []uint64{10_000_000, 60_000_000} {
		w := whole
		w.From, w.To = whole.From+at, whole.From+at+20_000_000
		gpu.Windows = append(gpu.Windows, w)
	}
	back, err := importer.ReadKineto(bytes.NewReader(write(t, rec, "kineto")), importer.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	want, got := timeline.Build(rec).Seen[0], timeline.Build(back).Seen[0]
	if len(want.Activity) != 2 || !slices.Equal(want.Activity, got.Activity) || !slices.Equal(want.Calls, got.Calls) {
		t.Errorf("seen %+v, imported again %+v", want, got)
	}
	if back.Meta.GPU.Mode != "windows" {
		t.Errorf("mode %q", back.Meta.GPU.Mode)
	}
}

// TestKinetoWindowsDiagnosis: a recording in windows that is imported again has the same verdict and launch-overhead,
// although nothing shows calls and kernels between windows.
func TestKinetoWindowsDiagnosis(t *testing.T) {
	rec := exporttest.Decode(500)
	gpu := rec.Meta.GPU
	whole := gpu.Windows[0]
	gpu.Mode, gpu.Windows = "windows", nil
	for at := uint64(10_000_000); at < 1_000_000_000; at += 200_000_000 {
		w := whole
		w.From, w.To = whole.From+at, whole.From+at+50_000_000
		gpu.Windows = append(gpu.Windows, w)
	}
	rec.Events = slices.DeleteFunc(rec.Events, func(e event.Event) bool {
		recorded := func(w recording.GPUWindow) bool { return w.From <= e.TS && e.TS < w.To }
		byAgent := e.Kind == event.Kernel || e.Kind == event.Copy || e.Flags&event.Correlated != 0
		return byAgent && !slices.ContainsFunc(gpu.Windows, recorded)
	})
	back, err := importer.ReadKineto(bytes.NewReader(write(t, rec, "kineto")), importer.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	want, got := analysis.Run(rec).Diagnosis, analysis.Run(back).Diagnosis
	launching := func(d *diagnose.Diagnosis) float64 {
		for i := range d.Findings {
			if f := &d.Findings[i]; f.Cause == cause.LaunchOverhead.String() {
				return f.Share
			}
		}
		return 0
	}
	const rounding = 0.02 // of shares, where an iteration begins or ends in a window
	if want.Verdict != diagnose.CPUBound || got.Verdict != want.Verdict ||
		math.Abs(launching(got)-launching(want)) > rounding ||
		math.Abs(got.Breakdown.Share-want.Breakdown.Share) > rounding {
		t.Errorf("%s, launching %.3f in %.3f of the time; imported again %s, %.3f in %.3f",
			want.Verdict, launching(want), want.Breakdown.Share, got.Verdict, launching(got), got.Breakdown.Share)
	}
}

// firstDifference returns the first rows that differ.
func firstDifference(x, y []relation) [2]relation {
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return [2]relation{x[i], y[i]}
		}
	}
	return [2]relation{}
}

func sortAll(lists ...[]relation) {
	for _, l := range lists {
		slices.SortFunc(l, func(a, b relation) int {
			switch {
			case a.callStart != b.callStart:
				return int(int64(a.callStart) - int64(b.callStart))
			case a.start != b.start:
				return int(int64(a.start) - int64(b.start))
			}
			return strings.Compare(a.call+a.name, b.call+b.name)
		})
	}
}

// TestKinetoShape holds what HolisticTraceAnalysis and chrome://tracing need of the JSON.
func TestKinetoShape(t *testing.T) {
	var doc struct {
		SchemaVersion int
		TraceEvents   []map[string]any
	}
	if err := json.Unmarshal(write(t, exporttest.Decode(5), "kineto"), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.SchemaVersion != 1 {
		t.Errorf("schema %d", doc.SchemaVersion)
	}
	begins, ends := map[any]int{}, map[any]int{}
	for _, e := range doc.TraceEvents {
		switch e["ph"] {
		case "X":
			if e["cat"] == nil || e["dur"] == nil || e["ts"] == nil || e["args"] == nil {
				t.Fatalf("a row lacks cat, dur, ts or args: %v", e)
			}
		case "s":
			begins[e["id"]]++
		case "f":
			ends[e["id"]]++
			if e["bp"] != "e" {
				t.Fatalf("an arrow ends without bp: %v", e)
			}
		}
	}
	if len(begins) == 0 || len(ends) == 0 {
		t.Error("no arrows")
	}
	for id := range ends {
		if begins[id] != 1 {
			t.Errorf("arrow %v begins %d times", id, begins[id])
		}
	}
}

// TestJSONL holds the shape that users were shown: ts in seconds with a fraction, func, pid, tid, in the order of time.
func TestJSONL(t *testing.T) {
	rec := exporttest.Decode(5)
	lines := bytes.Split(bytes.TrimSpace(write(t, rec, "jsonl")), []byte("\n"))
	last, kinds := 0.0, map[string]int{}
	for _, l := range lines {
		var e struct {
			TS   *float64 `json:"ts"`
			Func *string  `json:"func"`
			PID  *uint32  `json:"pid"`
			TID  *uint32  `json:"tid"`
			Kind string   `json:"kind"`
		}
		if err := json.Unmarshal(l, &e); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		if e.TS == nil || e.Func == nil || e.PID == nil || e.TID == nil {
			t.Fatalf("a line lacks ts, func, pid or tid: %s", l)
		}
		if *e.TS < last || *e.TS < 1_700_000_000 {
			t.Fatalf("ts %f after %f", *e.TS, last)
		}
		last = *e.TS
		kinds[e.Kind]++
	}
	want := map[event.Kind]string{
		event.Call:   "call",
		event.Kernel: "kernel",
		event.Copy:   "copy",
		event.Sample: "sample",
		event.OffCPU: "off_cpu",
		event.Range:  "range",
	}
	for k, name := range want {
		n := 0
		for i := range rec.Events {
			if rec.Events[i].Kind == k {
				n++
			}
		}
		if n == 0 || kinds[name] != n {
			t.Errorf("%d lines of kind %s for %d events", kinds[name], name, n)
		}
	}
}

// TestJSONLRequests: requests, chunks and steps are lines among the others, in the order of time.
func TestJSONLRequests(t *testing.T) {
	rec := exporttest.Decode(5)
	m := &rec.Meta
	middle := rec.Events[len(rec.Events)/2].TS
	m.Requests = []recording.Request{{
		Number: 7, PID: m.Target, Received: middle, Asked: middle + 1000, FirstToken: middle + 2000,
		LastToken: middle + 12000,
		End:       middle + 20000, Method: "POST", Route: "/v1/completions", Model: "m\"", ID: "cmpl-1", Status: 200,
		Outcome: "complete", Streamed: true, OutputTokens: 11, TokenSource: "usage",
	}}
	m.EngineRequests = []recording.EngineRequest{{
		ID: "cmpl-1-0", PID: 9, Asked: middle + 100, Queued: middle + 300, Scheduled: middle + 600,
		First: middle + 1600, Last: middle + 9600, Finish: "stop",
	}}
	m.Steps = []recording.Step{{
		TS: m.To + 500, Made: m.To + 200, PID: 9, Requests: 3, Tokens: 4, Stats: true, Waiting: 2,
	}}
	rec.Events = append(rec.Events, event.Event{
		TS: rec.Events[len(rec.Events)-1].TS, Dur: 500, Kind: event.RequestChunk, Flags: event.Timed, PID: m.Target,
		TID:  5,
		Args: [4]uint64{7, 2},
	})
	got := map[string]map[string]any{}
	last := 0.0
	for line := range bytes.Lines(write(t, rec, "jsonl")) {
		var e map[string]any
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		ts, _ := e["ts"].(float64)
		if ts < last {
			t.Errorf("ts %f after %f: %s", ts, last, line)
		}
		last = ts
		got[e["kind"].(string)] = e
	}
	for kind, want := range map[string]map[string]any{
		"request": {
			"func": "/v1/completions", "request": 7.0, "model": "m\"", "status": 200.0, "streamed": true,
			"read_us": 1.0, "ttft_us": 2.0, "tpot_us": 1.0, "dur_us": 20.0, "output_tokens": 11.0,
			"token_source": "usage", "outcome": "complete",
		},
		"request_chunk": {"request": 7.0, "parts": 2.0, "dur_us": 0.5, "tid": 5.0},
		"engine_request": {
			"id": "cmpl-1-0", "handed_us": 0.2, "queue_us": 0.5, "prefill_us": 1.0, "decode_us": 8.0, "finish": "stop",
			"pid": 9.0,
		},
		"engine_step": {"requests": 3.0, "tokens": 4.0, "waiting": 2.0, "running": 0.0, "sent_us": 0.3},
	} {
		for key, v := range want {
			if got[kind][key] != v {
				t.Errorf("%s of %s is %v, want %v", key, kind, got[kind][key], v)
			}
		}
	}
	if _, there := got["request"]["input_tokens"]; there {
		t.Error("tokens of which nothing is known are told")
	}
}

// TestPprof reads the profile with pprof's own package.
func TestPprof(t *testing.T) {
	rec := exporttest.Decode(10)
	p, err := profile.Parse(bytes.NewReader(write(t, rec, "pprof")))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	var sums [7]int64
	for _, s := range p.Sample {
		for i, v := range s.Value {
			sums[i] += v
		}
	}
	kernels, time, samples := int64(0), int64(0), int64(0)
	for i := range rec.Events {
		switch e := &rec.Events[i]; e.Kind {
		case event.Kernel:
			kernels, time = kernels+1, time+int64(e.Dur)
		case event.Sample:
			samples++
		}
	}
	if sums[0] != samples || sums[5] != kernels || sums[6] != time {
		t.Errorf("samples %d of %d, kernels %d of %d, time %d of %d", sums[0], samples, sums[5], kernels, sums[6], time)
	}
	if sums[2] == 0 || sums[2] >= sums[1] || sums[4] == 0 {
		t.Errorf("CPU time %d, of it while the GPU was idle %d; off-CPU %d", sums[1], sums[2], sums[4])
	}
}

// TestFolded holds that no sample is lost and that a name cannot break a line.
func TestFolded(t *testing.T) {
	rec := exporttest.Decode(10)
	rec.Meta.Frames[0].Name = "evil;name\nwith 7"
	n := 0
	for line := range strings.Lines(string(write(t, rec, "folded"))) {
		i := strings.LastIndexByte(line, ' ')
		for range strings.TrimSpace(line[i:]) {
			n++
			break
		}
		if !strings.HasPrefix(line, "python;python;") {
			t.Errorf("line %q", line)
		}
	}
	if n == 0 {
		t.Error("no lines")
	}
}

// TestCSV holds that there is a row of each kernel, with the delay from its launch.
func TestCSV(t *testing.T) {
	rec := exporttest.Decode(10)
	rows, err := csv.NewReader(bytes.NewReader(write(t, rec, "csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	kernels := 0
	for i := range rec.Events {
		if rec.Events[i].Kind == event.Kernel {
			kernels++
		}
	}
	if len(rows)-1 != kernels {
		t.Errorf("%d rows for %d kernels", len(rows)-1, kernels)
	}
	delay := slices.Index(rows[0], "launch_to_start_ns")
	for _, r := range rows[1:] {
		if r[delay] == "" || strings.HasPrefix(r[delay], "-") {
			t.Fatalf("delay %q in %v", r[delay], r)
		}
	}
}

// BenchmarkExport writes a million events in each format.
func BenchmarkExport(b *testing.B) {
	rec := exporttest.Decode(1_000_000 / exporttest.PerIteration)
	for _, f := range export.Formats() {
		b.Run(f.Name, func(b *testing.B) {
			var n counter
			for b.Loop() {
				n = 0
				if err := f.Write(&n, rec); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(rec.Events))*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(n)/float64(len(rec.Events)), "bytes/event")
		})
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
