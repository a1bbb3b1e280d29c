package report

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/recording"
)

// gainEvents is from how much of a recording the gains of findings are predicted, in calls, activities and waits: some
// hundred iterations say what thousands do, and a report is there at once.
const gainEvents = 60_000

// gains is what predicts the gains of findings: of what the program does again and again, as these are.
func (e *evidence) gains() *whatif.Study {
	return whatif.Some(e.timeline, e.threads, e.walk(), e.did.Within(), gainEvents)
}

// predict says what the remedy of a cause would bring. A synchronization that nobody waits for any more may have taken
// no time of its own.
func (e *evidence) predict(id cause.ID) (diagnose.Gain, bool) {
	p, ok := e.study().Of(id)
	return diagnose.Gain{Plan: p.Plan, Speedup: p.Speedup, Low: p.Low, High: p.High, Because: p.Because, Limit: p.Limit}, ok && (p.Touched > 0 || p.Speedup != 1)
}

// WhatIf predicts from a recording what edits would bring, and what each remedy, function and kernel would: in what
// the program does again and again, without its start and its end.
func WhatIf(rec *recording.Recording, edits []whatif.Edit) *whatif.Answer {
	e := read(rec).begin()
	d := e.diagnosis(nil)
	a := whatif.Some(e.timeline, e.threads, nil, d.Between(e.timeline), math.MaxInt).Answer(paceOf(d), edits)
	a.Version, a.PID = rec.Meta.Version, rec.Meta.Target
	return a
}

func paceOf(d *diagnose.Diagnosis) *whatif.Pace {
	it := d.Iterations
	if it == nil {
		return nil
	}
	return &whatif.Pace{Of: it.Source, Latency: it.P50, PerSec: it.PerSec}
}
