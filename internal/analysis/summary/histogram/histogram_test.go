package histogram

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPercentilesAreExactToAPercent compares a histogram with the sorted values.
func TestPercentilesAreExactToAPercent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var h Histogram
	var all []uint64
	for range 20_000 {
		v := rng.Uint64() >> rng.IntN(64)
		all = append(all, v)
		h.Add(v)
	}
	slices.Sort(all)
	for _, p := range []uint64{1, 10, 50, 90, 99} {
		want := all[(len(all)*int(p)+99)/100-1]
		got := h.Percentile(p)
		if diff := max(got, want) - min(got, want); diff*100 > want {
			t.Errorf("p%d = %d, want %d", p, got, want)
		}
	}
	if h.Max != all[len(all)-1] || h.Percentile(100) > h.Max {
		t.Errorf("max %d and p100 %d, want %d", h.Max, h.Percentile(100), all[len(all)-1])
	}
}
