package timeline

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestAheadReadsCalls holds that the call of an activity was read when the activity is looked at, wherever one begins
// to look.
func TestAheadReadsCalls(t *testing.T) {
	const threads, each = 2 * fewThreads, prefetchMin
	tl := &Timeline{Rec: &recording.Recording{Events: make([]event.Event, threads*each)}}
	for i := range int32(threads * each) {
		thread, turn := i%threads, i/threads
		tl.Activities = append(tl.Activities, Activity{Start: uint64(i) + 50, Event: i, Op: thread*each + turn})
	}
	for k := range int32(threads) {
		tl.Threads = append(tl.Threads, Thread{First: k * each, Last: (k + 1) * each})
		for turn := range uint64(each) {
			tl.Ops = append(tl.Ops, Op{Start: turn*threads + uint64(k)})
		}
	}
	last := int32(len(tl.Activities))
	for _, first := range []int32{0, 1, last / 2, last - 1, 0} {
		a := tl.Prefetcher(true)
		for i := first; i < last; i++ {
			a.Look(i, last)
			if thread := i % threads; tl.Activities[i].Op >= a.next[thread] {
				t.Fatalf("from %d: call %d of activity %d was not read; those of its thread up to %d were",
					first, tl.Activities[i].Op, i, a.next[thread])
			}
		}
	}
	a := tl.Prefetcher(false)
	a.Look(last/2, last)
	a.until = 0
	a.Look(0, last/4) // another device, whose time begins anew
	if next := a.next[0]; next >= each/2 {
		t.Errorf("calls up to %d were read for the first quarter of the activities", next)
	}
}
