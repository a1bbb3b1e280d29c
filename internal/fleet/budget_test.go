package fleet

import (
	"testing"
	"time"
)

// In the long run no more is spent than the share, whatever one thought costs.
func TestBudget(t *testing.T) {
	for _, cost := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 20 * time.Second} {
		var b budget
		var sum time.Duration
		now := time.Unix(1000, 0)
		const length = 10_000 * time.Second
		for range int(length / time.Second) {
			now = now.Add(time.Second)
			for range 64 {
				if b.may(now) {
					b.spend(cost)
					sum += cost
				}
			}
		}
		if most := time.Duration(thinkShare*float64(length)) + thinkBurst + cost; sum > most {
			t.Errorf("thoughts of %v: %v were spent, at most %v may be", cost, sum, most)
		}
		if sum < length/20 && cost > 2*time.Millisecond {
			t.Errorf("thoughts of %v: only %v were spent", cost, sum)
		}
	}
	if spent() <= 0 {
		t.Error("this process has taken no CPU time")
	}
}
