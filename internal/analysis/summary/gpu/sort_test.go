package gpu

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSortTimes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for _, n := range []int{0, 1, fewTimes - 1, fewTimes, 3*fewTimes + 7} {
		for _, bits := range []int{1, digitBits, 3*digitBits + 1, 64} {
			list := make([]uint64, n)
			for i := range list {
				list[i] = rng.Uint64()>>(64-bits) + rng.Uint64N(2)<<40
			}
			want := slices.Clone(list)
			slices.Sort(want)
			if sortTimes(list); !slices.Equal(list, want) {
				t.Errorf("%d times of %d bits are not in order", n, bits)
			}
		}
	}
}
