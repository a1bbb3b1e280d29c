package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// announced is the diagnosis of the report that the first users were shown: an iteration of 87.4 ms, of which
// the CPU's preprocessing takes 31.2, copies to the GPU 18.4, the GPU's computing 24.1 and the framework 13.7.
func announced() diagnose.Diagnosis {
	parts := []diagnose.Part{
		{Key: "preprocessing", Name: "CPU preprocessing", Time: 31_200_000},
		{Key: "h2d", Name: "H2D copy", Busy: true, Time: 18_400_000},
		{Key: "compute", Name: "GPU compute", Busy: true, Time: 24_100_000},
		{Key: "framework", Name: "Framework overhead", Time: 13_700_000},
	}
	for i := range parts {
		parts[i].Share = float64(parts[i].Time) / 87_400_000
		parts[i].Time *= 11
	}
	b := diagnose.Breakdown{Time: 961_400_000, Window: 1_000_000_000, Share: 0.9614, Parts: parts, People: parts}
	return diagnose.Diagnosis{
		Verdict: diagnose.CPUBound,
		Headline: "The GPU ran nothing for 51.4% of the time, most of it while tokenization in encode (infer.py:12) " +
			"ran: 35.7% of the time.",
		Reasons: []string{}, Breakdown: b, Devices: []diagnose.Device{{PID: 1234, Name: "NVIDIA H200", Breakdown: b}},
		Iterations: &diagnose.Iteration{
			Source: "ranges named generate",
			Named:  true,
			Count:  11,
			Mean:   87_400_000,
			P50:    87_200_000,
			P99:    91_000_000,
			Max:    93_300_000,
			PerSec: 11.4,
		},
		Findings: announcedFindings(),
		Together: []diagnose.Together{},
	}
}

func announcedFindings() []diagnose.Finding {
	stack := []string{
		"tokenizers::tokenizer::encode (tokenizers.abi3.so)",
		"encode (infer.py:12)",
		"main (infer.py:40)",
	}
	return []diagnose.Finding{
		{
			Cause: "preprocessing", Title: "Tokenization in encode (infer.py:12) holds up the GPU", Cost: 343_200_000,
			Share: 0.357, Confidence: 0.9,
			Because: []string{
				"97% of it is seen by samples of the thread that launches",
				"all of the time was recorded",
			},
			Evidence: []diagnose.Evidence{
				{Text: "the longest such gap", From: 1_200_000_000, To: 1_231_000_000, Call: stack},
			},
			Changes: []diagnose.Change{
				{
					Where:   "Python",
					Text:    "Tokenize the next batch in another process while the GPU works on this one.",
					Example: "loader = DataLoader(texts, batch_size=32,\n    num_workers=2, collate_fn=tokenize)",
				},
				{Where: "Python", Text: "Use the fast (Rust) tokenizer, on whole batches."},
			},
			Place: "encode (infer.py:12)", PID: 1234, TID: 1234, Thread: "python",
		},
		{
			Cause: "sync-copy", Title: "Copies from pageable memory hold the thread that launches", Cost: 202_400_000,
			Share: 0.21, Confidence: 0.7,
			Because: []string{"each copy is recorded"}, Evidence: []diagnose.Evidence{},
			Changes: []diagnose.Change{
				{
					Where:   "PyTorch",
					Text:    "Pin the input buffers and copy with non_blocking=True.",
					Example: "x = x.pin_memory().to(\"cuda\", non_blocking=True)",
				},
			},
			Place: "main (infer.py:41)", PID: 1234, TID: 1234, Thread: "python",
		},
		{
			Cause: "launch-overhead", Title: "The CPU launches kernels more slowly than the GPU runs them",
			Cost: 150_700_000, Share: 0.157, Confidence: 0.4,
			Because: []string{}, Evidence: []diagnose.Evidence{},
			Changes: []diagnose.Change{
				{
					Where: "PyTorch",
					Text:  "Capture the decoding step in a CUDA graph: torch.compile(mode=\"reduce-overhead\").",
				},
			},
		},
	}
}

func announcedModel() *Model {
	m := New(gpuWindows().Run())
	m.Diagnosis = announced()
	return m
}

func TestAnswerGolden(t *testing.T) {
	m := announcedModel()
	golden(t, "answer.txt", text(t, m, TextOptions{Style: document.Style{Width: 80}}))
	var md bytes.Buffer
	must.NoError(t, Markdown(&md, m))
	golden(t, "answer.md", md.Bytes())
}

// screen is what a terminal of so many lines shows of a text.
func screen(text []byte, lines int) string {
	all := strings.SplitAfter(string(text), "\n")
	return strings.Join(all[:min(lines, len(all))], "")
}

// TestTheFirstScreenHoldsTheAnswer: what is wrong, what it costs, where the time went, and the first change of each of
// the dearest findings.
func TestTheFirstScreenHoldsTheAnswer(t *testing.T) {
	m := announcedModel()
	for width, lines := range map[int]int{80: 36, 120: 32} {
		got := screen(text(t, m, TextOptions{Style: document.Style{Width: width}}), lines)
		flat := strings.Join(strings.Fields(got), " ")
		want := []string{
			"CPU-bound", "87.2 ms end to end (p50; p99 91.0 ms", "generate", "CPU preprocessing", "343 ms",
			"31.2 ms", "35.7%", "none known", "H2D copy", "GPU compute", "Framework overhead",
		}
		for _, f := range m.Diagnosis.Findings {
			want = append(want, f.Title, f.Changes[0].Text)
		}
		for _, w := range want {
			if !strings.Contains(flat, w) {
				t.Errorf("the first %d lines at %d columns lack %q:\n%s", lines, width, w, got)
			}
		}
	}
}

// answerLines is how many lines stand before the first section that goes into detail.
func answerLines(text []byte) int {
	for i, l := range strings.Split(string(text), "\n") {
		switch l {
		case "Losses and doubts",
			"Evidence",
			"The same time by cause",
			"The same time by cause and GPU",
			"What was watched":
			return i
		}
	}
	return -1
}

// TestEveryAnswerFitsAScreen holds that no scenario's answer is longer than a usual terminal window.
func TestEveryAnswerFitsAScreen(t *testing.T) {
	for _, sc := range scenarios() {
		m := New(sc.rec)
		for width, lines := range map[int]int{80: 42, 120: 36} {
			if n := answerLines(text(t, m, TextOptions{Style: document.Style{Width: width}})); n < 0 || n > lines {
				t.Errorf("%s: the answer takes %d lines at %d columns, want %d at most", sc.name, n, width, lines)
			}
		}
	}
}

// TestWithoutGPURecordsNothingIsClaimedOfIt: whoever could not look at the GPU says so, first, and names no GPU in a
// finding.
func TestWithoutGPURecordsNothingIsClaimedOfIt(t *testing.T) {
	for _, sc := range scenarios() {
		m := New(sc.rec)
		if !ofMainThread(m) {
			continue
		}
		if gpuUnobserved(m) != "" && !strings.Contains(string(text(t, m, TextOptions{})), "It is not known whether") {
			t.Errorf("%s does not say what cannot be known", sc.name)
		}
		for _, s := range append([]string{m.Diagnosis.Headline}, titlesOf(m.Diagnosis.Findings)...) {
			if strings.Contains(s, "GPU's queue") || strings.Contains(s, "The GPU waits") ||
				strings.Contains(s, "as the GPU runs") ||
				strings.Contains(s, "holds up the GPU") {
				t.Errorf("%s: nobody saw the GPU, but the report says %q", sc.name, s)
			}
		}
	}
}

func titlesOf(list []diagnose.Finding) []string {
	var out []string
	for i := range list {
		out = append(out, list[i].Title)
	}
	return out
}

// TestLatencySaysWhatItIsOf: of parts of a turn, and of time in which nobody asked for anything.
func TestLatencySaysWhatItIsOf(t *testing.T) {
	it := diagnose.Iteration{
		Source: "period of cuStreamSynchronize",
		Count:  400,
		Mean:   500 * us,
		P50:    400 * us,
		P99:    500 * us,
		Max:    2 * ms,
		PerSec: 2000,
	}
	waits := []diagnose.Part{{Key: "no-work", Share: 0.4}}
	for _, c := range []struct {
		turn  *diagnose.Turn
		named bool
		parts []diagnose.Part
		// outside is the share of the time in which nothing repeats.
		outside float64
		want    string // at the end
	}{
		{want: "2,000/s: period of cuStreamSynchronize"},
		{
			turn: &diagnose.Turn{Of: 20, P50: 9600 * us},
			want: "; after each 20 there is a pause, and they take 9.60 ms together: where these are one iteration " +
				"to you, name it (NVTX)",
		},
		{
			parts: waits,
			want: "; the time in which it waited for something to do is part of it (40.0%), without which it is 300 " +
				"µs on average",
		},
		{parts: waits, named: true, want: "2,000/s: period of cuStreamSynchronize"},
		{parts: waits, outside: 0.8, want: "period of cuStreamSynchronize; all of them within 200 ms"},
	} {
		m := &Model{}
		it.Outside, it.To = c.outside, 200*ms
		m.Diagnosis.Iterations, m.Diagnosis.Breakdown.Parts = &it, c.parts
		it.Turn, it.Named = c.turn, c.named
		if got := latencyText(m); !strings.HasSuffix(got, c.want) {
			t.Errorf("%q does not end with %q", got, c.want)
		}
	}
}

// TestProgramUpToItsEnd: the time after the end of a program is no time of it.
func TestProgramUpToItsEnd(t *testing.T) {
	m := &Model{}
	m.Summary.Window = summary.Window{From: 100 * ms, To: 700 * ms, Length: 600 * ms, ObservedFrom: 150 * ms, ObservedTo: 400 * ms}
	if got := programText(m); !strings.Contains(got, "; 600 ms") {
		t.Errorf("while it runs: %q", got)
	}
	m.Target.Exited, m.Target.Ending = true, &exitModel{}
	if got := programText(m); !strings.Contains(got, "; 300 ms") {
		t.Errorf("after its end: %q", got)
	}
}

// TestLatencyNamesAmounts: what scopes say that an iteration works on stands behind the rate of iterations.
func TestLatencyNamesAmounts(t *testing.T) {
	it := &diagnose.Iteration{Source: `ranges named "step"`, Count: 30}
	const amounts = `{"amounts":[{"name":"batch","mean":8,"per_second":80},{"name":"tokens","mean":6.25,"per_second":62.5}]}`
	must.NoError(t, json.Unmarshal([]byte(amounts), it))
	m := &Model{}
	m.Diagnosis.Iterations = it
	want := `ranges named "step"; batch 8 each on average, 80.0/s; tokens 6.2 each on average, 62.5/s`
	if got := latencyText(m); !strings.HasSuffix(got, want) {
		t.Errorf("%q does not end with %q", got, want)
	}
}

// TestSpanOfEach holds that a part that takes less than 1 ns of each iteration is not said to take none.
func TestSpanOfEach(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 0.3: "<1 ns", 1: "1 ns", 2371.4: "2.37 µs"} {
		if got := spanOfEach(ns); got != want {
			t.Errorf("%v ns: %q, want %q", ns, got, want)
		}
	}
}

// TestNextText: what limits the program once the first finding is fixed is named by its number, or in words where it is
// no finding yet.
func TestNextText(t *testing.T) {
	m := &Model{Diagnosis: diagnose.Diagnosis{Findings: []diagnose.Finding{
		{Cause: "worker", Gain: &diagnose.Gain{Speedup: 1.8, Low: 1.6, High: 2}}, {Cause: "disk"},
	}}}
	gain := diagnose.Gain{Speedup: 3, Low: 2.5, High: 3.5}
	for next, want := range map[string]string{
		"disk":  "Once finding 1 is fixed (1.80x), finding 2 limits the program. Both fixed: predicted speed-up 3.00x (2.50x to 3.50x).",
		"sleep": "Once finding 1 is fixed (1.80x), the next limit is not a finding yet: the program sleeps (sleep). Both fixed: predicted",
	} {
		got := togetherText(m, &diagnose.Together{Causes: []string{"worker", next}, Next: true, Gain: gain})
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", next, got)
		}
	}
	open := diagnose.Gain{Speedup: 3, Low: 0.7, High: 9}
	unsure := &diagnose.Together{Causes: []string{"worker", "disk"}, Next: true, Gain: open}
	if got := togetherText(m, unsure); got != "" {
		t.Errorf("nothing is predicted: %q", got)
	}
}

// TestRecordingIsTheCallersAgain: when a report is made nothing reads the recording any more, also where what was begun
// for it was not needed, as gains are where there is no finding. It is the race detector that says so.
func TestRecordingIsTheCallersAgain(t *testing.T) {
	for range 5 {
		rec := healthy()
		m := New(rec)
		clear(rec.Events)
		clear(rec.Meta.Functions)
		rec.Meta.Target = 0
		if n := len(m.Diagnosis.Findings); n != 0 {
			t.Fatalf("%d findings: their gains were asked for", n)
		}
	}
}

// TestOptionalSources: a verdict does not suffer where a source is missing on which none rests, and does where one
// does.
func TestOptionalSources(t *testing.T) {
	for optional, want := range map[bool]loss.Severity{true: loss.Info, false: loss.Error} {
		rec := decode().Recording()
		rec.Meta.Sources = []recording.Source{
			{Name: "a source", State: "unavailable", Detail: "no reason", Optional: optional},
		}
		var found loss.Severity
		for _, d := range New(rec).Doubts {
			if d.Reason == sourceDown {
				found = d.Severity
			}
		}
		if found != want {
			t.Errorf("optional %v: %q, want %q", optional, found, want)
		}
	}
}

// An interval that reads as the share itself is left out.
func TestPercentText(t *testing.T) {
	for want, v := range map[string][3]float64{
		"2.0%":                {0.02, 0.0199999, 0.0200001},
		"2.0% (1.0% to 3.0%)": {0.02, 0.01, 0.03},
		"<0.1%":               {0.0001, 0.00001, 0.0002},
	} {
		if got := percentText(v[0], v[1], v[2]); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
