package replay

import (
	"math"
	"testing"
)

// whole makes a graph whose replay is what was recorded.
func whole(g *Graph) *Graph {
	_, ends := g.Replay(g.Unchanged(), nil)
	for i := range g.nodes {
		g.nodes[i].at = ends[i]
	}
	last := uint64(0)
	for _, n := range g.criticalResources[0].nodes {
		last = max(last, ends[n])
	}
	g.criticalResources[0].at, g.gpu = last, true
	return g
}

// TestCrossValidation: what goes on as it was is predicted, and what changes in the middle is not.
func TestCrossValidation(t *testing.T) {
	second, first := CrossValidate([]*Graph{whole(loop(5000))})
	if math.Abs(second) > 0.01 || math.Abs(first) > 0.01 {
		t.Errorf("a program that does not change: %.3f, %.3f", second, first)
	}
	g := loop(5000)
	for i := range g.nodes {
		if i > len(g.nodes)/2 && g.nodes[i].what == 0 {
			g.nodes[i].own *= 2
		}
	}
	// A launch takes 8 µs in the first half and 13 in the second.
	if second, first = CrossValidate([]*Graph{whole(g)}); second > -0.1 || first < 0.1 {
		t.Errorf("a program that computes twice as long in its second half: %.3f, %.3f", second, first)
	}
}
