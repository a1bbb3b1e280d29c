package timeline_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestDerivedSyncsEqualThoseOfCUPTI holds that the calls alone tell what CUPTI tells of synchronizations.
func TestDerivedSyncsEqualThoseOfCUPTI(t *testing.T) {
	told := build(t, decode(timelinetest.Config{Agent: true}).Run())
	derived := build(t, decode(timelinetest.Config{Agent: true, NoSyncs: true}).Run())
	want := map[uint64]timeline.Sync{} // by the beginning of the call
	for _, y := range told.Syncs {
		if !y.Derived {
			want[told.Ops[y.Op].Start] = y
		}
	}
	found := 0
	for _, y := range derived.Syncs {
		w, ok := want[derived.Ops[y.Op].Start]
		if y.Type != timeline.StreamSync || !ok {
			continue
		}
		found++
		if !y.Derived || y.Stream != w.Stream || sameStart(derived, y.Activity) != sameStart(told, w.Activity) ||
			y.Done != w.Done {
			t.Errorf("derived %+v, CUPTI %+v", y, w)
		}
	}
	if len(want) < 80 || found != len(want) {
		t.Errorf("%d of %d synchronizations were derived", found, len(want))
	}
	if derived.Clock.Bound == 0 || derived.Clock.Bound != told.Clock.Bound {
		t.Errorf("clock %+v, want that of CUPTI's records, %+v", derived.Clock, told.Clock)
	}
}

// sameStart returns when an activity began, 0 for None: indices are the same in both only by chance.
func sameStart(tl *timeline.Timeline, act int32) uint64 {
	if act == timeline.None {
		return 0
	}
	return tl.Activities[act].Start
}

// TestCopiesThatHold holds that a copy back waits for its own end, and that one that returns at once does not.
func TestCopiesThatHold(t *testing.T) {
	tl := build(t, decode(timelinetest.Config{Agent: true, NoSyncs: true}).Run())
	held := 0
	for _, y := range tl.Syncs {
		if y.Type != timeline.CopySync {
			continue
		}
		held++
		a := &tl.Activities[y.Activity]
		if a.Kind != timeline.Copy || a.Op != y.Op && tl.Ops[a.Op].Parent != y.Op || y.Done > y.End ||
			y.Done <= y.Start {
			t.Fatalf("%+v waits for %+v", y, a)
		}
		if direction := tl.Rec.Events[a.Event].Ret & 0xff; direction != 2 {
			t.Fatalf("a copy of direction %d held its caller", direction)
		}
	}
	if held < 80 {
		t.Errorf("%d copies held their callers", held)
	}
}

// TestEdges holds that what crosses streams is found: an event of another stream, a function of the host.
func TestEdges(t *testing.T) {
	s := timelinetest.New(timelinetest.Config{Agent: true, NoSyncs: true})
	one, two := s.Stream(0x5500, 13), s.Stream(0x5600, 14)
	k := timelinetest.Layers(1)[0]
	th := s.Spawn(2000)
	ready, done := &timelinetest.Event{Handle: 0xe1}, &timelinetest.Event{Handle: 0xe2}
	for range 20 {
		th.Then(func(t *timelinetest.Thread) {
			k := k
			k.Dur = 200 * us
			t.Launch(one, k, 5*us)
			t.Record(ready, one)
			t.Launch(one, k, 5*us) // after the event: not waited for
			t.Wait(two, ready)
			t.Wait(two, done) // its own stream's: no edge
			t.Launch(two, k, 5*us)
			t.Record(done, two)
			t.SyncEvent(done)
			t.Host(one, 300*us)
			t.Launch(one, k, 5*us)
			t.Sync(one)
		})
	}
	tl := build(t, s.Run())
	events, hosts := 0, 0
	for _, e := range tl.Edges {
		to := &tl.Activities[e.To]
		switch e.Kind {
		case timeline.EventEdge:
			events++
			from := &tl.Activities[e.From]
			if tl.Streams[from.Stream].ID != 13 || tl.Streams[to.Stream].ID != 14 || from.End > to.Start ||
				to.Start-from.End > 20*us {
				t.Errorf("%+v goes from %+v to %+v", e, from, to)
			}
			if got := tl.EdgesTo(e.To); len(got) != 1 || got[0] != e {
				t.Errorf("EdgesTo(%d) = %+v, want %+v", e.To, got, e)
			}
		case timeline.HostEdge:
			hosts++
			if tl.Streams[to.Stream].ID != 13 || to.Op == timeline.None || tl.Ops[to.Op].Start < tl.Ops[e.Wait].Start {
				t.Errorf("%+v goes to %+v", e, to)
			}
		}
	}
	if events != 20 || hosts != 20 {
		t.Errorf("%d edges of events, %d of host functions, want 20 of each", events, hosts)
	}
	for _, y := range tl.Syncs {
		if y.Type == timeline.EventSync &&
			(y.Activity == timeline.None || tl.Streams[y.Stream].ID != 14 || y.End-y.Done > 3*us) {
			t.Errorf("%+v waits for an event of stream 14", y)
		}
	}
}
