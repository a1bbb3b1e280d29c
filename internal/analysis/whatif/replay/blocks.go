package replay

// marks divides the work of each critical resource into n blocks of about equal length, and returns the nodes that they
// end with. A block ends where the thread or stream that is last does what it does at its very end, so that it holds
// whole steps; one without such an end is part of the next.
func (g *Graph) marks(n int) [][]int32 {
	out := make([][]int32, len(g.criticalResources))
	for r := range g.criticalResources {
		res := &g.criticalResources[r]
		last := res.nodes[0]
		for _, i := range res.nodes {
			if g.nodes[i].at > g.nodes[last].at {
				last = i
			}
		}
		by := make([]uint64, n) // ns
		for k := range by {
			by[k] = g.From + res.at*uint64(k+1)/uint64(n)
		}
		for _, i := range g.lastAlike(last, by) {
			if i != noNode && (len(out[r]) == 0 || i != out[r][len(out[r])-1]) {
				out[r] = append(out[r], i)
			}
		}
	}
	return out
}

// lastAlike returns, for each of some times (ns, the earliest first), the last node of a lane that ended by then and is
// of the same What as the lane's last node; noNode where there is none.
func (g *Graph) lastAlike(last int32, by []uint64) []int32 {
	out := make([]int32, len(by))
	k := len(by) - 1
	for i := last; k >= 0; i = g.nodes[i].prev {
		if i == noNode {
			for ; k >= 0; k-- {
				out[k] = noNode
			}
			break
		}
		for n := &g.nodes[i]; k >= 0 && n.what == g.nodes[last].what && n.at <= by[k]; k-- {
			out[k] = i
		}
	}
	return out
}

// Block is how long a block of the work takes before a change and after it, ns, and what it weighs among those of its
// graph.
type Block struct{ Before, After, Weight float64 }

// Blocks replays a graph under two plans, and returns how long each block of its work takes in both: for each thread
// that uses the GPU up to n blocks.
func (g *Graph) Blocks(n int, before, after *Plan) [][]Block {
	marks := g.marks(n)
	was, is := g.reached(marks, before), g.reached(marks, after)
	total := weights(g.criticalResources)
	out := make([][]Block, len(marks))
	for r := range marks {
		for k := range marks[r] {
			b := Block{Before: was[r][k], After: is[r][k], Weight: g.criticalResources[r].weight / max(total, 1)}
			if k > 0 {
				b.Before, b.After = b.Before-was[r][k-1], b.After-is[r][k-1]
			}
			out[r] = append(out[r], b)
		}
	}
	return out
}

// reached returns when nodes end under a plan, ns since From: what has left its thread up to there is part of it.
func (g *Graph) reached(marks [][]int32, p *Plan) [][]float64 {
	_, ends := g.Replay(p, nil)
	apart := func(i int32) bool { return p.Changes[g.nodes[i].what].Apart > 0 }
	out := make([][]float64, len(marks))
	for r := range marks {
		next, at := int32(0), uint64(0)
		for _, mark := range marks[r] {
			for ; next <= mark; next++ {
				if apart(next) {
					at = max(at, ends[next])
				}
			}
			i := mark
			for i != noNode && apart(i) {
				i = g.nodes[i].prev
			}
			if i != noNode {
				at = max(at, ends[i])
			}
			out[r] = append(out[r], float64(at))
		}
	}
	return out
}
