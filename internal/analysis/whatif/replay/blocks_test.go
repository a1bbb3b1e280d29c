package replay

import (
	"math"
	"testing"
)

// TestBlocks: blocks hold whole steps, and together all of the work up to the last of them; a change is in each.
func TestBlocks(t *testing.T) {
	g := whole(loop(5000))
	plan := g.Unchanged()
	for i := range g.Whats {
		plan.Changes[i].Scale = 0.5
	}
	length, _ := g.Replay(plan, nil)
	lists := g.Blocks(10, g.Unchanged(), plan)
	if len(lists) != 1 || len(lists[0]) != 10 {
		t.Fatalf("%d lists of blocks: %v", len(lists), lists)
	}
	before, after := 0.0, 0.0
	for _, b := range lists[0] {
		before, after = before+b.Before, after+b.After
		if math.Abs(b.Before*10/float64(g.Observed())-1) > 0.01 || math.Abs(b.After*10/float64(length)-1) > 0.01 {
			t.Errorf("%+v is no tenth of %d and %d", b, g.Observed(), length)
		}
	}
	if uint64(before) != g.Observed() || uint64(after) != length {
		t.Errorf("blocks take %v and %v, want %d and %d", before, after, g.Observed(), length)
	}
}

// TestFewSteps: where steps are longer than blocks, each step is one.
func TestFewSteps(t *testing.T) {
	g := whole(loop(4))
	if lists := g.Blocks(50, g.Unchanged(), g.Unchanged()); len(lists) != 1 || len(lists[0]) < 3 || len(lists[0]) > 5 {
		t.Errorf("blocks of 4 steps: %v", lists)
	}
}
