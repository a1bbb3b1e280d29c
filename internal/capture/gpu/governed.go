package gpu

import (
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// WindowPeriod returns from one window's beginning to the next one's, as was asked for; 0: there are none.
func (s *Source) WindowPeriod() time.Duration {
	if s.opts.Mode != Windows || s.opts.Inject == nil {
		return 0
	}
	return s.opts.Period
}

// SetWindowPeriod makes the windows of all processes at least as rare.
func (s *Source) SetWindowPeriod(least time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.governed == least {
		return
	}
	s.governed = least
	for _, q := range s.sessions {
		q.windows.limiter.least[limitGovernor] = least
		s.retime(q)
	}
}

// predictedWithin is how wrong a predicted cost may be, as a factor.
const predictedWithin = 1.5

// WindowCost returns what windows take of the time of the one of these processes that pays most; no Basis before the
// first window has ended. It is predicted from the records until enough windows were measured, and where a process
// gets on too unevenly for that.
func (s *Source) WindowCost(pids []uint32) recording.Cost {
	s.mu.Lock()
	defer s.mu.Unlock()
	var most recording.Cost
	for _, q := range s.sessions {
		if !slices.Contains(pids, q.process.PID) || q.orders.mode != modeWindows || q.windows.cost.seen == 0 {
			continue
		}
		if c := q.windows.cost.by(s.times(q)); most.Basis == "" || c.Share > most.Share {
			most = c
		}
	}
	return most
}

// by returns the cost of windows as a share of a process's time.
func (c cost) by(t times) recording.Cost {
	typical := float64(c.typical(time.Duration(t.on)))
	share := typical / float64(t.period)
	if !c.known {
		return recording.Cost{
			Share: share, Low: share / predictedWithin, High: share * predictedWithin, Basis: recording.CostPredicted,
		}
	}
	half := 2 * float64(c.doubt) / float64(t.period)
	if c.window > 0 { // it was measured with windows of other lengths
		half *= typical / float64(c.window)
	}
	return recording.Cost{Share: share, Low: share - half, High: share + half, Basis: recording.CostMeasured}
}

// windowSlack is how much earlier or later than its time a window may come.
const windowSlack = 50 * time.Millisecond

// WindowNear reports whether a window of one of these processes is open, or opens within a time; false where windows
// leave no room for that.
func (s *Source) WindowNear(pids []uint32, within time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.sessions {
		if !slices.Contains(pids, q.process.PID) || q.orders.mode != modeWindows || q.ring == nil || !q.orders.begun {
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
