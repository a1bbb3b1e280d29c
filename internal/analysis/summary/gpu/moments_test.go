package gpu

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestQueueInAnyOrder compares a queue that is swept in the order of the activities with one whose times are sorted.
func TestQueueInAnyOrder(t *testing.T) {
	spared := 0
	for seed := range uint64(60) {
		tl := timeline.Build(
			timelinetest.Random(
				timelinetest.Config{Seed: seed, Agent: seed%3 > 0, Both: true, Length: 20 * timelinetest.Millisecond},
			).
				Run(),
		)
		queue := func(sorted bool) queue {
			q := newAsked(tl)
			for i := range tl.Activities {
				q.add(int32(i), &tl.Activities[i])
			}
			if !sorted && !(q.order.startsApart && q.order.endsApart) {
				spared++
			}
			q.order.startsApart, q.order.endsApart = q.order.startsApart || sorted, q.order.endsApart || sorted
			return q.queue(Coverage{}, timeline.Spans{{From: tl.From, To: tl.To}})
		}
		if got, want := queue(false), queue(true); got != want {
			t.Errorf("seed %d: %+v, want %+v", seed, got, want)
		}
	}
	if spared < 10 {
		t.Errorf("%d programs were in some order, want more", spared)
	}
}
