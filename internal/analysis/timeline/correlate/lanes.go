package correlate

import (
	"cmp"
	"slices"
)

// How the stream of a lane is learned.
const (
	nearby       = 100_000 // ns: a work on an idle stream begins so soon after its call
	idleStart    = 3_000   // ns: works that wait in the queue follow each other at once, within 1 to 2 µs
	maxNearby    = 128     // calls that are looked at for one work
	fewVotes     = 3
	minVoteShare = 0.75 // share of a stream's votes that its lane must have
	lead         = 1.3  // and by how much it must lead
)

// lanes finds the stream of each lane. On an idle stream a work begins right after its
// call, so each such work votes for the lanes that made a call of its shape just before.
func (p *Problem) lanes() []int32 {
	out := make([]int32, p.Lanes)
	for i := range out {
		out[i] = None
	}
	taken := make([]bool, p.Streams)
	for lane, s := range p.Known {
		if s != None {
			out[lane], taken[s] = s, true
		}
	}
	votes, totals := p.votes(taken)
	p.elect(votes, totals, out, taken)
	p.compare(votes, totals, out, taken)
	p.lastOnes(out, taken)
	return out
}

// vote is the votes of one stream for one lane.
type vote struct {
	stream, lane int32
	votes        int
}

// elect gives each stream the lane that most of its votes are for.
func (p *Problem) elect(votes map[[2]int32]int, totals []int, out []int32, taken []bool) {
	best, second := make([]vote, p.Streams), make([]int, p.Streams)
	for key, n := range votes {
		b := vote{key[0], key[1], n}
		switch old := best[b.stream]; {
		case n > old.votes || n == old.votes && b.lane < old.lane:
			best[b.stream], second[b.stream] = b, max(second[b.stream], old.votes)
		default:
			second[b.stream] = max(second[b.stream], n)
		}
	}
	slices.SortStableFunc(best,
		func(x, y vote) int { return cmp.Or(cmp.Compare(y.votes, x.votes), cmp.Compare(x.stream, y.stream)) })
	for _, b := range best {
		s := b.stream
		clear := b.votes >= fewVotes && float64(b.votes) >= minVoteShare*float64(totals[s]) &&
			float64(b.votes) >= lead*float64(second[s])
		if clear && out[b.lane] == None && !taken[s] {
			out[b.lane], taken[s] = s, true
		}
	}
}

// votes counts for each stream how often it was idle, and how often each lane had called
// just before it was not.
func (p *Problem) votes(taken []bool) (votes map[[2]int32]int, totals []int) {
	votes, totals = map[[2]int32]int{}, make([]int, p.Streams)
	ends := make([]uint64, p.Streams)
	var lanes []int32
	next := 0
	for i := range p.Works {
		w := &p.Works[i]
		for next < len(p.Calls) && p.Calls[next].Time <= w.Start {
			next++
		}
		idle := ends[w.Stream]+idleStart < w.Start
		ends[w.Stream] = max(ends[w.Stream], w.End)
		if !idle || taken[w.Stream] {
			continue
		}
		lanes = lanes[:0]
		for c := next - 1; c >= max(0, next-maxNearby) && p.Calls[c].Time+nearby >= w.Start; c-- {
			if p.Calls[c].Shape == w.Shape && !slices.Contains(lanes, p.Calls[c].Lane) {
				lanes = append(lanes, p.Calls[c].Lane)
			}
		}
		if len(lanes) > 0 {
			totals[w.Stream]++
		}
		for _, l := range lanes {
			votes[[2]int32{w.Stream, l}]++
		}
	}
	return votes, totals
}

// lastOnes puts a single lane and a single stream that are left together, if as much was asked as was done.
func (p *Problem) lastOnes(out []int32, taken []bool) {
	calls, works := make([]int, p.Lanes), make([]int, p.Streams)
	for i := range p.Calls {
		calls[p.Calls[i].Lane]++
	}
	for i := range p.Works {
		works[p.Works[i].Stream]++
	}
	lane, stream := None, None
	for l, s := range out {
		if s == None && calls[l] > 0 {
			if lane != None {
				return
			}
			lane = int32(l)
		}
	}
	for s := range taken {
		if !taken[s] && works[s] > 0 {
			if stream != None {
				return
			}
			stream = int32(s)
		}
	}
	if lane != None && stream != None && 2*calls[lane] > works[stream] && 2*works[stream] > calls[lane] {
		out[lane] = stream
	}
}
