package diagnose

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// TestExposedCommunication compares the sweep with a count of ns: exposed is what communicates while nothing computes,
// as in Holistic Trace Analysis (comm_comp_overlap is 1 - exposed/all).
func TestExposedCommunication(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		type interval struct {
			what     doing
			from, to uint64
		}
		var list []interval
		kinds := []doing{fullKernel, tinyKernel, communicating, freeToDevice, setting}
		for range 30 {
			from := rng.Uint64N(900)
			list = append(list, interval{kinds[rng.IntN(len(kinds))], from, from + rng.Uint64N(90)})
		}
		slices.SortFunc(list, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
		inside := timeline.Join([]timeline.Span{{From: 50, To: 400}, {From: 450, To: 1000}})
		s := sweep{inside: cutter{spans: inside}, both: cutter{spans: inside}, third: cutter{spans: inside}}
		for _, x := range list {
			s.add(x.what, x.from, x.to)
		}
		s.finish()
		exposed, talked := uint64(0), uint64(0)
		for ns := range uint64(1000) {
			in := ns >= 50 && ns < 400 || ns >= 450
			computes, talks := false, false
			for _, x := range list {
				if ns >= x.from && ns < x.to && in {
					computes = computes || x.what <= tinyKernel
					talks = talks || x.what == communicating
				}
			}
			if talks {
				talked++
				if !computes {
					exposed++
				}
			}
		}
		if s.Time[communicating] != exposed || s.talked != talked {
			t.Fatalf("seed %d: exposed %d of %d ns, want %d of %d",
				seed, s.Time[communicating], s.talked, exposed, talked)
		}
	}
}
