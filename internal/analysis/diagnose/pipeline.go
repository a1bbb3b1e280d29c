package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// bubbles is the evidence about GPUs that wait for each other's parts.
func (a *analysis) bubbles(d *Diagnosis, f *Finding) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	waits := make([]uint64, len(a.t.Devices))
	for i := range a.w.Gaps {
		g := &a.w.Gaps[i]
		for _, s := range a.w.Steps[g.First:g.Last] {
			if s.Cause == cause.PipelineBubble {
				waits[g.Device] += within(s.From, s.To, a.within)
			}
		}
	}
	for i := range d.Devices {
		if i == maxRows {
			add("%d more GPUs are not listed.", len(d.Devices)-maxRows)
			break
		}
		if b := &d.Devices[i].Breakdown; b.Time > 0 && i < len(waits) {
			add("GPU %d of process %d waited for another GPU, which worked, for %s: %s of the time.",
				d.Devices[i].ID, d.Devices[i].PID, format.Span(waits[i]), format.Percent(share(waits[i], b.Time)))
		}
	}
	if n := len(d.Devices); n > 1 {
		add("On average %.1f of %d GPUs worked at a time.", float64(n)*share(a.total.busy(), a.total.Time), n)
	}
}

// within returns how much of [from, to) lies in a stretch of time, ns.
func within(from, to uint64, in timeline.Span) uint64 {
	from, to = max(from, in.From), min(to, in.To)
	return to - min(from, to)
}
