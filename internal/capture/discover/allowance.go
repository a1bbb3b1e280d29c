package discover

import "time"

const (
	// maxShare is how much of a core the daemon, with all that works for it, takes while every program is watched as it
	// comes. A program of a second costs some 20 ms (test/bench/discovery_storm.py prints it).
	maxShare = 0.15
	// maxSaved is what is spent at once after quiet times, and maxOwed what is waited for after busy ones, of CPU time.
	maxSaved = 3 * time.Second
	maxOwed  = time.Second
	// Whatever the daemon takes, so many programs are watched: all of a burst, and some a second.
	maxBurst  = 32
	perSecond = 1.2
)

// allowance describes whether another program may be watched.
type allowance struct {
	at    time.Time
	spent time.Duration // CPU time of the daemon and its helpers, as last heard
	saved time.Duration // of it that is left; negative: owed
	burst float64       // programs that may be watched although nothing is left
}

func newAllowance(now time.Time, spent time.Duration) allowance {
	return allowance{at: now, spent: spent, saved: maxSaved, burst: maxBurst}
}

// pass notes the time, and the CPU time of the daemon and its helpers since its start.
func (a *allowance) pass(now time.Time, spent time.Duration) {
	passed := now.Sub(a.at)
	a.saved += time.Duration(maxShare*float64(passed)) - (spent - a.spent)
	a.saved = min(maxSaved, max(-maxOwed, a.saved))
	a.burst = min(maxBurst, a.burst+perSecond*passed.Seconds())
	a.at, a.spent = now, spent
}

// left reports whether a program may be watched.
func (a *allowance) left() bool { return a.saved > 0 || a.burst >= 1 }

// take is called for each one.
func (a *allowance) take() {
	if a.saved <= 0 {
		a.burst--
	}
}
