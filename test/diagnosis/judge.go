package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/report"
)

const (
	// costError is how far the cost of the top finding may lie from the truth.
	costError = 0.05
	// dearer is how much more the dearest planted cause has to cost than the next, for a miss to be the analysis's:
	// what is planted in pairs is planted 2 to 1 at least, but the machine has a say in what it costs.
	dearer = 1.25
	// idleShare is how much of the time the GPU of a healthy program may be idle for it to be one: below it nothing is
	// a finding.
	idleShare = 0.03
)

// verdict is how a scenario was judged.
type verdict struct {
	number   int
	scenario *scenario
	Planted  string  // the cause that truly cost most; "" where nothing was to be found
	Second   string  // the next, and what it costs of the first
	Rival    float64 //
	True     float64 // ns
	Found    string  // the cause of the top finding; "" where there is none
	Cost     float64 // ns
	Class    diagnose.Verdict
	Covered  float64 // ns: what of the window both rest on
	Idle     float64 // ns of it in which the GPU truly ran nothing
	Seen     float64 // ns in which the analysis says so
	Right    bool
	Near     bool // the cost is right too
	Notes    []string
}

// analyse is what the client does with a recording: the diagnosis is that of a report, with its order of findings.
func analyse(o observation) (*gap.Walk, *timeline.Timeline, *diagnose.Diagnosis) {
	t := timeline.Build(o.recording)
	return gap.Build(t), t, &report.New(o.recording).Diagnosis
}

// judge holds what the analysis says against the truth of the same stretches of time.
func judge(s *scenario, o observation) *verdict {
	w, t, d := analyse(o)
	covered := coveredOf(s, w, t)
	v := &verdict{
		scenario: s,
		Class:    d.Verdict,
		Covered:  float64(covered.Total()),
		Idle:     float64(covered.Without(o.truth.Busy).Total()),
	}
	for g := range w.All() {
		v.Seen += float64(g.To - g.From)
	}
	costs := o.truth.costs(covered, s)
	v.plant(costs)
	if len(d.Findings) > 0 {
		v.Found, v.Cost = d.Findings[0].Cause, float64(d.Findings[0].Cost)
	}
	if s.want == "" {
		v.spare(d)
		return v
	}
	v.Right = v.Found == v.Planted && (!s.idle || d.Verdict == diagnose.Idle) &&
		(s.kernels == nil || d.Verdict == diagnose.GPUBound) &&
		(!s.left || d.Verdict == diagnose.Healthy && len(d.Findings) > 0 && d.Findings[0].Minor)
	v.Near = v.Right && math.Abs(v.Cost-v.True) <= costError*v.True
	if s.idle && d.Verdict == diagnose.Idle && (v.Found == "" || v.Found == s.want) {
		v.idle(d)
	}
	v.note(costs, d)
	v.cross(o.truth.Phases, w)
	return v
}

// coveredOf is the time that numbers rest on: what was seen of the GPU, or the window where there is none.
func coveredOf(s *scenario, w *gap.Walk, t *timeline.Timeline) timeline.Spans {
	if s.cpuOnly {
		return timeline.Spans{{From: t.From, To: t.To}}
	}
	if len(w.Covered) == 0 {
		return nil
	}
	return w.Covered[0]
}

// plant notes which cause truly costs most.
func (v *verdict) plant(costs map[string]float64) {
	byCost := slices.SortedFunc(maps.Keys(costs),
		func(a, b string) int { return cmp.Or(cmp.Compare(costs[b], costs[a]), cmp.Compare(a, b)) })
	if v.scenario.want == "" || len(byCost) == 0 {
		return
	}
	v.Planted, v.True = byCost[0], costs[byCost[0]]
	if len(byCost) > 1 {
		v.Second, v.Rival = byCost[1], costs[byCost[1]]/v.True
	}
}

// disturbed reports whether the machine made something else of the program than what was meant, or let nothing be
// recorded.
func (v *verdict) disturbed() bool {
	if v.Covered == 0 {
		return true
	}
	if v.scenario.want == "" {
		return v.Idle > idleShare*v.Covered
	}
	if v.scenario.kernels != nil && v.Idle > idleShare*v.Covered { // what is planted there is for a GPU that works
		return true
	}
	return v.Planted != v.scenario.want || v.Rival*dearer > 1
}

// spare judges a program that keeps the GPU busy: nothing may be said against what its CPU does.
func (v *verdict) spare(d *diagnose.Diagnosis) {
	v.Right = d.Verdict == diagnose.Healthy || d.Verdict == diagnose.GPUBound
	for _, f := range d.Findings {
		if row, _, _ := cause.ByKey(f.Cause); !row.ID.Busy() {
			v.Right = false
			v.Notes = append(v.Notes, fmt.Sprintf("accused of %s, %.1f%%", f.Cause, 100*f.Share))
		}
	}
	v.Near = v.Right
	if v.Right {
		v.Found, v.Cost = "", 0
	}
}

// idle judges an idle server: its verdict says it, and the breakdown what it amounts to.
func (v *verdict) idle(d *diagnose.Diagnosis) {
	for _, p := range d.Breakdown.Parts {
		if p.Key == v.scenario.want {
			v.Found, v.Cost = p.Key, float64(p.Time)
		}
	}
	v.Right = v.Found == v.Planted
	v.Near = v.Right && math.Abs(v.Cost-v.True) <= costError*v.True
}

// note keeps what helps to understand a miss: the costs by truth and by breakdown.
func (v *verdict) note(costs map[string]float64, d *diagnose.Diagnosis) {
	if v.Right && v.Near {
		return
	}
	v.Notes = append(v.Notes, "truly "+list(costs, v.Covered))
	said := map[string]float64{}
	for _, p := range d.Breakdown.Parts {
		said[p.Key] = float64(p.Time)
	}
	v.Notes = append(v.Notes, "said "+list(said, v.Covered))
	for _, f := range d.Findings {
		v.Notes = append(
			v.Notes,
			fmt.Sprintf("finding %s: %s, %.1f ms, sure %.2f", f.Cause, f.Title, float64(f.Cost)/1e6, f.Confidence),
		)
	}
	v.Notes = append(v.Notes, d.Reasons...)
}

// cross notes what the analysis calls the time of each planted cause.
func (v *verdict) cross(phases []phase, w *gap.Walk) {
	if v.Right && v.Near {
		return
	}
	called, sums := map[string]map[string]float64{}, map[string]float64{}
	steps := stepsOf(w)
	for _, p := range phases {
		if called[p.Cause] == nil {
			called[p.Cause] = map[string]float64{}
		}
		first, _ := slices.BinarySearchFunc(steps, p.Span.From,
			func(s gap.Step, from uint64) int { return cmp.Compare(s.To, from) })
		for _, s := range steps[first:] {
			if s.From >= p.Span.To {
				break
			}
			if from, to := max(s.From, p.Span.From), min(s.To, p.Span.To); from < to {
				called[p.Cause][s.Cause.String()] += float64(to - from)
				sums[p.Cause] += float64(to - from)
			}
		}
	}
	for c, said := range called {
		v.Notes = append(v.Notes, fmt.Sprintf("in phases of %s, %s in all: %s", c, ms(sums[c]), list(said, sums[c])))
	}
}

// stepsOf returns the steps of all gaps, or of the main thread.
func stepsOf(w *gap.Walk) []gap.Step {
	if w.Main != nil {
		return w.Steps[w.Main.First:w.Main.Last]
	}
	var out []gap.Step
	for _, steps := range w.All() {
		out = append(out, steps...)
	}
	return out
}

// list prints costs, the dearest first, as shares of a time.
func list(costs map[string]float64, of float64) string {
	out := ""
	for _, k := range slices.SortedFunc(maps.Keys(costs), func(a, b string) int {
		return cmp.Or(cmp.Compare(costs[b], costs[a]), cmp.Compare(a, b))
	}) {
		if costs[k] >= of/1000 {
			out += fmt.Sprintf("%s %.1f%%  ", k, 100*costs[k]/of)
		}
	}
	return out
}
