package report

import "testing"

// TestSpanOfEach holds that a part that takes less than 1 ns of each iteration is not said to take none.
func TestSpanOfEach(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 0.3: "<1 ns", 1: "1 ns", 2371.4: "2.37 µs"} {
		if got := spanOfEach(ns); got != want {
			t.Errorf("%v ns: %q, want %q", ns, got, want)
		}
	}
}
