package gpu

import (
	"fmt"
	"time"
)

const (
	// DefaultBudget is the share of a process's time that recording may take.
	DefaultBudget = 0.02
	// windowsShare is what of the budget windows may take: the rest is for the probes, samples
	// and scheduling of all the time, of which a process that makes 2,000 such calls a second
	// was measured to feel 0.2 to 0.5%.
	windowsShare = 0.75
	// mostStretch bounds how rare windows become, in periods: a report must still rest on some.
	mostStretch = 15
)

// allowed is the share of a process's time that windows may take; 0: any.
func (o *Options) allowed() float64 { return o.Budget * windowsShare }

// tolerance is how well the cost of a window must be known to act on it.
func (o *Options) tolerance() time.Duration {
	return time.Duration(o.allowed() * float64(o.Period) / 3)
}

// weigh judges the windows that have ended, and makes them rarer where they cost more than
// they may, or as frequent as was asked for where they do not. The caller holds the lock.
func (s *Source) weigh(q *session) {
	spans, predicted := q.facts.takeSpans()
	if len(spans)+len(predicted) == 0 || s.opts.Budget == 0 || q.mode != modeWindows {
		return
	}
	for _, ns := range predicted {
		q.meter.predict(ns)
	}
	s.paces.of(q.process.PID, func(p *pace) {
		for _, span := range spans {
			q.meter.add(span, p)
		}
	})
	q.cost = q.meter.cost(s.opts.tolerance())
	if s.governed == 0 && q.limiter.set(limitCost, s.opts.affordable(q.cost.window), s.opts.Period) {
		s.retime(q)
	}
}

// affordable returns the shortest period, of those allowed, at which windows of a cost keep within the budget.
func (o *Options) affordable(window time.Duration) time.Duration {
	needed := time.Duration(float64(window) / o.allowed())
	return min(max(o.Period, needed), min(mostStretch*o.Period, maxPeriod))
}

// spending says what a session's windows take of its process's time, and what was done
// about it; "" where nothing is known yet. The caller holds the lock.
func (s *Source) spending(q *session) string {
	c, period := q.cost, time.Duration(s.times(q).period)
	if s.opts.Budget == 0 || q.mode != modeWindows || c.seen == 0 {
		return ""
	}
	share := 100 * float64(c.window) / float64(period)
	took := fmt.Sprintf(
		"a window takes %s of this program's time, windows together %.1f%%",
		c.window.Round(100*time.Microsecond),
		share,
	)
	if !c.known {
		took = fmt.Sprintf(
			"by its records a window is predicted to take %s of this program's time, windows together %.1f%%",
			c.window.Round(100*time.Microsecond),
			share,
		)
	}
	switch allowed := 100 * s.opts.allowed(); {
	case period >= mostStretch*s.opts.Period && share > allowed*(1+worthwhile):
		return fmt.Sprintf(
			"%s: more than the %.2g%% that they may (--overhead-budget), though they come only every %s: choose "+
				"--gpu-window shorter, or --gpu off",
			took,
			allowed,
			rounded(period),
		)
	case period > s.opts.Period:
		return fmt.Sprintf(
			"%s: so they come every %s instead of every %s (--overhead-budget)",
			took,
			rounded(period),
			s.opts.Period,
		)
	}
	return took
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
