package gpu

import (
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/format"
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
	// shortestOn is how short a window becomes because of what it costs: the least in which a diagnosis sees enough. The
	// first one is as short.
	shortestOn = 50 * time.Millisecond
)

// allowed is the share of a process's time that windows may take; 0: any.
func (o *Options) allowed() float64 { return o.Budget * windowsShare }

// tolerance is how well the cost of a window must be known to act on it.
func (o *Options) tolerance() time.Duration {
	return time.Duration(o.allowed() * float64(o.Period) / 3)
}

// weigh judges the windows that have ended. The next one is as long as it may be to take no more than the budget of a
// period, and begins when what the last one took is paid off. The caller holds the lock.
func (s *Source) weigh(q *session) {
	spans, loads := q.facts.takeSpans()
	if len(spans)+len(loads) == 0 || s.opts.Budget == 0 || q.orders.mode != modeWindows {
		return
	}
	for _, l := range loads {
		q.windows.meter.predict(l)
	}
	s.paces.of(q.process.PID, func(p *pace) {
		for _, span := range spans {
			q.windows.meter.add(span, p)
		}
	})
	if q.windows.cost = q.windows.meter.cost(s.opts.tolerance()); q.windows.cost.seen == 0 {
		return
	}
	shorter := q.windows.limiter.shorten(s.opts.affordableOn(q.windows.cost))
	if q.windows.limiter.set(limitCost, s.opts.affordable(q.windows.cost.last), s.opts.Period) || shorter {
		s.retime(q)
	}
}

// affordable returns the shortest period, of those allowed, at which windows of a cost keep within the budget.
func (o *Options) affordable(window time.Duration) time.Duration {
	needed := time.Duration(float64(window) / o.allowed())
	return min(max(o.Period, needed), min(mostStretch*o.Period, maxPeriod))
}

// affordableOn returns how long a window may be so that it takes no more than the budget of a period.
func (o *Options) affordableOn(c cost) time.Duration {
	rest := o.allowed()*float64(o.Period) - float64(c.fixed)
	switch {
	case rest <= 0:
		return o.firstOn()
	case c.mostRate*float64(o.On) <= rest:
		return o.On
	}
	return max(time.Duration(rest/c.mostRate), o.firstOn())
}

// firstOn is how long a window is of which nothing is known.
func (o *Options) firstOn() time.Duration {
	if o.Budget == 0 {
		return o.On
	}
	return min(o.On, shortestOn)
}

// spending says what a session's windows take of its process's time, and what was done
// about it; "" where nothing is known yet. The caller holds the lock.
func (s *Source) spending(q *session) string {
	c, t := q.windows.cost, s.times(q)
	on, period := time.Duration(t.on), time.Duration(t.period)
	if s.opts.Budget == 0 || q.orders.mode != modeWindows || c.seen == 0 {
		return ""
	}
	window := c.typical(on)
	share := 100 * float64(window) / float64(period)
	took := fmt.Sprintf(
		"a window takes %s of this program's time, windows together %.1f%%",
		format.Span(uint64(window)),
		share,
	)
	if !c.known {
		took = fmt.Sprintf(
			"by its records a window is predicted to take %s of this program's time, windows together %.1f%%",
			format.Span(uint64(window)),
			share,
		)
	}
	switch allowed := 100 * s.opts.allowed(); {
	case period >= mostStretch*s.opts.Period && share > allowed*(1+worthwhile):
		hint := "--gpu off"
		if shortest := s.opts.firstOn(); shortest > minOn { // windows are not made shorter than that by themselves
			hint = fmt.Sprintf("--gpu-window below %s, or %s", shortest, hint)
		}
		return fmt.Sprintf(
			"%s: more than the %.2g%% that they may (--overhead-budget), though they come only every %s: choose %s",
			took,
			allowed,
			rounded(period),
			hint,
		)
	case period > s.opts.Period || on < s.opts.On:
		return fmt.Sprintf(
			"%s: so there are %s every %s instead of %s every %s (--overhead-budget)",
			took,
			on.Round(time.Millisecond),
			rounded(period),
			s.opts.On,
			s.opts.Period,
		)
	}
	return took
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
