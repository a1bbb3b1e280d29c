package collectives

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
)

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
