package cudaapi

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestPeriod: windows of a program whose launches cost it more than a hundredth come more rarely, and only those
// launches count that probes saw.
func TestPeriod(t *testing.T) {
	var s Source
	for range 1000 {
		s.Observe([]event.Event{
			{PID: 7, Kind: event.Call},
			{PID: 7, Kind: event.Call, Flags: event.Timed},
			{PID: 7, Kind: event.Call, Flags: event.Correlated},
			{PID: 8, Kind: event.Call},
		})
	}
	if got, want := s.counted.launches(7), 1000*entryNS*time.Nanosecond; got != want {
		t.Errorf("launches cost %v, want %v", got, want)
	}
	for _, c := range []struct{ since, cost, want time.Duration }{
		{2 * time.Second, 6 * time.Millisecond, 0},
		{2 * time.Second, 42 * time.Millisecond, 2200 * time.Millisecond},
		{2 * time.Second, 900 * time.Millisecond, 28 * time.Second},
		{40 * time.Second, 900 * time.Millisecond, 0},
	} {
		if got := longer(c.since, c.cost); got != c.want {
			t.Errorf("%v after a window that cost %v: %v longer, want %v", c.since, c.cost, got, c.want)
		}
	}
}

// TestLaunchCostIsSpreadOverTime: what a window of launches cost is no storm to who looks once a second, and is told in
// the end.
func TestLaunchCostIsSpreadOverTime(t *testing.T) {
	const second = 1_000_000_000
	s := spent{reportedAt: second, due: 40_000_000}
	var most, sum uint64
	for at := uint64(2); at < 30; at++ {
		before := s.NS
		s.release(at * second)
		most, sum = max(most, s.NS-before), sum+s.NS-before
	}
	if most > 10_000_000 || sum < 39_000_000 || sum+s.due != 40_000_000 {
		t.Errorf("%d ns at once, %d of 40,000,000 in 28 s, %d due", most, sum, s.due)
	}
}
