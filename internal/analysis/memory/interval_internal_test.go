package memory

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestLimitsHoldTheTruth: of sites with few blocks and many, of one size and of several, the live bytes lie between the
// limits in 95 of 100 cases, as far as anything of the site was seen.
func TestLimitsHoldTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, x := range map[string]struct {
		blocks []int     // of each size
		sizes  []float64 // bytes
		mean   float64
	}{
		"one block, nearly certain":   {[]int{1}, []float64{640 << 10}, 290 << 10},
		"one block, often missed":     {[]int{1}, []float64{64 << 10}, 64 << 10},
		"three blocks":                {[]int{3}, []float64{1920 << 10}, 1 << 20},
		"a hundred small blocks":      {[]int{100}, []float64{512}, 4096},
		"thousands, of which few are": {[]int{20000}, []float64{512}, 1 << 20},
		"small ones and a large one":  {[]int{300, 1}, []float64{4096, 1 << 20}, 64 << 10},
		"all are seen":                {[]int{7}, []float64{1 << 20}, 4096},
	} {
		const rounds = 4000
		held, told := 0, 0
		for range rounds {
			var u unchosen
			truth, seen := 0.0, 0
			for k, n := range x.blocks {
				truth += float64(n) * x.sizes[k]
				p := -math.Expm1(-x.sizes[k] / x.mean)
				for range n {
					if rng.Float64() < p {
						s := sampleOf(&event.Event{Args: [4]uint64{0, 0, uint64(x.sizes[k]), uint64(x.mean)}})
						u.add(&s)
						seen++
					}
				}
			}
			if seen == 0 {
				continue
			}
			told++
			low, high := u.limits()
			if float64(low) <= truth+1 && truth <= float64(high)+1 {
				held++
			}
			if float64(low) < math.Floor(u.seen) {
				t.Fatalf("%s: %d bytes at least, %.0f were seen", name, low, u.seen)
			}
		}
		if share := float64(held) / float64(told); share < 0.94 {
			t.Errorf("%s: the truth lies between the limits in %.3f of %d cases", name, share, told)
		}
	}
}

// TestLimitsOfARisingMean: of a site that was sampled before much else was allocated, and hardly any more then, the
// limits hold the truth, where samples of others tell of the mean.
func TestLimitsOfARisingMean(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const size, blocks, low, high = 3072, 8000, 4096, 32 << 20
	const rounds = 2000
	held, without := 0, 0
	for range rounds {
		var u, alone unchosen
		for i := range blocks {
			mean := float64(high)
			if i < 20 {
				mean = low
			}
			if rng.Float64() < -math.Expm1(-size/mean) {
				s := sampleOf(&event.Event{Args: [4]uint64{0, 0, size, uint64(mean)}})
				u.add(&s)
				u.could(size, high)
				alone.add(&s)
			}
		}
		holds := func(u *unchosen) bool {
			l, h := u.limits()
			return l <= blocks*size && blocks*size <= h
		}
		if holds(&u) {
			held++
		}
		if holds(&alone) {
			without++
		}
	}
	if held < rounds*94/100 {
		t.Errorf("the truth lies between the limits in %d of %d cases, in %d without others", held, rounds, without)
	}
}

// TestLimitsAreNarrow: where samples leave little in doubt, so do the limits.
func TestLimitsAreNarrow(t *testing.T) {
	var u unchosen
	for range 1000 {
		s := sampleOf(&event.Event{Args: [4]uint64{0, 0, 1 << 20, 1 << 20}})
		u.add(&s)
	}
	truth := 1000 * (1 << 20) / (1 - 1/math.E)
	if low, high := u.limits(); float64(low) < 0.93*truth || float64(high) > 1.07*truth || low >= high {
		t.Errorf("%d to %d around %.0f", low, high, truth)
	}
	var sure unchosen
	s := sampleOf(&event.Event{Args: [4]uint64{0, 0, 1 << 20, 4096}})
	sure.add(&s)
	if low, high := sure.limits(); low != 1<<20 || high != 1<<20 {
		t.Errorf("%d to %d of a block that is certain", low, high)
	}
}
