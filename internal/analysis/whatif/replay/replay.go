package replay

import (
	"math"
	"slices"
)

// Observed returns how long the work of the graph took in the recording, ns.
func (g *Graph) Observed() uint64 {
	last := uint64(0)
	for i := range g.criticalResources {
		last = max(last, g.criticalResources[i].at)
	}
	return last
}

// Pace returns how much was done per ns in each of n equal pieces of the recorded work (see counts).
func (g *Graph) Pace(n int) []float64 {
	out, long := make([]float64, n), g.Observed()
	for i := range g.nodes {
		if at := g.nodes[i].at - g.From; at < long && g.counts(&g.nodes[i]) {
			out[at*uint64(n)/long] += float64(n) / float64(long)
		}
	}
	return out
}

// counts reports whether a node is a unit of work: an activity, or where there are none a wait of the main thread.
// Where that seldom waits it is a time that a thread stopped computing, although there are more of these where others
// take its CPU.
func (g *Graph) counts(n *node) bool {
	w := &g.Whats[n.what]
	switch {
	case g.gpu:
		return w.Kind >= Kernel
	case g.waits:
		return g.paces(w)
	}
	return w.Kind == Run
}

// paces reports whether something is a wait of the main thread.
func (g *Graph) paces(w *What) bool {
	return (w.Kind == Wait || w.Kind == External) && w.PID == g.target && w.TID == g.target
}

// often is from how many waits on a tenth of a recording is known to 5%, as far as where it begins and ends goes.
const often = 200

// Replay returns how long the work of the graph takes under a plan, in ns. It takes O(nodes), and one
// slice of as many numbers, which it makes unless scratch has room; it returns that too.
func (g *Graph) Replay(p *Plan, scratch []uint64) (length uint64, ends []uint64) {
	if cap(scratch) < len(g.nodes) {
		scratch = make([]uint64, len(g.nodes))
	}
	r := run{g: g, ends: scratch[:len(g.nodes)]}
	most := 0
	for i := range p.Changes {
		most = max(most, p.Changes[i].Apart)
		r.changes = append(r.changes, g.scale(i, p))
	}
	r.apart = slices.Repeat([]int32{noNode}, most+1)
	until := g.From + g.Observed() // what leaves its thread after the last goal is no part of the work
	for i := range g.nodes {
		r.ends[i] = r.end(int32(i))
		if most > 0 && g.nodes[i].at <= until && r.changes[g.nodes[i].what].Apart > 0 {
			r.beside = max(r.beside, r.ends[i])
		}
	}
	return r.length(), r.ends
}

// run is a replay under way.
type run struct {
	g       *Graph
	changes []scale
	ends    []uint64 // ns since From
	next    int      // into Graph.more
	apart   []int32  // the last node of each sequence
	beside  uint64   // the end of the last of them that is part of the work, ns since From
}

// scale is a Change, and what of it changes nothing.
type scale struct {
	Change
	asWas bool
	polls bool  // it waits for what else it waited for only where its own time is gone
	gpu   bool  // of what a GPU does
	usual delay // delays are cut to that
}

func (g *Graph) scale(i int, p *Plan) scale {
	c := scale{Change: p.Changes[i], gpu: g.Whats[i].Kind >= Kernel, usual: delay{math.MaxUint64, math.MaxUint64}}
	c.asWas, c.polls = c.Scale == 1, g.Whats[i].Polls
	if p.Usual {
		c.usual = g.usual[g.Whats[i].Kind]
	}
	return c
}

// length is how long it takes to do all: as much faster as its threads are on average, each as long as the longest of
// what has left them, and as what its devices have to do.
func (r *run) length() uint64 {
	least := max(r.least(), r.beside)
	rate, weight := 0.0, 0.0
	for i := range r.g.criticalResources {
		criticalResource := &r.g.criticalResources[i]
		at := least
		for _, n := range criticalResource.nodes {
			at = max(at, r.ends[n])
			if p := r.past(n); p != noNode { // the last of what stays, where the end itself has left the thread
				at = max(at, r.ends[p])
			}
		}
		rate += criticalResource.weight * float64(criticalResource.at) / float64(max(at, 1))
		weight += criticalResource.weight
	}
	if rate == 0 {
		return least
	}
	return uint64(float64(r.g.Observed())*weight/rate + 0.5)
}

// least is for how long the busiest engine has to work that does one thing at a time.
func (r *run) least() uint64 {
	least := 0.0
	for _, e := range r.g.engines {
		sum := 0.0
		for i := range r.g.Whats {
			w := &r.g.Whats[i]
			if w.Device == e.device &&
				(e.name == kernels && w.Kind == Kernel || e.name != kernels && w.Kind == Copy &&
					w.Name == names()[e.name]) {
				sum += float64(r.g.Times[i].Own) * r.changes[i].Scale
			}
		}
		least = max(least, sum)
	}
	return uint64(least)
}

// end returns when node i ends, ns since From.
func (r *run) end(i int32) uint64 {
	n := &r.g.nodes[i]
	c := &r.changes[n.what]
	at := uint64(0)
	prev := n.prev
	if c.Apart > 0 {
		prev, r.apart[c.Apart] = r.apart[c.Apart], i
	} else if prev != noNode && r.changes[r.g.nodes[prev].what].Apart > 0 {
		prev = r.past(prev)
	}
	switch {
	case prev != noNode:
		at = r.ends[prev] + lag(n.lagPrev, c.usual.prev, c.Gap)
	case n.prev == noNode && n.dep == noNode:
		at = n.lagPrev
	}
	if n.dep != noNode && !c.Detach && (!c.polls || c.Scale == 0) {
		if dep := r.depOf(n, c); dep != noNode {
			at = max(at, r.ends[dep]+lag(n.lagDep, c.usual.dep, c.Lag))
		}
	}
	if n.more {
		at = r.moreOf(i, at, c)
	}
	if c.asWas {
		return at + n.own
	}
	return at + uint64(float64(n.own)*c.Scale)
}

// depOf returns what a node waits for: where that is a launch behind work that has left the thread, or a copy that has
// left its stream and that a thread waited for, what came before that.
func (r *run) depOf(n *node, c *scale) int32 {
	if d := &r.changes[r.g.nodes[n.dep].what]; d.Apart > 0 && c.gpu != d.gpu {
		return r.past(n.dep)
	}
	return n.dep
}

// past skips the nodes that have left their thread or stream.
func (r *run) past(i int32) int32 {
	for i != noNode && r.changes[r.g.nodes[i].what].Apart > 0 {
		i = r.g.nodes[i].prev
	}
	return i
}

func (r *run) moreOf(i int32, at uint64, c *scale) uint64 {
	for ; r.next < len(r.g.more) && r.g.more[r.next].to <= i; r.next++ {
		if e := &r.g.more[r.next]; e.to == i && !c.Detach {
			at = max(at, r.ends[e.from]+lag(e.lag, c.usual.dep, c.Lag))
		}
	}
	return at
}

func lag(ns, most uint64, by float64) uint64 {
	ns = min(ns, most)
	if by == 1 {
		return ns
	}
	return uint64(float64(ns) * by)
}
