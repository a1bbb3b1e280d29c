package timeline_test

import (
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// TestSpans compares the operations with sets of points.
func TestSpans(t *testing.T) {
	const size = 40
	rng := rand.New(rand.NewPCG(5, 6))
	random := func() timeline.Spans {
		var list []timeline.Span
		for range rng.IntN(6) {
			list = append(list, timeline.Span{From: rng.Uint64N(size), To: rng.Uint64N(size)})
		}
		return timeline.Join(list)
	}
	for range 2000 {
		a, b := random(), random()
		both, without, total := a.Both(b), a.Without(b), uint64(0)
		for x := range uint64(size) {
			if a.Holds(x) {
				total++
			}
			if both.Holds(x) != (a.Holds(x) && b.Holds(x)) || without.Holds(x) != (a.Holds(x) && !b.Holds(x)) {
				t.Fatalf("%v and %v at %d: both %v, without %v", a, b, x, both, without)
			}
		}
		if a.Total() != total || both.Total()+without.Total() != total {
			t.Fatalf("%v: total %d, want %d; with %v: %d and %d", a, a.Total(), total, b, both.Total(), without.Total())
		}
	}
}
