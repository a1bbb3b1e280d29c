package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// Predict says what the remedy of a cause would bring to what is broken down (Work.Within); false where nothing can be
// said. It depends on the same recording alone, so that a diagnosis stays a pure function of it.
type Predict func(id cause.ID) (Gain, bool)

// apart is the share of the time by which two predicted gains must differ to be told apart: what predictions of package
// whatif are off by even where every name is right (docs/accuracy.md).
const apart = 0.05

// predicted adds what the remedy of each finding would bring. What is left to gain and would bring less than could be
// measured goes.
func (a *analysis) predicted(list []ranked, predict Predict) []ranked {
	for i := range list {
		if g, ok := predict(list[i].id); ok {
			a.bounded(&g)
			list[i].Gain = &g
		}
	}
	return slices.DeleteFunc(list, func(f ranked) bool { return f.rank == leftOver && f.saves() < leastShare })
}

// bounded keeps a gain within what the kernels allow over the whole of what was recorded, which may be more than what a
// prediction was made from: no remedy that is predicted changes them.
func (a *analysis) bounded(g *Gain) {
	most := a.total.most()
	if g.High <= most {
		return
	}
	g.High = most
	g.Low = min(g.Low, most)
	if g.Speedup >= most {
		g.Speedup = most
		g.Limit = fmt.Sprintf("the kernels, which take %.0f%% of the time as they are", 100/most)
	}
}

// byGain orders findings of one rank by what their remedies bring, the most first, and of those that bring alike the
// dearest first: a cause may cost much and hide another that would cost the same were it gone. list is in the order of
// cost.
func byGain(list []ranked) []ranked {
	out := make([]ranked, 0, len(list))
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].rank == list[0].rank {
			n++
		}
		out = append(out, payMost(slices.Clone(list[:n]))...)
		list = list[n:]
	}
	return out
}

// payMost takes again and again the dearest finding of those that bring as much as the best, or nearly.
func payMost(list []ranked) []ranked {
	var out []ranked
	for len(list) > 0 {
		best := &list[0]
		for i := range list {
			if list[i].saves() > best.saves() {
				best = &list[i]
			}
		}
		i := 0
		for !list[i].like(best) {
			i++
		}
		out = append(out, list[i])
		list = slices.Delete(list, i, i+1)
	}
	return out
}

// like reports whether a finding cannot be told from the one that brings most: by less than what predictions are off, or
// because the intervals of both meet.
func (f *ranked) like(best *ranked) bool {
	return f.saves() >= best.saves()-apart || f.Gain != nil && best.Gain != nil && f.Gain.High >= best.Gain.Low
}

// saves is the share of the time that the remedy of a finding saves; where nobody can say, what it costs: it saves no
// more.
func (f *ranked) saves() float64 {
	if f.Gain == nil || f.Gain.Speedup <= 0 {
		return f.Share
	}
	return max(0, 1-1/f.Gain.Speedup)
}
