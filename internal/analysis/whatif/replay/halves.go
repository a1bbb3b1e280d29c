package replay

import "math"

// CrossValidate says how far off a replay is that knows what waited for what, but not how long it took: in one half of
// the recording each thing takes as much time as in the other half, for as much work, and delays are what is usual
// there. It is relative to the half, once for the second and once for the first; graphs are stretches of one recording.
func CrossValidate(graphs []*Graph) (second, first float64) {
	return predict(graphs, true), predict(graphs, false)
}

// half reports whether a node that ended at a time (ns) is in the half of the work that is asked about. It is made once
// for a graph: what was observed is looked for among all threads.
func (g *Graph) half(second bool) (asked func(at uint64) bool, observed uint64) {
	observed = g.Observed()
	middle := g.From + observed/2
	return func(at uint64) bool { return (at > middle) == second }, observed
}

// folds is what is learned from a half.
type folds struct {
	scale map[What]float64 // of the time of its nodes
	lags  [kinds][2]uint64 // by kind of the node: after the one before it, after what else it waited for; ns
}

// tally is how much time went to each thing in a half, ns, and how much was done.
type tally struct {
	own  map[What]float64
	work float64
}

func predict(graphs []*Graph, second bool) float64 {
	l := learn(graphs, second)
	var off, of float64
	for _, g := range graphs {
		asked, observed := g.half(second)
		guess := *g
		guess.nodes = make([]node, len(g.nodes))
		for i := range g.nodes {
			guess.nodes[i] = g.nodes[i]
			if asked(g.nodes[i].at) {
				l.apply(g, &guess.nodes[i])
			}
		}
		length, _ := guess.Replay(g.Unchanged(), nil)
		off += float64(length) - float64(observed)
		of += float64(observed) / 2
	}
	if of == 0 {
		return 0
	}
	return off / of
}

// learn reads the half that nobody asks about, and of the other one how its time is divided.
func learn(graphs []*Graph, second bool) *folds {
	known, other := tally{own: map[What]float64{}}, tally{own: map[What]float64{}}
	var lags [kinds][2][]uint64
	for _, g := range graphs {
		asked, observed := g.half(second)
		for i := range g.nodes {
			n := &g.nodes[i]
			if n.at-g.From > observed {
				continue
			}
			if asked(n.at) {
				other.add(g, n)
				continue
			}
			known.add(g, n)
			k := g.Whats[n.what].Kind
			if prev, dep := g.later(n); prev {
				lags[k][0] = append(lags[k][0], n.lagPrev)
			} else if dep {
				lags[k][1] = append(lags[k][1], n.lagDep)
			}
		}
	}
	l := &folds{scale: map[What]float64{}}
	for w, ns := range other.own {
		if ns > 0 && known.work > 0 {
			l.scale[w] = known.own[w] / known.work / (ns / other.work)
		}
	}
	for k := range lags {
		l.lags[k] = [2]uint64{median(lags[k][0], math.MaxUint64), median(lags[k][1], math.MaxUint64)}
	}
	return l
}

func (t *tally) add(g *Graph, n *node) {
	t.own[g.Whats[n.what]] += float64(n.own)
	if g.counts(n) {
		t.work++
	}
}

// later says which of the two that a node waited for held it up: neither where it is the first of its lane.
func (g *Graph) later(n *node) (prev, dep bool) {
	switch {
	case n.prev == noNode:
		return false, n.dep != noNode
	case n.dep == noNode:
		return true, false
	}
	dep = g.nodes[n.dep].at+n.lagDep >= g.nodes[n.prev].at+n.lagPrev
	return !dep, dep
}

// apply gives a node of the other half what was learned.
func (l *folds) apply(g *Graph, n *node) {
	if by, ok := l.scale[g.Whats[n.what]]; ok {
		n.own = uint64(float64(n.own) * by)
	}
	usual := &l.lags[g.Whats[n.what].Kind]
	if prev, dep := g.later(n); prev && usual[0] != math.MaxUint64 {
		n.lagPrev = usual[0]
	} else if dep && usual[1] != math.MaxUint64 {
		n.lagDep = usual[1]
	}
}
