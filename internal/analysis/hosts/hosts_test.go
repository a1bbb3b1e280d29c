package hosts_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/hosts"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const us = calltest.Microsecond

// job is a program of two ranks on two hosts: when each began the collectives, and when these ended, on one clock.
type job struct {
	begins  [2][]uint64
	ends    [2][]uint64
	made    bool      // the making of the communicator is recorded
	kernels [2][2]int // from which collective on and up to which one kernels are recorded; 0, 0: all
}

// jittery is a job of n steps of a millisecond, more or less, to which the ranks come so far apart at most.
func jittery(n int, seed, jitter, apart uint64) job {
	r := rand.New(rand.NewPCG(seed, 1))
	var j job
	at := uint64(calltest.Start + 10*calltest.Millisecond)
	for range n {
		at += calltest.Millisecond + r.Uint64N(jitter+1)
		last := uint64(0)
		for rank := range 2 {
			begin := at + r.Uint64N(apart)
			last = max(last, begin)
			j.begins[rank] = append(j.begins[rank], begin)
		}
		for rank := range 2 { // the GPUs see the end within two microseconds
			j.ends[rank] = append(j.ends[rank], last+40*us+r.Uint64N(2*us))
		}
	}
	return j
}

// host is the recording of one rank from a collective on, by a clock that is ahead, with a wall clock that is wrong; of
// every tenth collective the kernel was not recorded.
func (j *job) host(rank, from int, ahead, wrong int64) *recording.Recording {
	b := calltest.New()
	b.Window(calltest.Start+uint64(ahead), calltest.Start+2*calltest.Second+uint64(ahead))
	b.Meta.WallFrom = 1_700_000_000_000_000_000 + wrong
	b.Meta.GPU = &recording.GPU{
		Mode: "continuous", Kernels: []recording.Kernel{{Name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}},
		Devices: []recording.Device{{PID: recordtest.PID}},
		Windows: []recording.GPUWindow{
			{PID: recordtest.PID, From: b.Meta.From, To: b.Meta.To, Activity: true, Calls: true, End: "open"},
		},
	}
	b.As(recordtest.PID, recordtest.PID)
	if j.made {
		b.Do("ncclCommInitRank", ahead, 10, uint64(0x110+rank), 2)
	}
	for i := from; i < len(j.ends[rank]); i++ {
		id, at := uint32(i+1), j.begins[rank][i]+uint64(ahead)
		b.Do("ncclAllReduce", int64(at-calltest.Start)-5000, 4000, 16, uint64(0x110+rank), 0, 7<<56)
		b.Event(event.Event{
			TS: at - 4000, Dur: 1000, PID: recordtest.PID, TID: recordtest.PID, Func: b.Fn("cuLaunchKernel"),
			Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(id),
		})
		if seen := j.kernels[rank]; i%10 == 3+rank || seen[1] > 0 && (i < seen[0] || i >= seen[1]) {
			continue
		}
		b.Event(event.Event{
			TS: at, Dur: j.ends[rank][i] - j.begins[rank][i], PID: recordtest.PID, TID: 7, Func: 1 << 8,
			Kind: event.Kernel, Flags: event.Timed, Ret: 1, Args: [4]uint64{uint64(id)},
		})
	}
	return b.Recording()
}

// TestPlantedOffset: the clock of the second host is found again within the error that is stated, however wrong the
// wall clocks are and whenever each recording begins.
func TestPlantedOffset(t *testing.T) {
	for seed, ahead := range []int64{0, 1_234_567, -987_654_321, 86_400_000_000_000} {
		j := jittery(600, uint64(seed), 300*us, 200*us)
		const wrong = 35_000_000 // the second host's wall clock is ahead
		clocks, err := hosts.Solve([]*recording.Recording{j.host(0, 0, 0, 0), j.host(1, 10*seed, ahead, wrong)})
		must.NoError(t, err)
		c := clocks[1]
		off := c.Shift + ahead
		t.Logf("planted %d ns: found to %d ns, error %d ns, by %d collectives", ahead, off, c.Error, c.Collectives)
		if uint64(max(off, -off)) > c.Error || c.Error > 100_000 || c.Collectives < 400 || c.Ambiguous ||
			c.Wall != wrong-ahead {
			t.Errorf("planted %d ns: %+v", ahead, c)
		}
		if clocks[0] != (hosts.Clock{}) {
			t.Errorf("the first recording: %+v", clocks[0])
		}
	}
}

// TestRegularSteps: where each step takes the same time another step fits as well; the wall clocks decide, and that is
// said.
func TestRegularSteps(t *testing.T) {
	j := jittery(100, 7, 0, 10*us)
	c, err := hosts.Solve([]*recording.Recording{j.host(0, 0, 0, 0), j.host(1, 0, 5_000_000, 100_000)})
	must.NoError(t, err)
	if off := c[1].Shift + 5_000_000; !c[1].Ambiguous || uint64(max(off, -off)) > c[1].Error {
		t.Errorf("%+v", c[1])
	}
}

// TestRegularStepsSeenApart: of regular steps those that both hosts recorded may be few, and more fit by other offsets.
// The wall clocks decide all the same, and are not asked where both counted from the making of the communicator.
func TestRegularStepsSeenApart(t *testing.T) {
	j := jittery(300, 7, 0, 10*us)
	j.kernels = [2][2]int{{1, 200}, {140, 300}}
	for made, wrong := range map[bool]int64{false: 100_000, true: 40_000_000} {
		j.made = made
		c, err := hosts.Solve([]*recording.Recording{j.host(0, 0, 0, 0), j.host(1, 0, 5_000_000, wrong)})
		must.NoError(t, err)
		if off := c[1].Shift + 5_000_000; c[1].Ambiguous == made || uint64(max(off, -off)) > c[1].Error {
			t.Errorf("made %v: %+v", made, c[1])
		}
	}
}

// TestOtherJob: ranks that never met have no clock in common.
func TestOtherJob(t *testing.T) {
	a, b := jittery(300, 1, 300*us, 200*us), jittery(300, 2, 300*us, 200*us)
	if c, err := hosts.Solve([]*recording.Recording{a.host(0, 0, 0, 0), b.host(1, 0, 0, 0)}); !errors.Is(
		err,
		hosts.ErrNothingInCommon,
	) {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestJoined: one recording of two hosts names who is late as one of one host would, though both call their processes
// alike.
func TestJoined(t *testing.T) {
	j := jittery(300, 3, 300*us, us)
	const late = 250 * us
	for i := range j.begins[1] { // the other one begins later by so much, and both end later
		j.begins[1][i] += late
		j.ends[0][i] += late
		j.ends[1][i] += late
	}
	recs := []*recording.Recording{j.host(0, 0, 0, 0), j.host(1, 0, 77_000_000, 0)}
	for i, rec := range recs {
		rec.Meta.Communicators = []recording.Communicator{{PID: recordtest.PID, Rank: i, Ranks: 2}}
	}
	clocks, err := hosts.Solve(recs)
	must.NoError(t, err)
	rec, err := importer.Join(recs, []int64{clocks[0].Shift, clocks[1].Shift}, "two hosts")
	must.NoError(t, err)
	if rec.Meta.Sources[0] != (recording.Source{Name: "hosts", State: "running", Detail: "two hosts"}) {
		t.Errorf("sources %+v", rec.Meta.Sources)
	}
	r := analysis.Run(rec)
	skew := r.Exchanged.Skew
	if skew == nil || skew.Median < late-10_000 || skew.Median > late+10_000 || len(skew.Ranks) != 2 ||
		skew.Ranks[1].Last != skew.Collectives {
		t.Fatalf("%+v", skew)
	}
	if pids := [2]uint32{skew.Ranks[0].PID, skew.Ranks[1].PID}; pids[0] != recordtest.PID || pids[1] == pids[0] {
		t.Errorf("processes %v", pids)
	}
	for i, c := range rec.Meta.Communicators {
		if c.Rank != i || c.PID != skew.Ranks[i].PID {
			t.Errorf("%+v of process %d", c, skew.Ranks[i].PID)
		}
	}
	if calls := r.Exchanged.Calls; calls != 600 {
		t.Errorf("%d calls of both hosts, want 600", calls)
	}
}
