package discover

import (
	"testing"
	"time"
)

// taken returns how many programs of so many are watched in the time, where each costs as much CPU time, and the daemon
// takes a share of a core besides.
func taken(a *allowance, programs int, within, cost time.Duration, besides float64) int {
	const step = 50 * time.Millisecond
	begin, own := a.at, a.spent
	n, tried := 0, 0
	for passed := step; passed <= within; passed += step {
		a.pass(begin.Add(passed), own+time.Duration(besides*float64(passed))+time.Duration(n)*cost)
		for due := int(float64(programs) * float64(passed) / float64(within)); tried < due; tried++ {
			if a.left() {
				a.take()
				n++
			}
		}
	}
	return n
}

// TestAllowance: while the daemon takes less than its share every program is watched; beyond it some always are, and
// none where others would need all of the machine.
func TestAllowance(t *testing.T) {
	for _, c := range []struct {
		name            string
		programs        int // in ten minutes
		cost            time.Duration
		besides         float64
		atLeast, atMost int
	}{
		{"200 a minute", 2000, 25 * time.Millisecond, 0.01, 2000, 2000},
		{"too many", 20000, 25 * time.Millisecond, 0.01, 3000, 4300},
		{"dear ones", 2000, time.Second, 0.01, 600, 800},
		{"beside busy targets", 2000, 25 * time.Millisecond, 0.5, 600, 900},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAllowance(time.Unix(0, 0), time.Hour)
			if n := taken(&a, c.programs, 10*time.Minute, c.cost, c.besides); n < c.atLeast || n > c.atMost {
				t.Errorf("%d of %d programs are watched, want %d to %d", n, c.programs, c.atLeast, c.atMost)
			}
		})
	}
}

// TestAllowanceAfterBusyTimes: what was spent long ago keeps nothing from being watched for long.
func TestAllowanceAfterBusyTimes(t *testing.T) {
	start := time.Unix(0, 0)
	a := newAllowance(start, 0)
	a.pass(start.Add(time.Hour), time.Hour) // a core, all the time
	if n := taken(&a, 100, 2*time.Minute, time.Millisecond, 0); n != 100 {
		t.Errorf("%d of 100 programs are watched", n)
	}
}
