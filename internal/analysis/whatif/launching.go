package whatif

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// What a thread does from one launch to the next is launching and belongs to no function. Samples show all the same
// which functions launched, so that an edit of one changes its share of that time.

// leastLaunching is from what share of a function's time on it is launching that no name accounts for; below, it cannot
// be told from the chance of samples.
const leastLaunching = 0.25

// launchingOf returns for each thread that launches what share of its launching the functions do that an edit names.
func (s *Study) launchingOf(e Edit) map[thread]float64 {
	if e.Cause != cause.Count || e.Verb != Without && e.Verb != Faster {
		return nil
	}
	if known, ok := s.launching[e.Pattern]; ok {
		return known
	}
	type times struct{ ran, launching, named float64 }
	all := map[thread]*times{}
	for th := range s.launches {
		all[th] = &times{}
	}
	for _, p := range s.parts {
		for i := range p.graph.Whats {
			w := &p.graph.Whats[i]
			t := all[thread{w.PID, w.TID}]
			if t == nil || w.Kind != replay.Run && w.Kind != replay.Call {
				continue
			}
			own := float64(p.graph.Times[i].Own)
			t.ran += own
			switch {
			case e.about(w):
				t.named += own
			case isLaunching(w):
				t.launching += own
			}
		}
	}
	out := map[thread]float64{}
	for th, t := range all {
		sampled := s.sampled[th]
		if sampled == nil || sampled.n == 0 || t.launching == 0 {
			continue
		}
		n := 0.0
		for stack, times := range sampled.stacks {
			at := s.names.at(uint64(stack))
			if w := (replay.What{Kind: replay.Run, Name: at.function, Callers: at.callers}); e.about(&w) {
				n += times
			}
		}
		whole := n / sampled.n * t.ran
		missing := whole - t.named
		if missing > leastLaunching*whole && missing > sigmas*2*math.Sqrt(n)/sampled.n*t.ran {
			out[th] = min(1, missing/t.launching)
		}
	}
	s.launching[e.Pattern] = out
	return out
}

// isLaunching reports whether a What is what a thread does to launch, in a call or from one to the next.
func isLaunching(w *replay.What) bool {
	return w.Cause == cause.LaunchOverhead && (w.Kind == replay.Call || w.Kind == replay.Run && w.Name == "")
}
