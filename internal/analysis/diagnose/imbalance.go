package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// exposedImbalance is how much of the exposed communication is waiting for GPUs that have more to compute, ns; 0 where
// that is not most of the waiting, or one of them is a straggler.
func (a *analysis) exposedImbalance() uint64 {
	if !a.ranks.Imbalanced() {
		return 0
	}
	return min(a.total.exposed(), uint64(float64(a.ranks.Load.Wait)*share(a.total.exposed(), a.total.talked)))
}

// uneven returns the evidence for uneven work.
func (a *analysis) uneven(f *Finding) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	r, l := a.ranks, &a.ranks.Load
	steps := uint64(l.Steps)
	add(
		"In %s between collectives in which all %d ranks took part, the busiest GPU computed for %s on average; the "+
			"mean of all GPUs is %s.",
		format.Plural(l.Steps, "step", "steps"),
		len(r.Members),
		format.Span(l.Max/steps),
		format.Span(l.Mean/steps),
	)
	add("Ranks that had less to compute waited for %s in all because of that, of %s that they waited for the last one.",
		format.Span(l.Wait), format.Span(r.Wait))
	for m := range r.Members {
		if m == maxRows {
			add("%d more ranks are not listed.", len(r.Members)-maxRows)
			break
		}
		add("%s computed for %s a step, and had most to do in %s of the steps.", a.rankName(m),
			format.Span(l.Busy[m]/steps), format.Percent(float64(l.Most[m])/float64(steps)))
	}
	if left := a.total.Time - min(a.total.Time, f.Cost); left > 0 {
		add("With the same work for all, each step would take the mean: at most %.2fx.", float64(a.total.Time)/float64(left))
	}
}
