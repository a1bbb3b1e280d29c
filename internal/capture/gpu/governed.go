package gpu

import (
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
)

// WindowPeriod returns from one window's beginning to the next one's, as was asked for; 0: there are none.
func (s *Source) WindowPeriod() time.Duration {
	if s.opts.Mode != Windows || s.opts.Inject == nil {
		return 0
	}
	return s.opts.Period
}

// SetWindowPeriod makes the windows of all processes at least as rare. From the first call on nothing else makes
// them rarer because of what they cost.
func (s *Source) SetWindowPeriod(least time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.governed == least {
		return
	}
	s.governed = least
	for _, q := range s.sessions {
		q.limiter.least[limitCost], q.limiter.least[limitGovernor] = 0, least
		s.retime(q)
	}
}

// WindowCost returns what windows take of the time of the one of these processes that pays most, and half of its 95%
// interval. Where a process gets on too unevenly to tell, it is at least what a thread of it worked on the way out.
func (s *Source) WindowCost(pids []uint32) (share, half float64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.sessions {
		if !slices.Contains(pids, q.process.PID) || q.mode != modeWindows || q.cost.windows < minSamples {
			continue
		}
		period := float64(s.times(q).period)
		_, doubt := middle(q.meter.lost)
		if cost := float64(q.cost.window) / period; !known || cost > share {
			share, half, known = cost, 2*doubt/period, true
		}
	}
	return share, half, known
}

// windowSlack is how much earlier or later than its time a window may come.
const windowSlack = 50 * time.Millisecond

// WindowNear reports whether a window of one of these processes is open, or opens within a time; false where windows
// leave no room for that.
func (s *Source) WindowNear(pids []uint32, within time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.sessions {
		if !slices.Contains(pids, q.process.PID) || q.mode != modeWindows || q.ring == nil || !q.begun {
			continue
		}
		t := s.times(q)
		if uint64(within+2*windowSlack)+t.on > t.period {
			continue
		}
		if q.ring.load64(ringBegan) != 0 || q.ring.load64(ringOpening) != 0 {
			return true
		}
		last := q.facts.lastBegan()
		if next := last + t.period - uint64(windowSlack); last != 0 && clock.Monotonic()+uint64(within) > next {
			return true
		}
	}
	return false
}
