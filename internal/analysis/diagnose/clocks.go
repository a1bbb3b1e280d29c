package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/format"
)

// heldGPU is a GPU of the target whose clocks are limited by something other than its work.
type heldGPU struct {
	*sensors.GPU
	reason sensors.Reason
}

// heldDown returns these GPUs, and the number of the target's GPUs that have sensor samples.
func (a *analysis) heldDown() (held []heldGPU, used int) {
	s := sensors.Summarize(a.t.Rec, sensors.Rates{})
	if s == nil {
		return nil, 0
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !g.Used {
			continue
		}
		used++
		if r, is := g.HeldDown(); is {
			held = append(held, heldGPU{g, r})
		}
	}
	return held, used
}

// lostToClocks is how much sooner kernels would be over, ns, summed over GPUs, were their clocks not held down and did
// they all follow the clock: an upper bound, for those that wait for memory do not.
func (a *analysis) lostToClocks() uint64 {
	held, used := a.heldDown()
	lost := 0.0
	for _, g := range held {
		lost += g.reason.Lost / float64(used)
	}
	return uint64(lost * float64(a.total.compute()))
}

// clocksTitle names the GPU, or the number of GPUs.
func (a *analysis) clocksTitle() string {
	held, _ := a.heldDown()
	if len(held) != 1 {
		return fmt.Sprintf("The clocks of %d GPUs are held down", len(held))
	}
	g := held[0]
	return fmt.Sprintf(
		"The clock of GPU %d is held down to %d of %d MHz: %s",
		g.Index,
		g.reason.Clock,
		g.SMClockMax,
		g.reason.Reason,
	)
}

// clocks returns what the sensors of each GPU showed.
func (a *analysis) clocks(f *Finding) {
	held, _ := a.heldDown()
	for _, g := range held {
		heat := ""
		if g.Temperature > 0 { // 0: not known
			heat = fmt.Sprintf(" %d C at most,", g.Temperature)
		}
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(
			"GPU %d (%s) ran at %d MHz on average while this was so, of %d MHz that it can: %s for %s of its busy time,"+
				"%s %d of %d W.",
			g.Index,
			format.Clean(g.Name),
			g.reason.Clock,
			g.SMClockMax,
			g.reason.Reason,
			format.Percent(g.reason.Share),
			heat,
			g.Power/1000,
			g.PowerLimit/1000,
		)})
	}
	if f.Share < 1 {
		f.Evidence = append(
			f.Evidence,
			Evidence{
				Text: fmt.Sprintf(
					"Kernels that compute would be faster by as much: the whole by %.2fx at most. Kernels that wait for memory gain less.",
					1/(1-f.Share),
				),
			},
		)
	}
}
