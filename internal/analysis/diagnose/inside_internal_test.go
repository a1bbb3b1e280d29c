package diagnose

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// TestInsideMean: what is recorded in windows is shared by the iterations in them, whole or in part, and not by those
// outside, which take three times as long here.
func TestInsideMean(t *testing.T) {
	it := &Iteration{From: 1000, Always: true, Mean: 20}
	at := it.From
	for i := range 40 {
		d := uint64(10)
		if i/10%2 == 1 {
			d = 30
		}
		it.Durations = append(it.Durations, d)
		at += d
	}
	it.To = at
	a := &analysis{w: &gap.Walk{Covered: []timeline.Spans{{{From: 1005, To: 1095}, {From: 1405, To: 1495}}}}}
	if got := a.insideMean(it); got != 10 {
		t.Errorf("%d ns, want 10", got)
	}
	a.w.Covered[0][0] = timeline.Span{From: 1085, To: 1115} // 1.5 of 10 ns, and half of one of 30 ns
	a.w.Covered[0] = a.w.Covered[0][:1]
	if got := a.insideMean(it); got != 15 {
		t.Errorf("%d ns, want 15", got)
	}
	a.w.Covered = nil
	if got := a.insideMean(it); got != it.Mean {
		t.Errorf("nothing was seen: %d ns", got)
	}
	it.Always = false
	a.w.Covered = []timeline.Spans{{{From: 1000, To: 1100}}}
	if got := a.insideMean(it); got != it.Mean {
		t.Errorf("iterations of windows: %d ns", got)
	}
}
