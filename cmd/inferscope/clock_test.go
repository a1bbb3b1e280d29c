package main

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestRecordingsCarryTheClock: a recording that is written says how far the clocks may be apart, as causality shows it.
func TestRecordingsCarryTheClock(t *testing.T) {
	const behind = 20_000 // ns
	for _, skew := range []int64{0, -behind} {
		s := timelinetest.New(timelinetest.Config{Agent: true, Skew: skew})
		s.Spawn(2000).
			Decode(s.Stream(0x5500, 13), 60, timelinetest.Layers(6), 5*timelinetest.Microsecond, 300*timelinetest.Microsecond)
		path, err := keepRecording(t.TempDir(), s.Run(), nil)
		must.NoError(t, err)
		in, err := archive.Inspect(path, false)
		must.NoError(t, err)
		c := in.Manifest.Clock
		if c == nil || c.Pairs < 1000 || c.Bound == 0 || c.Error > c.Bound || (c.Error > 0) != (skew != 0) {
			t.Errorf("with clocks %d ns apart the manifest says %+v", skew, c)
		}
	}
}

// TestWorseClock: of several stretches the widest error and bound count; where one bounds nothing, nothing does.
func TestWorseClock(t *testing.T) {
	a, b := &archive.Clock{Error: 0, Bound: 4000, Pairs: 10}, &archive.Clock{Error: 3000, Bound: 3500, Pairs: 5}
	if got, want := *worse(a, b), (archive.Clock{Error: 3000, Bound: 4000, Pairs: 15}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := worse(a, &archive.Clock{Pairs: 1}); got.Bound != 0 {
		t.Errorf("a bound of %d ns for all, and a part has none", got.Bound)
	}
	if worse(nil, nil) != nil || worse(a, nil) != a || worse(nil, b) != b {
		t.Error("a stretch of which nothing is known changes what is known of others")
	}
}
