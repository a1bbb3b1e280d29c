// Package correlate finds out which call asked for which work of a GPU where no
// correlation id says so: by order, shape and time. It links what is safe to link,
// and leaves the rest alone: a wrong link is worse than none.
//
// What it rests on: the works of a stream run in the order of their calls; a work never
// begins before its call; a synchronization parts what came before it from what comes
// after. Calls and works can be missing on either side.
package correlate

import (
	"cmp"
	"slices"
)

// None stands where there is no call, stream or lane.
const None int32 = -1

// Call is something that a program asked of a GPU.
type Call struct {
	Time  uint64 // ns
	Shape uint32 // equal for a call and its work, as far as both are known
	Lane  int32  // the stream as calls name it: 0 to Problem.Lanes - 1
}

// Work is something that a GPU did.
type Work struct {
	Start, End uint64 // ns, on the clock of the calls
	Shape      uint32
	Stream     int32 // the stream as works name it: 0 to Problem.Streams - 1
}

// Barrier is a time for which somebody waited until a stream was done: at To everything that
// was asked of it before From had ended.
type Barrier struct {
	From, To uint64 // ns
	Lane     int32  // of calls, or None
	Stream   int32  // of works, or None; with both None it is about every stream
}

// Problem is what is to be linked. It is about one process and one stretch of time.
type Problem struct {
	Calls    []Call // by Time
	Works    []Work // by Start
	Barriers []Barrier
	Lanes    int
	Streams  int
	Known    []int32 // the stream of each lane, or None; nil: none is known
	// CallLoss and WorkLoss are the shares known to be missing; what shows itself is added.
	CallLoss, WorkLoss float64
}

// Link is the call of a work.
type Link struct {
	Call       int32 // index into Problem.Calls, None where it is not known
	Confidence float32
}

// safe is the least confidence with which a work is linked.
const safe = 0.99

// slack is by how much a work may seem to begin before its call, ns: clocks are read at different places.
const slack = 1000

// Match links works to calls. It returns a Link for each work, and the stream that it took
// each lane for.
func Match(p *Problem) ([]Link, []int32) {
	links := make([]Link, len(p.Works))
	for i := range links {
		links[i].Call = None
	}
	lanes := p.lanes()
	pairs := p.pairs(lanes)
	loss := p.losses(pairs)
	if loss.calls > gross || loss.works > gross {
		return links, lanes
	}
	for i := range pairs {
		for _, b := range pairs[i].blocks {
			p.align(b, loss, links)
		}
	}
	return links, lanes
}

// pair is a stream with both of its sides.
type pair struct {
	calls, works []int32 // indices, in order
	blocks       []block
}

// block is a stretch of a stream between two times at which it was empty.
type block struct {
	calls, works []int32
	// it touches the beginning or the end of what was recorded: works can lack calls there, or calls works
	head, tail bool
}

// pairs puts both sides of each stream together and parts them into blocks.
func (p *Problem) pairs(lanes []int32) []pair {
	place := make([]int32, p.Streams)
	for i := range place {
		place[i] = None
	}
	out := []pair{}
	for _, s := range lanes {
		if s != None && place[s] == None {
			place[s] = int32(len(out))
			out = append(out, pair{})
		}
	}
	for i := range p.Calls {
		if s := lanes[p.Calls[i].Lane]; s != None {
			x := &out[place[s]]
			x.calls = append(x.calls, int32(i))
		}
	}
	for i := range p.Works {
		if at := place[p.Works[i].Stream]; at != None {
			out[at].works = append(out[at].works, int32(i))
		}
	}
	cuts := p.cuts(lanes)
	for s, at := range place {
		if at != None {
			p.part(&out[at], cuts[s])
		}
	}
	return out
}

// cuts gathers the barriers of each stream.
func (p *Problem) cuts(lanes []int32) [][]Barrier {
	out := make([][]Barrier, p.Streams)
	for _, b := range p.Barriers {
		switch {
		case b.Stream != None:
			out[b.Stream] = append(out[b.Stream], b)
		case b.Lane == None:
			for s := range out {
				out[s] = append(out[s], b)
			}
		case lanes[b.Lane] != None:
			out[lanes[b.Lane]] = append(out[lanes[b.Lane]], b)
		}
	}
	return out
}

// part cuts a stream into blocks, at barriers and where it was idle.
func (p *Problem) part(x *pair, barriers []Barrier) {
	times := p.idle(x)
	for _, b := range barriers {
		if p.quiet(x, b) {
			times = append(times, b.To)
		}
	}
	slices.Sort(times)
	c, w := 0, 0
	for i, t := range times {
		if i > 0 && t == times[i-1] {
			continue
		}
		c0, w0 := c, w
		for c < len(x.calls) && p.Calls[x.calls[c]].Time < t {
			c++
		}
		for w < len(x.works) && p.Works[x.works[w]].Start < t {
			w++
		}
		if c > c0 || w > w0 {
			x.blocks = append(x.blocks, block{calls: x.calls[c0:c], works: x.works[w0:w], head: i == 0})
		}
	}
	if c < len(x.calls) || w < len(x.works) {
		x.blocks = append(x.blocks, block{calls: x.calls[c:], works: x.works[w:], head: len(times) == 0, tail: true})
	}
}

// quiet reports whether nobody asked anything of the stream during a barrier: then its end parts both sides.
func (p *Problem) quiet(x *pair, b Barrier) bool {
	i, _ := slices.BinarySearchFunc(x.calls, b.From,
		func(c int32, at uint64) int { return cmp.Compare(p.Calls[c].Time, at) })
	return i == len(x.calls) || p.Calls[x.calls[i]].Time > b.To
}

// idleGap is after how long without a call a stream that runs nothing is taken to be empty, ns: some
// ten times the longest latency of a launch.
const idleGap = 200_000

// idle returns the times of calls before which the stream had nothing to do for long.
func (p *Problem) idle(x *pair) []uint64 {
	var out []uint64
	w, end := 0, uint64(0)
	for i := 1; i < len(x.calls); i++ {
		t := p.Calls[x.calls[i]].Time
		for w < len(x.works) && p.Works[x.works[w]].Start < t {
			end = max(end, p.Works[x.works[w]].End)
			w++
		}
		if t-p.Calls[x.calls[i-1]].Time >= idleGap && end+idleGap/4 <= t {
			out = append(out, t)
		}
	}
	return out
}

// loss is how often something is missing.
type loss struct{ calls, works float64 }

// gross is the share of missing calls or works from which on nothing is linked.
const gross = 0.1

// leastLoss is what is assumed where nothing is known to be missing.
const leastLoss = 1e-6

// losses estimates what is missing, from the blocks with unequal sides.
func (p *Problem) losses(pairs []pair) loss {
	calls, works, lostCalls, lostWorks := 1, 1, 0, 0
	for i := range pairs {
		for _, b := range pairs[i].blocks {
			if b.head || b.tail {
				continue
			}
			calls += len(b.calls)
			works += len(b.works)
			lostCalls += max(0, len(b.works)-len(b.calls))
			lostWorks += max(0, len(b.calls)-len(b.works))
		}
	}
	return loss{
		calls: max(leastLoss, p.CallLoss, float64(lostCalls)/float64(works)),
		works: max(leastLoss, p.WorkLoss, float64(lostWorks)/float64(calls)),
	}
}
