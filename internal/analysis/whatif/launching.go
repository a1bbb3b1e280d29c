package whatif

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// What a thread does from one launch to the next is launching and belongs to no function. The samples in that time show
// which functions launched, so that an edit of one changes its share of it.

// leastLaunching is from how many samples on that share is known.
const leastLaunching = 10

// launchingOf returns for each thread that launches what share of its launching the functions do that an edit names.
func (s *Study) launchingOf(e Edit) map[thread]float64 {
	if e.Cause != cause.Count || e.Verb != Without && e.Verb != Faster {
		return nil
	}
	if known, ok := s.launching[e.Pattern]; ok {
		return known
	}
	out := map[thread]float64{}
	for th := range s.launches {
		sampled := s.sampled[th]
		if sampled == nil {
			continue
		}
		all, named := 0.0, 0.0
		for stack, n := range sampled.launching {
			at := s.names.at(uint64(stack))
			all += n
			if w := (replay.What{Kind: replay.Run, Name: at.function, Callers: at.callers}); e.about(&w) {
				named += n
			}
		}
		if all >= leastLaunching {
			out[th] = named / all
		}
	}
	s.launching[e.Pattern] = out
	return out
}

// launched reports whether a thread was on the way from one launch to the next.
func (n *namer) launched(th thread, at uint64) bool {
	is := false
	n.names.Running(th.pid, th.tid, at, at+1, func(_ uint64, c cause.ID, stack uint64, _ gap.Confidence) {
		is = c == cause.LaunchOverhead && stack == 0
	})
	return is
}

// isLaunching reports whether a What is what a thread does to launch, in a call or from one to the next.
func isLaunching(w *replay.What) bool {
	return w.Cause == cause.LaunchOverhead && (w.Kind == replay.Call || w.Kind == replay.Run && w.Name == "")
}
