package gpu_test

import (
	"math"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

const (
	us = calltest.Microsecond
	ms = calltest.Millisecond
)

// hand makes recordings of activities by hand: times are ns after the window's beginning.
type hand struct {
	*calltest.Builder
	g *recording.GPU
}

func newHand(windows ...timelinetest.Span) *hand {
	h := &hand{
		Builder: calltest.New(),
		g: &recording.GPU{
			Mode:    "windows",
			Kernels: []recording.Kernel{{Name: "gemm"}, {Name: "void add<4, float>(int)"}},
		},
	}
	h.Meta.GPU = h.g
	h.Window(calltest.Start, calltest.Start+100*ms)
	for _, w := range windows {
		h.g.Windows = append(h.g.Windows, recording.GPUWindow{
			PID:      recordtest.PID,
			From:     calltest.Start + w.From,
			To:       calltest.Start + w.To,
			Activity: true,
			Calls:    true,
			End:      "finalized",
		})
	}
	return h
}

func (h *hand) kernel(stream uint32, name int32, at, dur uint64, id uint32) {
	h.Event(event.Event{
		TS: calltest.Start + at, Dur: dur, PID: recordtest.PID, TID: stream, Func: 1 << 8, Kind: event.Kernel,
		Flags: event.Timed,
		Ret:   name, Args: [4]uint64{uint64(id), 0, 7 | 1<<32 | 1<<48, 64 | 1<<11 | 1<<22},
	})
}

func (h *hand) copy(stream uint32, ret int32, at, dur, bytes uint64) {
	h.Event(event.Event{
		TS: calltest.Start + at, Dur: dur, PID: recordtest.PID, TID: stream, Func: 1 << 8, Kind: event.Copy,
		Flags: event.Timed,
		Ret:   ret, Args: [4]uint64{0, 0, bytes},
	})
}

// launch is a call that the agent saw.
func (h *hand) launch(at uint64, id uint32) {
	h.Event(event.Event{
		TS: calltest.Start + at, Dur: 5 * us, PID: recordtest.PID, TID: recordtest.PID, Func: h.Fn("cuLaunchKernel"),
		Kind:  event.Call,
		Flags: event.Timed | event.Correlated, Ret: int32(id),
	})
}

func (h *hand) summary(t *testing.T) *gpu.Summary {
	t.Helper()
	tl := timeline.Build(h.Recording())
	must.NoError(t, tl.Check())
	return gpu.Summarize(tl)
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// TestBusyIsAUnion: two streams, of which 10 ms overlap, and a kernel that a window cuts.
func TestBusyIsAUnion(t *testing.T) {
	h := newHand(timelinetest.Between(0, 50*ms), timelinetest.Between(80*ms, 100*ms))
	h.kernel(1, 1, 0, 20*ms, 0)
	h.kernel(2, 1, 10*ms, 20*ms, 0)
	h.kernel(1, 2, 45*ms, 10*ms, 0) // ends 5 ms behind the window
	h.kernel(1, 2, 82*ms, 2*us, 0)
	s := h.summary(t)
	d := s.Devices[0]
	same(t, "recorded", d.Busy.Coverage.Time, 70*ms)
	same(t, "windows", d.Busy.Coverage.Windows, 2)
	near(t, "share of the report's time", d.Busy.Coverage.Share, 0.7)
	same(t, "busy", d.Busy.Time, 35*ms+2*us)
	near(t, "share", d.Busy.Share, float64(35*ms+2*us)/float64(70*ms))
	near(t, "concurrency", d.Concurrency, float64(45*ms+2*us)/float64(35*ms+2*us))
	near(t, "overlap", d.Overlap, float64(10*ms)/float64(35*ms+2*us))
	same(t, "gaps", d.Gaps.Count, 3) // 30 to 45, 80 to 82, 82.002 to 100
	same(t, "gap time", d.Gaps.Time, 15*ms+2*ms+18*ms-2*us)
	same(t, "longest gap", d.Gaps.Longest, 18*ms-2*us)
	same(t, "busy and gaps make the recorded time", d.Busy.Time+d.Gaps.Time, d.Busy.Coverage.Time)
	same(t, "unsure: the second window begins with 2 ms of nothing", d.Busy.Coverage.Unsure, 2*ms)
	same(t, "kernels", s.Kernels.Count, 4)
	same(t, "first", s.Kernels.Rows[0].Name, "gemm")
	same(t, "second", s.Kernels.Rows[1].Name, "add<4, float>")
	same(t, "whole duration, also of one that a window cuts", s.Kernels.Rows[1].Max, 10*ms)
	same(t, "tiny", s.Kernels.Tiny, 1)
	same(t, "streams", len(s.Streams), 2)
	same(t, "stream 1", s.Streams[0].Busy, 25*ms+2*us)
}

// TestOutsideOfWindows holds that what lies between windows is neither busy nor idle.
func TestOutsideOfWindows(t *testing.T) {
	h := newHand(timelinetest.Between(0, 10*ms))
	h.kernel(1, 1, 5*ms, 5*ms, 0)
	h.kernel(1, 1, 50*ms, 5*ms, 0)
	s := h.summary(t)
	same(t, "outside", s.Outside, 1)
	same(t, "busy", s.Busy.Time, 5*ms)
	near(t, "share", s.Busy.Share, 0.5)
	same(t, "kernels", s.Kernels.Count, 1)
}

func TestDroppedRecordsAreNoIdleness(t *testing.T) {
	h := newHand(timelinetest.Between(0, 10*ms))
	h.g.Windows[0].Dropped = 5
	h.kernel(1, 1, 0, 5*ms, 0)
	s := h.summary(t)
	if c := s.Busy.Coverage; c.Dropped != 5 || c.Whole() {
		t.Errorf("coverage %+v, want it not to be whole", c)
	}
	near(t, "the most that it can be", s.Busy.MaxShare, 1)
}

func TestNoWindowIsNotIdle(t *testing.T) {
	s := newHand().summary(t)
	if s.Recorded || s.Activity.Whole() || s.Busy.Coverage.Time != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCopies: 1 MB each, pageable and pinned; a kernel runs beside the second half of the first.
func TestCopies(t *testing.T) {
	h := newHand(timelinetest.Between(0, 100*ms))
	h.copy(1, 1|1<<8|3<<16, 0, 2*ms, 1_000_000)
	h.copy(1, 1|2<<8|3<<16|1<<24, 10*ms, ms, 1_000_000)
	h.copy(2, 1|2<<8|3<<16|1<<24, 10*ms, ms, 1_000_000)
	h.kernel(3, 1, ms, 5*ms, 0)
	s := h.summary(t)
	same(t, "rows", len(s.Copies), 2)
	a, b := s.Copies[0], s.Copies[1]
	same(t, "source", a.Source+" "+b.Source, "pageable pinned")
	same(t, "way", a.Direction+" "+b.Direction, "H2D H2D")
	same(t, "exposed", a.Exposed, ms)
	near(t, "hidden", a.Hidden, 0.5)
	near(t, "bandwidth", a.Bandwidth, 5e8)
	same(t, "two at once", b.Time, ms)
	near(t, "bandwidth of two at once", b.Bandwidth, 2e9)
	near(t, "of each", b.Each, 1e9)
	same(t, "async", b.Async && !a.Async, true)
	same(t, "copies", s.Devices[0].Busy.Copies, 3*ms)
	same(t, "busy", s.Busy.Time, 7*ms)
}

// TestLatencyAndQueue: three launches, of which two wait behind the first.
func TestLatencyAndQueue(t *testing.T) {
	h := newHand(timelinetest.Between(0, 100*ms))
	for i := range uint64(3) {
		h.launch(i*10*us, uint32(i+1))
		h.kernel(1, 1, 10*us+i*10*ms, 10*ms, uint32(i+1))
	}
	h.launch(90*ms, 9) // its kernel had not run when the window ended
	s := h.summary(t)
	same(t, "launches", s.Launches.Kernels, 4)
	near(t, "per second", s.Launches.PerSecond, 40)
	same(t, "linked", s.Links.ByID, 3)
	same(t, "latencies", s.Latency.Count, 3)
	if p := s.Latency.P50; p < 9_980*us || p > 10_100*us {
		t.Errorf("p50 %d, want 10 ms less 10 µs to 1%%", p)
	}
	same(t, "the longest", s.Latency.Max, 20*ms+10*us-20*us)
	same(t, "deepest", s.Queue.Max, 3)
	near(t, "mean", s.Queue.Mean, float64(10*ms+10*us+20*ms+30*ms-10*us)/float64(100*ms))
	near(t, "empty", s.Queue.Empty, float64(70*ms-10*us)/float64(100*ms))
	same(t, "unsure from the last launch on", s.Activity.Unsure, 10*ms+10*us)
	same(t, "call", s.Kernels.Rows[0].Call, "cuLaunchKernel")
	same(t, "thread", s.Kernels.Rows[0].TID, recordtest.PID)
}

// TestQueueOfAnotherClock: where the clocks differ, kernels seem to end before they are launched. They wait in no
// queue.
func TestQueueOfAnotherClock(t *testing.T) {
	h := newHand(timelinetest.Between(0, 100*ms))
	for i := range uint64(8) {
		h.launch((i+1)*10*ms, uint32(i+1))
		h.kernel(1, 1, (i+1)*10*ms-3*ms, 1*ms, uint32(i+1))
	}
	q := h.summary(t).Queue
	if q.Max > 1 || q.Mean != 0 || q.Empty != 1 {
		t.Errorf("%+v, want an empty queue", q)
	}
}

// TestGraphs: a simulated program that replays a graph.
func TestGraphs(t *testing.T) {
	s := timelinetest.New(timelinetest.Config{Agent: true, Length: 50 * ms})
	st := s.Stream(0x10, 13)
	th := s.Spawn(recordtest.PID)
	for range 100 {
		th.Then(func(t *timelinetest.Thread) {
			t.Graph(st, 0x99, timelinetest.Layers(1), 10*us)
			t.Launch(st, timelinetest.Layers(1)[0], 5*us)
			t.Sync(st)
		})
	}
	tl := timeline.Build(s.Run())
	got := gpu.Summarize(tl)
	n := uint64(len(timelinetest.Layers(1)))
	near(t, "nodes", got.Graphs.Nodes, float64(n))
	same(t, "kernels", got.Graphs.Kernels, got.Graphs.Launches*n)
	if got.Graphs.Launches < 90 || got.Graphs.Share < 0.9 || got.Graphs.Share >= 1 {
		t.Errorf("%+v", got.Graphs)
	}
	same(t, "waits", len(got.Syncs), 1)
	if y := got.Syncs[0]; y.For == "" || y.Call != "cuStreamSynchronize" || y.Idle != 0 || y.Type != "stream" {
		t.Errorf("%+v", y)
	}
}

// TestSharedDeviceIsJudgedWhereAllAreSeen: two processes on one GPU, recorded together for 20 ms.
func TestSharedDeviceIsJudgedWhereAllAreSeen(t *testing.T) {
	h := newHand(timelinetest.Between(0, 60*ms))
	const other = 77
	h.Process(recording.Process{PID: other})
	h.g.Windows = append(h.g.Windows, recording.GPUWindow{
		PID:      other,
		From:     calltest.Start + 40*ms,
		To:       calltest.Start + 100*ms,
		Activity: true,
		Calls:    true,
	})
	h.g.Devices = []recording.Device{{PID: recordtest.PID, UUID: "x"}, {PID: other, UUID: "x"}}
	h.kernel(1, 1, 0, 50*ms, 0)
	h.Event(event.Event{
		TS:    calltest.Start + 55*ms,
		Dur:   20 * ms,
		PID:   other,
		TID:   1,
		Func:  1 << 8,
		Kind:  event.Kernel,
		Flags: event.Timed,
	})
	s := h.summary(t)
	same(t, "devices", len(s.Devices), 1)
	d := s.Devices[0]
	same(t, "users", d.Users, 2)
	same(t, "both were seen", d.Busy.Coverage.Time, 20*ms)
	same(t, "busy then", d.Busy.Time, 15*ms)
	same(t, "parts", len(d.Parts), 2)
	same(t, "first part", d.Parts[0].Busy.Time, 50*ms)
	same(t, "second part", d.Parts[1].Busy.Time, 20*ms)
}

// TestAttributesOfScopes: what a scope was used with, that of most time first; NVTX ranges and scopes without
// attributes have none.
func TestAttributesOfScopes(t *testing.T) {
	h := newHand(timelinetest.Between(0, 100*ms))
	h.g.Ranges, h.g.Attributes = []string{"step", "nvtx"}, []string{`{"batch": 8}`, `{"batch": 32}`}
	use := func(name int32, fn uint16, at, dur, attributes uint64) {
		h.Event(event.Event{
			TS: calltest.Start + at, Dur: dur, PID: recordtest.PID, TID: recordtest.PID, Func: fn, Kind: event.Range,
			Flags: event.Timed, Ret: name, Args: [4]uint64{0, 0, 0, attributes},
		})
	}
	for i := range uint64(3) {
		use(1, event.ScopeRange, i*10*ms, ms, 1)
	}
	use(1, event.ScopeRange, 40*ms, 5*ms, 2)
	use(1, event.ScopeRange, 50*ms, 9*ms, 0)
	use(1, event.ScopeRange, 60*ms, 9*ms, 7) // of a damaged recording
	use(2, 0, 70*ms, ms, 1)                  // not a scope: the word means something else
	s := h.summary(t)
	same(t, "ranges", len(s.Ranges), 2)
	want := []gpu.Attributes{
		{Values: `{"batch": 32}`, Count: 1, Time: 5 * ms},
		{Values: `{"batch": 8}`, Count: 3, Time: 3 * ms},
	}
	if got := s.Ranges[0].Attributes; !slices.Equal(got, want) {
		t.Errorf("attributes %+v, want %+v", got, want)
	}
	same(t, "of NVTX", len(s.Ranges[1].Attributes), 0)
}
