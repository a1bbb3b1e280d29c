package whatif

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// What a thread does from one launch to the next is launching and belongs to no function. The samples in that time show
// which functions launched, so that an edit of one changes its share of it.

// leastLaunching is from how many samples on that share is known.
const leastLaunching = 10

// launchingShare is what share of a thread's launching functions do, by samples.
type launchingShare struct {
	by  float64
	off float64 // half of its interval, relative to it: binomial
}

// launchingOf returns for each thread that launches what share of its launching the functions do that an edit names;
// none where they do nothing of it.
func (s *Study) launchingOf(e Edit) map[thread]launchingShare {
	if e.Cause != cause.Count || e.Verb != Without && e.Verb != Faster {
		return nil
	}
	if known, ok := s.launching[e.Pattern]; ok {
		return known
	}
	out := map[thread]launchingShare{}
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
		if all >= leastLaunching && named > 0 {
			out[th] = launchingShare{named / all, sigmas * math.Sqrt((all-named)/(all*named))}
		}
	}
	s.launching[e.Pattern] = out
	return out
}

// launchingDoubt returns what share of a change of a thread's launching may not be true because few samples show it; 0
// where edits change none, or name it themselves.
func (s *Study) launchingDoubt(edits []Edit, w *replay.What) float64 {
	off := 0.0
	if isLaunching(w) {
		for _, e := range edits {
			if !e.about(w) {
				off = max(off, s.launchingOf(e)[thread{w.PID, w.TID}].off)
			}
		}
	}
	return off
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
