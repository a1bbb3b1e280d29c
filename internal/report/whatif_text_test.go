package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
)

// TestSpeedupText: an interval that holds everything is not dressed up as a prediction.
func TestSpeedupText(t *testing.T) {
	for want, p := range map[string]cause.Gain{
		"predicted speed-up 1.50x (1.30x to 1.80x)": {Speedup: 1.5, Low: 1.3, High: 1.8},
		"predicted speed-up 1.20x (0.90x to 1.60x)": {Speedup: 1.2, Low: 0.9, High: 1.6},
		"predicted speed-up: at least 44x": {
			Speedup: whatif.MaxSpeedup, Low: 44, High: whatif.MaxSpeedup,
		},
		"predicted speed-up: at least 2.25x":        {Speedup: 4.46, Low: 2.25, High: 107},
		"predicted speed-up 1.67x (1.19x to 2.79x)": {Speedup: 1.67, Low: 1.19, High: 2.79},
		"no prediction: few samples": {
			Speedup: 1.1, Low: 0.58, High: 11.4, Because: "few samples",
		},
		"no prediction: nothing of what was recorded would be left": {
			Speedup: whatif.MaxSpeedup, Low: whatif.MaxSpeedup, High: whatif.MaxSpeedup,
		},
		"no prediction: the program's pace varied too much": {
			Speedup: 1.13, Low: 0.37, High: whatif.MaxSpeedup,
		},
		"predicted: no faster": {Speedup: 1, Low: 0.95, High: 1.01},
	} {
		if got := speedupText(&p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}

// TestVagueIsNoNumber: of a prediction whose interval is too wide to act on, a finding, the table of remedies and what
// comes next say the least that it brings, or why it is not known, and no upper end.
func TestVagueIsNoNumber(t *testing.T) {
	vague := diagnose.Gain{Speedup: 4.46, Low: 2.25, High: 107, Workers: 5, Present: 2.25}
	open := diagnose.Gain{Speedup: 1.1, Low: 0.58, High: 11.4, Because: "few samples"}
	for want, g := range map[string]*diagnose.Gain{
		"predicted speed-up: at least 2.25x if the next batch is always ready, up to 4.46x with 5 times as many workers, " +
			"each on a CPU of its own": &vague,
		"no prediction: few samples": &open,
	} {
		if got := gainText(&diagnose.Finding{Cause: "worker", Gain: g}, "", ""); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if a, b := gainedText(&vague), gainedText(&open); a != " (at least 2.25x)" || b != "" {
		t.Errorf("next: %q, %q", a, b)
	}
	vague.Plan, open.Plan = "without worker", "without lock"
	a := &whatif.Answer{Remedies: []whatif.Prediction{{Gain: open}, {Gain: vague}}}
	if got := whatIfHeadline(a); got != "Largest gain: without worker: predicted speed-up: at least 2.25x" {
		t.Errorf("headline: %q", got)
	}
	rows := remedyTable(a, 5).Rows
	if len(rows) != 2 || rows[0][1] != "no prediction" || rows[1][1] != "at least 2.25" || rows[1][2] != "" {
		t.Errorf("rows: %q", rows)
	}
	a.Asked, a.After = &a.Remedies[1], &whatif.Pace{Latency: 1, Low: 1, High: 2_000_000, Of: "steps"}
	if text := fmt.Sprint(whatIfFacts(a)); !strings.Contains(text, "{Then at most 2.00 ms each}") {
		t.Errorf("facts: %s", text)
	}
}

// TestThreadText: of Python code that leaves its thread both ways are named where the lock makes them differ.
func TestThreadText(t *testing.T) {
	for want, g := range map[string]diagnose.Gain{
		"predicted speed-up 1.50x (1.30x to 1.80x) if it runs in parallel with the rest": {},
		"predicted speed-up 1.50x (1.30x to 1.80x) if it runs in parallel with the rest in a process of its own, 1.20x in a " +
			"thread, which shares Python's lock (GIL)": {InThread: 1.2},
		"predicted speed-up 1.50x (1.30x to 1.80x) if it runs in parallel with the rest in a process of its own, nothing in " +
			"a thread, which shares Python's lock (GIL)": {InThread: 1.001},
	} {
		g.Speedup, g.Low, g.High = 1.5, 1.3, 1.8
		if got := gainText(&diagnose.Finding{Cause: "python-work", Gain: &g}, "", ""); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNothingIsCalledThat: a change of nothing that was recorded says nothing of the program.
func TestNothingIsCalledThat(t *testing.T) {
	want := "without sleep: no prediction: nothing that takes time in this recording is called that"
	none := cause.Gain{Plan: "without sleep", Speedup: 1, Low: 1, High: 1}
	if got := predictionText(&whatif.Prediction{Gain: none}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := predictionText(&whatif.Prediction{Gain: none, Touched: 5}); got != "without sleep: predicted: no faster" {
		t.Errorf("%q: it has time, which is not on the path", got)
	}
	none.Because = "the change takes nothing off the critical path"
	want = "without sleep: predicted: no faster: the change takes nothing off the critical path"
	if got := predictionText(&whatif.Prediction{Gain: none, Touched: 5}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	two := cause.Gain{Plan: "faster a=2, faster b=2", Speedup: 1.5, Low: 1.4, High: 1.6}
	want = "faster a=2, faster b=2: predicted speed-up 1.50x (1.40x to 1.60x); " +
		"nothing that takes time in this recording is called b"
	if got := predictionText(&whatif.Prediction{Gain: two, Touched: 5, Unmatched: []string{"b"}}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWhatAGainTakes: a prediction says what bounds it and how many workers it takes, where it promises anything.
func TestWhatAGainTakes(t *testing.T) {
	p := cause.Gain{Speedup: 1.66, Low: 1.6, High: 1.67, Limit: "the kernels", Workers: 3, Present: 1.2}
	if got := limitText(&p); got != ", limited by the kernels" {
		t.Errorf("limit %q", got)
	}
	want := ", with 3 times as many workers, each on a CPU of its own; 1.20x with those that there are"
	if got := workersText(&p); got != want {
		t.Errorf("workers %q", got)
	}
	free := 2.5
	p.CPUs, p.CPUsNow, p.FreeCPUs = 2.49, 0.9, &free
	want = ", with 3 times as many workers, which take 2.5 CPUs in place of 0.9 (2.5 more are free); 1.20x with those that " +
		"there are"
	if got := workersText(&p); got != want {
		t.Errorf("workers %q", got)
	}
	p.Speedup = 1
	if got := limitText(&p) + workersText(&p); got != "" {
		t.Errorf("no gain takes %q", got)
	}
}

// TestMergedText: a finding says what one copy or kernel in place of many brings beside its own gain, where it is any.
func TestMergedText(t *testing.T) {
	own := diagnose.Gain{Speedup: 1.3, Low: 1.2, High: 1.4}
	for want, f := range map[string]diagnose.Finding{
		", 2.60x (2.30x to 2.90x) with one copy in place of many small ones":   {Cause: "sync-copy"},
		", 2.60x (2.30x to 2.90x) with one kernel in place of many small ones": {Cause: "launch-overhead"},
	} {
		f.Gain = &own
		without := gainText(&f, "", "")
		f.Merge = &diagnose.Gain{Speedup: 2.6, Low: 2.3, High: 2.9}
		if got := gainText(&f, "", ""); got != without+want {
			t.Errorf("%s: %q", f.Cause, got)
		}
		if f.Merge = (&diagnose.Gain{Speedup: 1, Low: 1, High: 1}); gainText(&f, "", "") != without {
			t.Errorf("%s: %q of nothing to gain", f.Cause, gainText(&f, "", ""))
		}
	}
}
