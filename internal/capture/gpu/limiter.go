package gpu

import (
	"cmp"
	"time"
)

// limit is why the windows of a process are rarer than was asked for.
type limit uint8

// The limits.
const (
	limitCost     limit = iota // the last one cost the process more than the budget of a period (budget.go)
	limitGovernor              // what weighs all sources wants it (governed.go)
	limitLeak                  // they leave memory in the process (leak_period.go)
	limits
)

// worthwhile is the change of a period below which it is left as it is.
const worthwhile = 0.1

// limiter decides how far apart the windows of one process begin, and how long they are. They are as far apart as was
// asked for, as each limit wants, and as it takes to measure what they leave; they are as long as their cost allows.
type limiter struct {
	least [limits]time.Duration // 0: as they like
	rests bool                  // gaps are long enough to measure what windows leave (restPeriod)
	on    time.Duration         // how long each is; 0: none was judged yet
}

// set changes one limit, and reports whether the agent is to be told. A small change is dropped.
func (l *limiter) set(why limit, least, asked time.Duration) bool {
	now, wanted := max(l.least[why], asked), max(least, asked)
	if wanted == now || float64(max(wanted-now, now-wanted)) < worthwhile*float64(now) {
		return false
	}
	l.least[why] = least
	return true
}

// shorten changes how long windows are, and reports whether the agent is to be told. A small change is dropped.
func (l *limiter) shorten(on time.Duration) bool {
	if float64(max(on-l.on, l.on-on)) < worthwhile*float64(l.on) {
		return false
	}
	l.on = on
	return true
}

// rest changes whether gaps are long, and reports whether the agent is to be told.
func (l *limiter) rest(rests bool) bool {
	changed := l.rests != rests
	l.rests = rests
	return changed
}

// period returns how far apart windows of on begin, where asked was asked for.
func (l *limiter) period(on, asked time.Duration) time.Duration {
	period := asked
	for _, least := range l.least {
		period = max(period, least)
	}
	if l.rests {
		period = time.Duration(restPeriod(uint64(on), uint64(period)))
	}
	return period
}

// times are those of a session's windows.
func (s *Source) times(q *session) times {
	t := s.opts.times()
	t.on = uint64(cmp.Or(q.windows.limiter.on, s.opts.firstOn()))
	t.period = uint64(q.windows.limiter.period(time.Duration(t.on), s.opts.Period))
	return t
}

// retime tells an agent the times of its windows, which a limit has changed. The caller holds the lock.
func (s *Source) retime(q *session) {
	if q.ring != nil && q.orders.mode == modeWindows {
		q.ring.command(q.orders.mode, s.times(q))
	}
}
