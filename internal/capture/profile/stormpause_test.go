package profile

import (
	"testing"
	"time"
)

// What is sampled of a second takes the budget, or the process is sampled all the time.
func TestPauseKeepsTheBudget(t *testing.T) {
	const budget = 0.02
	for _, rate := range []float64{0, 100, 6_000, 7_000, 50_000, 300_000, 600_000} {
		pause := pauseAt(rate, 99, budget)
		share := float64(slice) / float64(slice+pause)
		cost := rate * switchNS(99) / 1e9 * share
		if cost > budget*1.001 {
			t.Errorf("%v switches a second: %.2g of a CPU with pauses of %v", rate, cost, pause)
		}
		if pause > 0 && cost < budget*0.999 {
			t.Errorf("%v switches a second: pauses of %v are longer than they need be", rate, pause)
		}
	}
	if pause := pauseAt(1e9, 99, budget); pause != 10*time.Second {
		t.Errorf("pauses of %v in a storm beyond all", pause)
	}
}
