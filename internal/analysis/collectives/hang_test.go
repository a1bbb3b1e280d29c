package collectives

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// stuck is a recording of ten seconds in which ranks do twenty all-reduces, rank 0 attached late; then all but the last
// rank call another one.
func stuck(ranks int) *crowd {
	c := newCrowd(ranks)
	c.Window(calltest.Start, calltest.Start+10*calltest.Second)
	for i := range uint64(20) {
		for r := range ranks {
			if r > 0 || i > 3 {
				c.reduce(r, 0x110+uint64(r)<<8, 1000*i+100, 1000*i+200)
			}
		}
	}
	for r := range ranks - 1 {
		c.call(r, 0x110+uint64(r)<<8, int64(30_000+r))
	}
	return c
}

// call is an all-reduce of which no kernel was recorded, at a time in µs.
func (c *crowd) call(rank int, comm uint64, at int64) {
	c.As(pidOf(rank), pidOf(rank)).Do("ncclAllReduce", at*1000, 4000, 16, comm, 0, 7<<56)
}

// hangs is what is said of it.
func (c *crowd) hangs() []Hang {
	tl := timeline.Build(c.Recording())
	return Summarize(tl, tl.Index.Threads()).Hangs
}

// runsIn adds a sample of the last rank, late in the recording.
func (c *crowd) runsIn(rank int, frames ...recording.Frame) {
	c.Event(event.Event{
		TS: calltest.Start + 9*calltest.Second, PID: pidOf(rank), TID: pidOf(rank), Kind: event.Sample,
		Args: [4]uint64{c.Stack(frames...)},
	})
}

// TestWhoIsMissing: of three ranks two wait for the third, which computes.
func TestWhoIsMissing(t *testing.T) {
	c := stuck(3)
	c.runsIn(2, recordtest.Native("straggle", "/usr/bin/rank"), recordtest.Python("step", "/app/train.py", 7))
	const since = calltest.Start + 30_001_000
	want := []Hang{{
		Operation: "AllReduce", Since: since, Waited: calltest.Start + 10*calltest.Second - since,
		Waiting: []uint32{pidOf(0), pidOf(1)},
		Missing: []missing{{
			PID: pidOf(2), Rank: -1, TID: pidOf(2), Name: "rank", Behind: 1,
			Stack: []string{"straggle (rank)", "step (train.py:7)"},
		}},
	}}
	if diff := cmp.Diff(want, c.hangs()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestMissingRankThatEnded: no thread of it does anything.
func TestMissingRankThatEnded(t *testing.T) {
	c := stuck(2)
	c.Event(event.Event{TS: calltest.Start + calltest.Second, PID: pidOf(1), TID: pidOf(1), Kind: event.Exit})
	got := c.hangs()
	if len(got) != 1 || len(got[0].Missing) != 1 || !got[0].Missing[0].Ended || got[0].Missing[0].PID != pidOf(1) {
		t.Errorf("%+v", got)
	}
}

// TestNoHang: what may not be one is not called so.
func TestNoHang(t *testing.T) {
	for name, c := range map[string]*crowd{
		"all have come": func() *crowd {
			c := stuck(2)
			c.call(1, 0x210, 40_000)
			return c
		}(),
		"for two seconds only": func() *crowd {
			c := stuck(2)
			c.Window(calltest.Start, calltest.Start+2*calltest.Second)
			return c
		}(),
		"calls were lost": func() *crowd {
			c := stuck(2)
			c.Loss(loss.Loss{Reason: loss.RingFull, Count: 1})
			return c
		}(),
		"calls were not recorded while their cost was measured": func() *crowd {
			c := stuck(2)
			c.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
				Name:   recording.CallsSource,
				Paused: []recording.Pause{{From: calltest.Start + calltest.Millisecond, To: calltest.Start + 2*calltest.Millisecond}},
			}}}
			return c
		}(),
		"calls were reduced for some time": func() *crowd {
			c := stuck(2)
			c.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
				Name:   recording.CallsSource,
				Shares: []recording.LevelShare{{Level: "each call", Share: 0.5}, {Level: "waits", Share: 0.5}},
			}}}
			return c
		}(),
		"it is inside of the call, which has not returned": func() *crowd {
			c := stuck(2)
			c.runsIn(1, recordtest.Native("poll", "libc.so.6"), recordtest.Native("ncclAllReduce", "libnccl.so.2"))
			return c
		}(),
		"the GPU was not recorded any more, so that it may be another group": func() *crowd {
			c := stuck(2)
			c.Meta.GPU.Windows[0].To, c.Meta.GPU.Windows[0].End = calltest.Start+calltest.Second, "disabled"
			return c
		}(),
		"a kernel of the one ended, so that it is another group": func() *crowd {
			c := stuck(2)
			c.reduce(0, 0x110, 40_000, 40_100)
			return c
		}(),
		"another communicator was used by one alone": func() *crowd {
			c := stuck(2)
			c.call(1, 0x210, 40_000)
			c.call(0, 0x777, 50_000)
			return c
		}(),
	} {
		if got := c.hangs(); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestHangWithoutKernels: where no kernel was recorded, calls are counted from the making of the communicators.
func TestHangWithoutKernels(t *testing.T) {
	c := newCrowd(2)
	c.Window(calltest.Start, calltest.Start+10*calltest.Second)
	for r := range 2 {
		c.As(pidOf(r), pidOf(r)).Do("ncclCommInitRank", 0, 10, 0x110+uint64(r), 2)
		for i := range 5 - r {
			c.call(r, 0x110+uint64(r), int64(1000*(i+1)))
		}
	}
	got := c.hangs()
	if len(got) != 1 || len(got[0].Missing) != 1 || got[0].Missing[0].PID != pidOf(1) ||
		got[0].Since != calltest.Start+5_000_000 {
		t.Errorf("%+v", got)
	}
}

// TestHangOfAGroup: where communicators say which they are, one of two of three processes is known whole, and no other.
func TestHangOfAGroup(t *testing.T) {
	reported := func(c *crowd, i int) *recording.Communicator { return &c.Meta.Communicators[i] }
	for name, change := range map[string]func(c *crowd){
		"":                      func(*crowd) {},
		"they do not say it":    func(c *crowd) { c.Meta.Communicators = nil },
		"a rank is not known":   func(c *crowd) { reported(c, 0).Ranks, reported(c, 1).Ranks = 3, 3 },
		"two are of one rank":   func(c *crowd) { reported(c, 0).Rank = 1 },
		"the hash is not known": func(c *crowd) { reported(c, 0).Hash, reported(c, 1).Hash = "", "" },
		"an address is used again": func(c *crowd) {
			c.As(pidOf(0), pidOf(0)).Do("ncclCommInitRank", 500_000, 10, 0x110, 2)
		},
	} {
		c := newCrowd(3)
		c.Window(calltest.Start, calltest.Start+10*calltest.Second)
		for r := range 3 {
			c.As(pidOf(r), pidOf(r)).Do("ncclCommInitRank", 0, 10, 0x110+uint64(r), 2)
			c.Meta.Communicators = append(c.Meta.Communicators, recording.Communicator{
				PID: pidOf(r), Address: 0x110 + uint64(r), Hash: []string{"aa", "aa", "bb"}[r], Rank: r % 2, Ranks: 2,
			})
			for i := range 5 - r {
				c.call(r, 0x110+uint64(r), int64(1000*(i+1)))
			}
		}
		change(c)
		got := c.hangs()
		if name != "" {
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || len(got[0].Missing) != 1 || got[0].Missing[0].PID != pidOf(1) || len(got[0].Waiting) != 1 ||
			got[0].Missing[0].Rank != 1 {
			t.Errorf("%+v", got)
		}
	}
}
