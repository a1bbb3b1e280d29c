package diagnose

import (
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// A step of a program may wait for the GPU twenty times alike, and then do something else. By its calls each wait is an
// iteration as good as the step; only the pause after each twentieth shows that they are parts of a whole.

// pause is how many times as long as all of the other times between two anchors those must be which part one turn from
// the next. Times that vary for other reasons leave no such hole between them, as long as there are some on both sides
// of it.
const pause = tail

// pauses returns the anchors that a pause follows, for the longest pauses that come after as many of the same tokens
// each time; nil where there are none.
func pauses(list []token, sums []uint64, at []int32) []int32 {
	gaps, _ := between(list, sums, at, 1)
	if len(gaps) != len(at)-1 { // some lie in several windows: who knows what is between these
		return nil
	}
	sorted := slices.Clone(gaps)
	slices.Sort(sorted)
	for i := len(sorted) - minIterations; i >= len(sorted)/2 && i > 0; i-- { // half of them at most are pauses, or else what is between is none
		if float64(sorted[i]) < pause*float64(sorted[i-1]) {
			continue
		}
		var ends []int32
		for k, g := range gaps {
			if g >= sorted[i] {
				ends = append(ends, at[k])
			}
		}
		turns, hashes := between(list, sums, ends, 1)
		if _, n := mode(hashes); len(turns) >= minIterations && float64(n) >= alike*float64(len(turns)) {
			return ends
		}
	}
	return nil
}

// turnOf finds the turns that iterations make, which begin and end at the places of a sequence.
func turnOf(list []token, sums []uint64, at []int32) *Turn {
	ends := pauses(list, sums, at)
	if ends == nil {
		return nil
	}
	gaps, _ := between(list, sums, ends, 1)
	return &Turn{Of: uint64(perTurn(at, ends)), P50: quantile.Median(gaps)}
}

// perTurn returns how many anchors there are for each pause.
func perTurn(at, ends []int32) int {
	first, last := slices.Index(at, ends[0]), slices.Index(at, ends[len(ends)-1])
	return int(math.Round(float64(last-first) / float64(len(ends)-1)))
}

// inTurns takes the turns for iterations, where nothing comes back in less.
func inTurns(list []token, sums []uint64, places map[uint64][]int32, keys []uint64) (found, bool) {
	var best found
	for _, k := range keys {
		at := places[k]
		ends := pauses(list, sums, at)
		if ends == nil || best.gaps != nil && len(ends) > len(best.at) {
			continue
		}
		gaps, hashes := between(list, sums, ends, 1)
		most, _ := mode(hashes)
		f := found{key: k, gaps: gaps, kind: list[at[0]].kind, each: perTurn(at, ends), at: ends, turned: true}
		if f.isPart(list) {
			continue
		}
		f.from, f.to = extent(list, sums, ends, 1, most)
		best = f
	}
	return best, best.gaps != nil
}

// turns takes the turns of what comes back for iterations, where it makes some.
func turns(list []token, f *found) (found, bool) {
	part := sampled(list)
	at := map[uint64][]int32{}
	for i := range part {
		if part[i].key == f.key {
			at[f.key] = append(at[f.key], int32(i))
		}
	}
	out, ok := inTurns(part, prefix(part), at, []uint64{f.key})
	if ok && len(part) == len(list) {
		out.begins(list)
	}
	return out, ok
}

// starved reports whether a thread had no CPU for some of the time. Then its pauses may be none of its own, and come as
// regularly: others have the CPU in turns, and a quota is used up every 100 ms.
func (a *analysis) starved(pid, tid uint32) bool {
	without := uint64(0)
	for _, i := range a.t.Index.OffCPU {
		switch e := &a.t.Rec.Events[i]; {
		case e.PID != pid || e.TID != tid || e.Flags&event.Mark != 0:
		case e.Flags&event.Preempted != 0:
			without += e.Dur
		case e.Args[0] != 0:
			without += e.Dur - min(e.Dur, e.Args[0])
		}
	}
	return share(without, a.t.To-a.t.From) >= leastShare
}
