package collectives

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
)

// TestHangByRAS: where no kernel was recorded NCCL's RAS says which rank has launched less since the communicator was
// made. Rank 1 was attached two calls later than rank 0, and has not come to the last operation.
func TestHangByRAS(t *testing.T) {
	ras := func() *recording.RAS {
		one := func(pid uint32, n uint64) recording.RASRank {
			return recording.RASRank{PID: pid, Counts: map[string]uint64{"AllReduce": n, "Broadcast": 0}}
		}
		return &recording.RAS{At: calltest.Start + 10*calltest.Second, Communicators: []recording.RASCommunicator{
			{Hash: "aa", Size: 2, Ranks: []recording.RASRank{one(pidOf(0), 3007), one(pidOf(1), 3006)}},
		}}
	}
	for name, change := range map[string]func(c *crowd){
		"":                   func(*crowd) {},
		"RAS did not answer": func(c *crowd) { c.Meta.RAS = nil },
		"they are even": func(c *crowd) {
			c.Meta.RAS.Communicators[0].Ranks[1].Counts["AllReduce"] = 3007
			c.call(1, 0x910, 70_000)
		},
		"asked while they went on": func(c *crowd) { c.Meta.RAS.At = calltest.Start + 60*calltest.Millisecond },
		"a rank does not answer": func(c *crowd) {
			x := &c.Meta.RAS.Communicators[0]
			x.Ranks, x.Missing = x.Ranks[:1], x.Ranks[1:]
		},
		"another host has a rank":         func(c *crowd) { c.Meta.RAS.Communicators[0].Ranks[0].PID = 99 },
		"a process has two communicators": func(c *crowd) { c.call(1, 0x920, 5000) },
		"they count other operations": func(c *crowd) {
			c.As(pidOf(1), pidOf(1)).Do("ncclSend", 1000, 10, 16, 0x910, 0, 7<<56)
		},
	} {
		c := newCrowd(2)
		c.Window(calltest.Start, calltest.Start+10*calltest.Second)
		c.Meta.RAS = ras()
		for i := range int64(7) {
			c.call(0, 0x110, 10_000*i)
			if i >= 2 && i < 6 {
				c.call(1, 0x910, 10_000*i+1000)
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
		if len(got) != 1 || got[0].Operation != "AllReduce" || got[0].Since != calltest.Start+60_000_000 ||
			!slices.Equal(got[0].Waiting, []uint32{pidOf(0)}) || len(got[0].Missing) != 1 ||
			got[0].Missing[0].PID != pidOf(1) || got[0].Missing[0].Behind != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestHangOfSeveralCommunicators: where communicators say which they are, NCCL's RAS tells of those of processes that
// have several, and of several ranks in one process.
func TestHangOfSeveralCommunicators(t *testing.T) {
	reported := func(rank int, comm uint64, hash string, r int) recording.Communicator {
		return recording.Communicator{PID: pidOf(rank), Address: comm, Hash: hash, Rank: r, Ranks: 2}
	}
	one := func(rank, r int, n uint64) recording.RASRank {
		return recording.RASRank{PID: pidOf(rank), Rank: r, Counts: map[string]uint64{"AllReduce": n}}
	}
	for name, change := range map[string]func(c *crowd){
		"":                         func(*crowd) {},
		"they do not say it":       func(c *crowd) { c.Meta.Communicators = nil },
		"they are others":          func(c *crowd) { c.Meta.Communicators[0].Hash = "ee" },
		"they are of another rank": func(c *crowd) { c.Meta.Communicators[0].Rank = 1 },
	} {
		c := newCrowd(2)
		c.Window(calltest.Start, calltest.Start+10*calltest.Second)
		c.Meta.Communicators = []recording.Communicator{
			reported(0, 0x110, "aa", 0), reported(0, 0x120, "bb", 1), reported(0, 0x130, "bb", 0),
			reported(1, 0x910, "aa", 1),
		}
		for i := range int64(5) {
			for k, comm := range []uint64{0x110, 0x120, 0x130} {
				c.call(0, comm, 10_000*i+10*int64(k))
			}
			if i < 4 {
				c.call(1, 0x910, 10_000*i+1000)
			}
		}
		c.Meta.RAS = &recording.RAS{At: calltest.Start + 10*calltest.Second, Communicators: []recording.RASCommunicator{
			{Hash: "00aa", Size: 2, Ranks: []recording.RASRank{one(0, 0, 105), one(1, 1, 104)}},
			{Hash: "00bb", Size: 2, Ranks: []recording.RASRank{one(0, 0, 5), one(0, 1, 5)}},
		}}
		change(c)
		got := c.hangs()
		if name != "" {
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || !slices.Equal(got[0].Waiting, []uint32{pidOf(0)}) || len(got[0].Missing) != 1 ||
			got[0].Missing[0].PID != pidOf(1) || got[0].Missing[0].Behind != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestRanksByRAS: NCCL's RAS says how many ranks a communicator has that was made before the recording, unless the
// process has communicators of several sizes.
func TestRanksByRAS(t *testing.T) {
	member := []recording.RASRank{{PID: pidOf(0)}}
	for _, c := range []struct {
		name string
		list []recording.RASCommunicator
		want uint64
	}{
		{"one", []recording.RASCommunicator{{Size: 8, Ranks: member}}, 8},
		{"it does not answer", []recording.RASCommunicator{{Size: 8, Missing: member}}, 8},
		{"two of one size", []recording.RASCommunicator{{Size: 8, Ranks: member}, {Size: 8, Ranks: member}}, 8},
		{
			"of two sizes",
			[]recording.RASCommunicator{{Size: 8, Ranks: member}, {Size: 4, Ranks: member}, {Size: 8, Ranks: member}},
			0,
		},
		{"of others", []recording.RASCommunicator{{Size: 8, Ranks: []recording.RASRank{{PID: 99}}}}, 0},
		{"size not told", []recording.RASCommunicator{{Ranks: member}}, 0},
	} {
		b := newCrowd(1)
		b.call(0, 0x110, 0)
		b.Meta.RAS = &recording.RAS{Communicators: c.list}
		if got := Summarize(timeline.Build(b.Recording()), nil).Communicators[0].Ranks; got != c.want {
			t.Errorf("%s: %d ranks, want %d", c.name, got, c.want)
		}
	}
}

// TestLates: who launched fewer operations than another one is late, by the numbers of ranks and by those of groups;
// ranks that do not answer come first.
func TestLates(t *testing.T) {
	counts := func(reduced, gathered uint64) map[string]uint64 {
		return map[string]uint64{"AllReduce": reduced, "AllGather": gathered}
	}
	ranks := []recording.RASRank{
		{Rank: 0, PID: 10, Counts: counts(7, 3)},
		{Rank: 1, PID: 11, Counts: counts(6, 3)},
		{Rank: 2, PID: 12, Counts: counts(7, 3)},
	}
	few := []recording.RASRank{{Rank: 5, PID: 20, Counts: map[string]uint64{"Broadcast": 1}}}
	r := &recording.RAS{Communicators: []recording.RASCommunicator{
		{Hash: "aa", Size: 4, Ranks: ranks, Missing: []recording.RASRank{{Rank: 3, PID: 13}}},
		{Hash: "bb", Ranks: few, Most: map[string]uint64{"Broadcast": 2}},
		{Hash: "cc", Size: 2, Ranks: ranks[:1]},
	}}
	want := []Late{
		{Communicator: "aa", Rank: recording.RASRank{Rank: 3, PID: 13}},
		{Communicator: "aa", Rank: ranks[1], Operation: "AllReduce", Count: 6, Most: 7},
		{Communicator: "bb", Rank: few[0], Operation: "Broadcast", Count: 1, Most: 2},
	}
	if diff := cmp.Diff(want, Lates(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := Lates(nil); got != nil {
		t.Errorf("%+v where RAS did not answer", got)
	}
}
