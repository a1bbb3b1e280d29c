package correlate

import (
	"cmp"
	"slices"
)

// Bounds of the comparison of lanes that do the same at the same time.
const (
	maxCandidates = 16 // lanes for one stream
	maxCompared   = 256
	tighter       = 2.0  // by how much the latencies of the right lane must be closer together,
	fitter        = 1.02 // or by how much more of it must fit
)

// candidate is a lane that a stream's works could come from.
type candidate struct {
	stream, lane int32
	fitting      int    // works in blocks that fit one by one
	spread       uint64 // ns: how far apart the latencies of works on an idle stream are
}

// compare finds the streams of lanes that make the same calls at about the same time, as the workers of a
// server do. Each could be the other; but only from its own lane do the works of an idle
// stream begin after nearly always the same latency, and never too early.
func (p *Problem) compare(votes map[[2]int32]int, totals []int, out []int32, taken []bool) {
	perStream := map[int32][]candidate{}
	for _, key := range sortedKeys(votes) {
		s, lane := key[0], key[1]
		enough := votes[key] >= fewVotes && float64(votes[key]) >= minVoteShare*float64(totals[s])
		if enough && !taken[s] && out[lane] == None && len(perStream[s]) < maxCandidates &&
			len(perStream) < maxCompared {
			perStream[s] = append(perStream[s], p.measure(s, lane))
		}
	}
	var best []candidate
	for s := range int32(p.Streams) {
		if c, ok := clearest(perStream[s]); ok {
			best = append(best, c)
		}
	}
	slices.SortStableFunc(best, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.spread, y.spread), cmp.Compare(x.stream, y.stream))
	})
	for _, c := range best {
		if out[c.lane] == None && !taken[c.stream] {
			out[c.lane], taken[c.stream] = c.stream, true
		}
	}
}

func sortedKeys(votes map[[2]int32]int) [][2]int32 {
	keys := make([][2]int32, 0, len(votes))
	for k := range votes {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y [2]int32) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) })
	return keys
}

// clearest returns the candidate whose latencies are much closer together than all others'.
func clearest(list []candidate) (candidate, bool) {
	most := 0
	for _, c := range list {
		most = max(most, c.fitting)
	}
	var good []candidate
	for _, c := range list {
		if 2*c.fitting >= most && c.fitting > 0 {
			good = append(good, c)
		}
	}
	slices.SortStableFunc(good, func(x, y candidate) int { return cmp.Compare(x.spread, y.spread) })
	switch {
	case len(good) == 0:
		return candidate{}, false
	case len(good) == 1 || float64(good[1].spread) >= tighter*float64(good[0].spread):
		return good[0], true
	}
	slices.SortStableFunc(good, func(x, y candidate) int { return cmp.Compare(y.fitting, x.fitting) })
	return good[0], float64(good[0].fitting) >= fitter*float64(good[1].fitting)
}

// measure tries a lane with a stream.
func (p *Problem) measure(s, lane int32) candidate {
	x := pair{}
	for i := range p.Calls {
		if p.Calls[i].Lane == lane {
			x.calls = append(x.calls, int32(i))
		}
	}
	for i := range p.Works {
		if p.Works[i].Stream == s {
			x.works = append(x.works, int32(i))
		}
	}
	lanes := make([]int32, p.Lanes)
	for i := range lanes {
		lanes[i] = None
	}
	lanes[lane] = s
	p.part(&x, p.cuts(lanes)[s])
	c := candidate{stream: s, lane: lane}
	var latencies []uint64
	for _, b := range x.blocks {
		if len(b.calls) != len(b.works) || !p.same(b, 0, len(b.calls)) {
			continue
		}
		c.fitting += len(b.calls)
		for i, w := range b.works {
			if i == 0 || p.Works[b.works[i-1]].End+idleStart < p.Works[w].Start {
				latencies = append(latencies, p.Works[w].Start+slack-p.Calls[b.calls[i]].Time)
			}
		}
	}
	if n := len(latencies); n > 0 {
		slices.Sort(latencies)
		c.spread = latencies[n*3/4] - latencies[n/4] + 1
	}
	return c
}
