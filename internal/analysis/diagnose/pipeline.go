package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// takeBubbles finds stages of a pipeline that wait for each other in kernels of NCCL. What of the exposed communication
// is that counts as bubbles, where it is most of what stages wait.
func (a *analysis) takeBubbles() {
	if a.subject != aboutGPUs {
		return
	}
	p := collectives.Stages(a.t, a.within)
	if p == nil {
		return
	}
	waits, bubbles := uint64(0), uint64(0)
	for m := range p.Members {
		covered := a.w.Covered[p.Members[m].Device]
		waits += p.Waits[m].Both(covered).Total()
		bubbles += p.Bubbles[m].Both(covered).Total()
	}
	if 2*bubbles <= waits {
		return // they wait for one that does not work
	}
	a.stages, a.bubbled = p, min(bubbles, a.total.exposed())
	g := a.group(cause.PipelineBubble)
	g.cost += a.bubbled
	g.sure[gap.Seen] += a.bubbled
	g.linked += a.bubbled
}

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
	if p := a.stages; p != nil {
		for m := range p.Members {
			device := p.Members[m].Device
			waits[device] += p.Bubbles[m].Both(a.w.Covered[device]).Total()
		}
		add("Ranks pass data on by sends and receives: for %s one waited in them, and the rank that it waited for computed, "+
			"or waited for one that did.", format.Span(a.bubbled))
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
		add("On average %.1f of %d GPUs worked at a time.", float64(n)*share(a.total.busy()-a.bubbled, a.total.Time), n)
	}
}

// within returns how much of [from, to) lies in a stretch of time, ns.
func within(from, to uint64, in timeline.Span) uint64 {
	from, to = max(from, in.From), min(to, in.To)
	return to - min(from, to)
}
