package report

import (
	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/diagnose"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/whatif"
)

// gainEvents is from how much of a recording the gains of findings are foretold, in calls, activities and waits: some
// hundred iterations say what thousands do, and a report is there at once.
const gainEvents = 60_000

// addGains foretells what the remedy of each finding would bring.
func (e *evidence) addGains(d *diagnose.Diagnosis) {
	if len(d.Findings) == 0 || d.Verdict == diagnose.NotEnough {
		return
	}
	study := whatif.Some(e.timeline, e.threads, gainEvents)
	for i := range d.Findings {
		f := &d.Findings[i]
		c, _, ok := cause.ByKey(f.Cause)
		if !ok {
			continue
		}
		if p, ok := study.Of(c.ID); ok && p.Touched > 0 {
			f.Gain = &diagnose.Gain{Plan: p.Plan, Speedup: p.Speedup, Low: p.Low, High: p.High}
		}
	}
}

// WhatIf foretells from a recording what edits would bring, and what each remedy, function and kernel would.
func WhatIf(rec *record.Recording, edits []whatif.Edit) *whatif.Answer {
	e := read(rec)
	a := whatif.New(e.timeline, e.threads).Answer(paceOf(e.diagnosis()), edits)
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
