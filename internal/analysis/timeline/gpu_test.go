package timeline_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

const (
	us = timelinetest.Microsecond
	ms = timelinetest.Millisecond
)

// build makes a timeline and checks it.
func build(t *testing.T, rec *recording.Recording) *timeline.Timeline {
	t.Helper()
	tl := timeline.Build(rec)
	if err := tl.Check(); err != nil {
		t.Fatalf("Check: %v", err)
	}
	return tl
}

// score compares the links of a timeline with the truth.
type score struct {
	activities, linked, right, wrong int
	linkable                         int // activities whose call was recorded
}

func compare(tl *timeline.Timeline, s *timelinetest.Sim) (c score) {
	for i := range tl.Activities {
		a := &tl.Activities[i]
		truth := s.Asked(&tl.Rec.Events[a.Event])
		c.activities++
		if truth.Seen {
			c.linkable++
		}
		if a.Op == timeline.None {
			continue
		}
		c.linked++
		op := &tl.Ops[a.Op]
		if op.Start == truth.Start && tl.Threads[tl.ThreadOf(a.Op)].TID == truth.TID {
			c.right++
		} else {
			c.wrong++
		}
	}
	return c
}

// decode is a decode loop on two threads with streams of their own.
func decode(c timelinetest.Config) *timelinetest.Sim {
	s := timelinetest.New(c)
	for i := range uint64(2) {
		st := s.Stream(0x5500+i*0x100, uint32(13+i))
		s.Spawn(uint32(2000+i)).Decode(st, 60, timelinetest.Layers(6), 5*us, 300*us)
	}
	return s
}

func TestLinkByID(t *testing.T) {
	for _, both := range []bool{false, true} {
		s := decode(timelinetest.Config{Agent: true, Both: both})
		tl := build(t, s.Run())
		c := compare(tl, s)
		if c.activities < 5000 || c.right != c.activities || c.wrong != 0 {
			t.Errorf("both %v: %+v of %d run, want every activity linked to its call", both, c, s.Ran)
		}
		if tl.Clock.Pairs < c.linked || tl.Clock.Error != 0 || tl.Clock.Bound > 8000 || tl.Clock.Bound < 1000 {
			t.Errorf("clock %+v, want no error out of at least %d pairs, and a bound of some µs", tl.Clock, c.linked)
		}
		twins := 0
		for i := range tl.Ops {
			if tl.Ops[i].Via == timeline.Twin {
				twins++
			}
			if tl.Ops[i].Via == timeline.Twin && tl.Ops[tl.Ops[i].Parent].Via != timeline.Probe {
				t.Fatalf("op %d is the twin of %+v", i, tl.Ops[tl.Ops[i].Parent])
			}
		}
		if both != (twins > 0) {
			t.Errorf("both %v: %d twins", both, twins)
		}
	}
}

// TestLinkByIDInWindows holds that ids of one window mean nothing in another.
func TestLinkByIDInWindows(t *testing.T) {
	s := decode(timelinetest.Config{Agent: true, Windows: []timelinetest.Span{
		timelinetest.Between(10*ms, 60*ms), timelinetest.Between(300*ms, 350*ms), timelinetest.Between(700*ms, 720*ms),
	}})
	tl := build(t, s.Run())
	c := compare(tl, s)
	if c.activities < 500 || c.right != c.linkable || c.wrong != 0 {
		t.Errorf("%+v, want every activity linked to its call", c)
	}
	if got := tl.Seen[0].Activity.Total(); got != 120*ms {
		t.Errorf("activity was seen for %d ns, want 120 ms", got)
	}
	if n := len(tl.Seen[0].Unsure); n == 0 {
		t.Error("no edge of a window is in doubt")
	}
}

func TestClockErrorIsFound(t *testing.T) {
	for _, skew := range []int64{-20_000, 20_000} {
		s := decode(timelinetest.Config{Agent: true, Skew: skew})
		tl := build(t, s.Run())
		// A clock that is behind shows in kernels before their launches, one that is ahead in
		// synchronizations that return before what they wait for; the latency hides a part of it.
		if tl.Clock.Error < 20_000-13_500 || tl.Clock.Error > 20_000 {
			t.Errorf("skew %d: error %d ns", skew, tl.Clock.Error)
		}
		if tl.Clock.Bound < 20_000 || tl.Clock.Bound > 40_000 {
			t.Errorf("skew %d: bound %d ns, want it above the truth and near it", skew, tl.Clock.Bound)
		}
	}
}

func TestSyncsKnowWhatTheyWaitFor(t *testing.T) {
	s := decode(timelinetest.Config{Agent: true})
	tl := build(t, s.Run())
	if len(tl.Syncs) < 80 {
		t.Fatalf("%d synchronizations", len(tl.Syncs))
	}
	for i := range tl.Syncs {
		y := &tl.Syncs[i]
		if y.Op == timeline.None || tl.Ops[y.Op].Start > y.Start || tl.Ops[y.Op].End() < y.End {
			t.Fatalf("sync %+v is not inside its call", y)
		}
	}
}

// TestLinkByOrder holds that what has no ids is linked by order, as long as nothing is lost.
func TestLinkByOrder(t *testing.T) {
	s := decode(timelinetest.Config{})
	tl := build(t, s.Run())
	c := compare(tl, s)
	t.Logf("%+v", c)
	if c.wrong > 0 || float64(c.right) < 0.98*float64(c.linkable) {
		t.Errorf("%+v, want nearly all linked, and none to the wrong call", c)
	}
}
