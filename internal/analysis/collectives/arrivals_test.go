package collectives

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// crowd is a recording of ranks made by hand: each is a process with a GPU of its own.
type crowd struct {
	*calltest.Builder
	id uint32
}

func newCrowd(ranks int) *crowd {
	c := &crowd{Builder: calltest.New()}
	c.Meta.GPU = &recording.GPU{
		Mode:    "continuous",
		Kernels: []recording.Kernel{{Name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}, {Name: "gemm"}},
	}
	for r := range ranks {
		pid := pidOf(r)
		if r > 0 {
			c.Process(recording.Process{PID: pid, Comm: "rank"})
		}
		c.Meta.GPU.Agents = append(c.Meta.GPU.Agents, recording.Agent{PID: pid, State: "running"})
		c.Meta.GPU.Windows = append(c.Meta.GPU.Windows, recording.GPUWindow{
			PID: pid, From: calltest.Start, To: calltest.Start + calltest.Second,
			Activity: true, Calls: true, End: "open",
		})
		c.Meta.GPU.Devices = append(c.Meta.GPU.Devices, recording.Device{PID: pid, ID: uint32(r), Name: "GPU"})
	}
	return c
}

func pidOf(rank int) uint32 { return recordtest.PID + uint32(rank) }

// reduce is an all-reduce of a rank on a communicator, each with a stream of its own, that it calls 5 µs before its
// kernel begins. Times are in µs.
func (c *crowd) reduce(rank int, comm uint64, from, to uint64) {
	c.As(pidOf(rank), pidOf(rank))
	at := int64(from*calltest.Microsecond) - 5000
	c.Do("ncclAllReduce", at, 4000, 16, comm, 0, 7<<56)
	c.id++
	c.Event(event.Event{
		TS: uint64(
			calltest.Start + at + 1000,
		), Dur: 1000, PID: c.PID, TID: c.TID, Func: c.Fn("cuLaunchKernel"), Kind: event.Call,
		Flags: event.Correlated | event.Timed, Ret: int32(c.id),
	})
	c.Event(event.Event{
		TS: calltest.Start + from*calltest.Microsecond, Dur: (to - from) * calltest.Microsecond, PID: c.PID,
		TID: uint32(comm & 0xff), Func: uint16(rank) | 1<<8, Kind: event.Kernel, Flags: event.Timed, Ret: 1,
		Args: [4]uint64{uint64(c.id)},
	})
}

// arrived is what Arrive says of all of it, with the members as ranks.
func (c *crowd) arrived(t *testing.T) *Arrivals {
	t.Helper()
	tl := timeline.Build(c.Recording())
	must.NoError(t, tl.Check())
	a := Arrive(tl, timeline.Span{From: tl.From, To: tl.To})
	if a == nil {
		t.Fatal("no ranks were compared")
	}
	for m := range a.Members {
		if pid := tl.Processes[a.Members[m].Process].PID; pid != pidOf(m) {
			t.Fatalf("member %d is process %d", m, pid)
		}
	}
	return a
}

// told is what is compared of arrivals.
type told struct {
	Sets int
	Wait uint64
	Last []int    // by rank
	Held []uint64 // by rank
}

func check(t *testing.T, a *Arrivals, straggler int, want told) {
	t.Helper()
	got := told{Sets: a.Sets, Wait: a.Wait}
	for _, m := range a.Members {
		got.Last, got.Held = append(got.Last, m.Last), append(got.Held, m.Held)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	m, ok := a.Straggler()
	if !ok {
		m = -1
	}
	if m != straggler {
		t.Errorf("straggler %d, want %d", m, straggler)
	}
}

// TestStragglerOfTwo: each rank calls the communicator by an address of its own.
func TestStragglerOfTwo(t *testing.T) {
	c := newCrowd(2)
	for i := range uint64(10) {
		c.reduce(0, 0x110, 1000*i+100, 1000*i+600)
		c.reduce(1, 0x910, 1000*i+500, 1000*i+600)
	}
	check(t, c.arrived(t), 1, told{Sets: 10, Wait: 10 * 400_000, Last: []int{0, 10}, Held: []uint64{0, 10 * 400_000}})
}

// TestTies: who comes with another one is not the one that is waited for.
func TestTies(t *testing.T) {
	c := newCrowd(3)
	for i := range uint64(6) {
		for r := range 3 {
			c.reduce(r, 0x10, 1000*i+100, 1000*i+200)
		}
	}
	check(t, c.arrived(t), -1, told{Sets: 6, Last: []int{0, 0, 0}, Held: []uint64{0, 0, 0}})
	c = newCrowd(3)
	for i := range uint64(6) {
		c.reduce(0, 0x10, 1000*i+100, 1000*i+400)
		c.reduce(1, 0x10, 1000*i+300, 1000*i+400)
		c.reduce(2, 0x10, 1000*i+300, 1000*i+400)
	}
	check(t, c.arrived(t), -1, told{Sets: 6, Wait: 6 * 200_000, Last: []int{0, 0, 0}, Held: []uint64{0, 0, 0}})
}

// TestMissingRank: collectives of which one rank was not recorded are not compared, the others are.
func TestMissingRank(t *testing.T) {
	c := newCrowd(3)
	for i := range uint64(12) {
		c.reduce(0, 0x10, 1000*i+300, 1000*i+400)
		c.reduce(1, 0x10, 1000*i+100, 1000*i+400)
		if i%2 == 0 {
			c.reduce(2, 0x10, 1000*i+200, 1000*i+400)
		}
	}
	check(t, c.arrived(t), 0, told{Sets: 6, Wait: 6 * 300_000, Last: []int{6, 0, 0}, Held: []uint64{6 * 300_000, 0, 0}})
}

// TestTwoCommunicators: their operations have one kernel, run at the same time, and end so near to each other that the
// ends alone do not tell which is which.
func TestTwoCommunicators(t *testing.T) {
	c := newCrowd(2)
	for i := range uint64(20) {
		at := 1000*i + 100
		// The second one ends 50 µs after the first. In a quarter of the turns the ends on rank 1 are off, so that each
		// is nearest to the other communicator's.
		first, second := at+200, at+250
		if i%4 == 3 {
			first, second = at+225, at+205
		}
		c.reduce(0, 0x110, at, at+200)
		c.reduce(1, 0x910, at+100, first)
		c.reduce(0, 0x120, at+50, at+250)
		c.reduce(1, 0x920, at+90, second)
	}
	a := c.arrived(t)
	check(t, a, 1, told{Sets: 40, Wait: 20 * 140_000, Last: []int{0, 40}, Held: []uint64{0, 20 * 140_000}})
	for i, skew := range a.Skews {
		if want := []uint64{100_000, 40_000}[i%2]; skew != want {
			t.Errorf("collective %d: skew %d ns, want %d", i, skew, want)
		}
	}
}

// TestRanksThatAttachLate: the first operation that is known of a rank is not the first of another one: they are
// matched by their time. The sequence within a communicator goes on from there, also where they follow each other at
// once.
func TestRanksThatAttachLate(t *testing.T) {
	c := newCrowd(3)
	for i := range uint64(30) {
		at := 300 * i
		for r, from := range []uint64{at + 110, at + 20, at + 60} { // the one before ends at at+10
			if i >= []uint64{0, 7, 11}[r] {
				c.reduce(r, 0x10, from, at+310)
			}
		}
	}
	check(t, c.arrived(t), 0,
		told{Sets: 19, Wait: 19 * 140_000, Last: []int{19, 0, 0}, Held: []uint64{19 * 140_000, 0, 0}})
}

// TestTooLittleIsNoStraggler: four collectives say nothing, and one of two ranks that comes last a little more often
// than the other is none.
func TestTooLittleIsNoStraggler(t *testing.T) {
	c := newCrowd(2)
	for i := range uint64(4) {
		c.reduce(0, 0x10, 1000*i+100, 1000*i+600)
		c.reduce(1, 0x10, 1000*i+500, 1000*i+600)
	}
	check(t, c.arrived(t), -1, told{Sets: 4, Wait: 4 * 400_000, Last: []int{0, 4}, Held: []uint64{0, 4 * 400_000}})
	c = newCrowd(2)
	for i := range uint64(10) {
		late := 1
		if i%3 == 0 {
			late = 0
		}
		c.reduce(1-late, 0x10, 1000*i+100, 1000*i+600)
		c.reduce(late, 0x10, 1000*i+500, 1000*i+600)
	}
	check(t, c.arrived(t), -1, told{
		Sets: 10, Wait: 10 * 400_000, Last: []int{4, 6}, Held: []uint64{4 * 400_000, 6 * 400_000},
	})
}
