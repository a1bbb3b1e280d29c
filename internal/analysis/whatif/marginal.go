package whatif

import (
	"cmp"
	"maps"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// Marginal is what making one function, call, copy or kernel faster would bring, all else the same: a virtual speed-up
// (Curtsinger and Berger, "Coz", SOSP 2015), from a recording.
type Marginal struct {
	Name  string  `json:"name"`
	Kind  string  `json:"kind"` // function, call, kernel, copy
	Time  uint64  `json:"ns"`   // that it took in all threads or streams
	Twice float64 `json:"twice_as_fast"`
	Gone  float64 `json:"gone"` // speed-up were it for nothing: no change to it can bring more
}

// mostMarginals is how many of the dearest are replayed.
const mostMarginals = 64

// item is what a Marginal is about.
type item struct {
	kind string
	name string
}

// Marginals returns what the dearest functions, calls, copies and kernels would bring, the most first.
func (s *Study) Marginals() []Marginal {
	times := map[item]uint64{}
	for _, p := range s.parts {
		for i := range p.graph.Whats {
			if it, ok := itemOf(&p.graph.Whats[i]); ok {
				times[it] += p.graph.Times[i].Own
			}
		}
	}
	items := slices.SortedFunc(maps.Keys(times), func(x, y item) int {
		return cmp.Or(cmp.Compare(times[y], times[x]), cmp.Compare(x.kind, y.kind), cmp.Compare(x.name, y.name))
	})
	out := []Marginal{}
	for _, it := range items[:min(len(items), mostMarginals)] {
		if times[it] > 0 {
			out = append(
				out,
				Marginal{
					Name:  it.name,
					Kind:  it.kind,
					Time:  times[it],
					Twice: s.scaled(it, 0.5),
					Gone:  s.scaled(it, 0),
				},
			)
		}
	}
	slices.SortStableFunc(
		out,
		func(x, y Marginal) int { return cmp.Or(cmp.Compare(y.Gone, x.Gone), cmp.Compare(y.Time, x.Time)) },
	)
	return out
}

// scaled is the speed-up of one item's time.
func (s *Study) scaled(it item, by float64) float64 {
	return s.speedup(s.length(func(g *replay.Graph, p *replay.Plan) {
		for i := range g.Whats {
			if of, ok := itemOf(&g.Whats[i]); ok && of == it {
				p.Changes[i].Scale = by
			}
		}
	}))
}

func itemOf(w *replay.What) (item, bool) {
	switch w.Kind {
	case replay.Run:
		return item{"function", w.Name}, w.Name != "" && !w.Recorder
	case replay.Call:
		return item{"call", w.Name}, true
	case replay.Kernel:
		return item{"kernel", w.Name}, true
	case replay.Copy:
		return item{"copy", w.Name}, true
	}
	return item{}, false
}
