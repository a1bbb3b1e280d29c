package gpu

import (
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestExposed compares how long copies ran without a kernel with a count of ns.
func TestExposed(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		rec := &recording.Recording{
			Meta: recording.Meta{From: 0, To: 2000, Processes: []recording.Process{{PID: 1}}, GPU: &recording.GPU{
				Windows: []recording.GPUWindow{{PID: 1, From: 0, To: 2000, Activity: true}},
			}},
		}
		kernel, copied := [2001]bool{}, [3][2001]bool{}
		for at := uint64(0); at < 1500; at += rng.Uint64N(60) {
			e := event.Event{
				TS:    at,
				Dur:   rng.Uint64N(100),
				PID:   1,
				TID:   1 + uint32(rng.IntN(3)),
				Kind:  event.Kernel,
				Flags: event.Timed,
			}
			row := rng.IntN(4)
			if row < 3 {
				e.Kind, e.Ret = event.Copy, int32(row)
			}
			for ns := e.TS; ns < e.TS+e.Dur; ns++ {
				kernel[ns] = kernel[ns] || row == 3
				if row < 3 {
					copied[row][ns] = true
				}
			}
			rec.Events = append(rec.Events, e)
		}
		for _, got := range Summarize(timeline.Build(rec)).Copies {
			row := map[string]int{"unknown": 0, "H2D": 1, "D2H": 2}[got.Direction]
			ran, exposed := uint64(0), uint64(0)
			for ns := range kernel {
				if copied[row][ns] {
					ran++
					if !kernel[ns] {
						exposed++
					}
				}
			}
			if got.Time != ran || got.Exposed != exposed {
				t.Fatalf("seed %d: %s ran for %d ns and was exposed for %d, want %d and %d",
					seed, got.Direction, got.Time, got.Exposed, ran, exposed)
			}
		}
	}
}
