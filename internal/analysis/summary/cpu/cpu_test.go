package cpu

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	start  = 1_000_000_000
	ms     = 1_000_000
	leader = recordtest.PID
	worker = recordtest.PID + 1
	futexN = 202
	readN  = 0
)

var tokenize = recordtest.Python("tokenize", "/app/tok.py", 12)

func native(name string) recording.Frame { return recordtest.Native(name, "lib.so") }

func TestFunctions(t *testing.T) {
	b := recordtest.New()
	f, g := recordtest.Python("f", "/a/f.py", 3), recordtest.Python("g", "/a/g.py", 9)
	recursive := f
	recursive.Line = 5
	b.Samples(leader, start, start+60*ms, 6, b.Stack(native("memcpy"), native("gemm"), f, recursive, g), event.Whole)
	b.Samples(leader, start+60*ms, start+90*ms, 3,
		b.Stack(recordtest.Kernel("copy_page"), native("memcpy"), g), event.Spliced)
	b.Samples(
		worker,
		start,
		start+10*ms,
		1,
		b.Stack(native("gemm"), recording.Frame{Kind: recording.ErrorFrame, Name: "code without unwind tables"}),
		event.Leaf,
	)
	b.Samples(worker, start, start+10*ms, 2, 0, event.Leaf) // nothing is known of these
	s := Summarize(b.Recording())
	if want := (Origins{Samples: 12, Whole: 6, Spliced: 3, Leaf: 3, WithPython: 9}); s.Origins != want {
		t.Errorf("origins %+v, want %+v", s.Origins, want)
	}
	python := []Function{
		{
			Kind:       recording.PythonFrame,
			Name:       "f",
			File:       "/a/f.py",
			Line:       3,
			Self:       6,
			Total:      6,
			SelfShare:  0.5,
			TotalShare: 0.5,
		},
		{
			Kind:       recording.PythonFrame,
			Name:       "g",
			File:       "/a/g.py",
			Line:       9,
			Self:       3,
			Total:      9,
			SelfShare:  0.25,
			TotalShare: 0.75,
		},
	}
	if diff := cmp.Diff(python, s.Python); diff != "" {
		t.Errorf("Python (-want +got):\n%s", diff)
	}
	var functions [][3]any
	for _, f := range s.Functions {
		functions = append(functions, [3]any{f.Name, f.Self, f.Total})
	}
	want := [][3]any{
		{"memcpy", uint64(6), uint64(9)},
		{"copy_page", uint64(3), uint64(3)},
		{"gemm", uint64(1), uint64(7)},
	}
	if diff := cmp.Diff(want, functions); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
}

// starved is a leader that waits for a worker that computes.
func starved() *recordtest.Builder {
	b := recordtest.New().Thread(leader, worker, "worker")
	b.Meta.Host.Arch = "amd64"
	b.Meta.Objects = []recording.Object{{PID: leader, Inode: 123, Name: "pipe:[123]"}}
	get := b.Stack(native("read"), recordtest.Python("get", "/usr/lib/python3.12/queue.py", 5),
		recordtest.Python("main", "/app/main.py", 7))
	work := b.Stack(native("join"), tokenize)
	for i := range uint64(10) {
		at := start + i*100*ms
		b.Off(recordtest.Off{
			TID:     leader,
			TS:      at,
			Dur:     80 * ms,
			Blocked: 79 * ms,
			Call:    readN,
			By:      [2]uint32{leader, worker},
			Inode:   123,
			Type:    1,
			Stack:   get,
		})
		b.Samples(worker, at, at+80*ms, 8, work, event.Whole)
		b.Off(recordtest.Off{
			TID:     worker,
			TS:      at + 80*ms,
			Dur:     20 * ms,
			Blocked: 20 * ms,
			Call:    futexN,
			Arg:     0x100,
			By:      [2]uint32{leader, leader},
		})
	}
	return b
}

func TestWaitsAndWhoEndedThem(t *testing.T) {
	s := Summarize(starved().Recording())
	if len(s.Waits) != 2 {
		t.Fatalf("%d waits, want 2: %+v", len(s.Waits), s.Waits)
	}
	want := Wait{
		PID: leader, TID: leader, Thread: "python", Reason: "pipe", Text: "read of pipe:[123]",
		Place: "main (main.py:7)",
		Count: 10, Time: 790 * ms, Longest: 79 * ms, Share: 0.79, Enders: 1,
		By: []Waker{
			{
				PID:     leader,
				TID:     worker,
				Name:    "worker",
				Count:   10,
				Time:    790 * ms,
				Doing:   "tokenize (tok.py:12)",
				Running: 1,
				Samples: 80,
				AtDoing: 80,
			},
		},
	}
	if diff := cmp.Diff(want, s.Waits[0]); diff != "" {
		t.Errorf("wait (-want +got):\n%s", diff)
	}
	if by := s.Waits[1].By; len(by) != 1 || by[0].TID != leader || by[0].Running != 1 {
		t.Errorf("the worker's waits were ended by %+v, want the leader, which ran", by)
	}
}

func TestAWakerThatWaitedItself(t *testing.T) {
	b := recordtest.New().Thread(leader, worker, "worker")
	b.Off(recordtest.Off{
		TID:     leader,
		TS:      start,
		Dur:     100 * ms,
		Blocked: 100 * ms,
		Call:    futexN,
		Arg:     1,
		By:      [2]uint32{leader, worker},
	})
	b.Off(recordtest.Off{
		TID:     worker,
		TS:      start + 10*ms,
		Dur:     80 * ms,
		Blocked: 80 * ms,
		Call:    readN,
		Inode:   5,
		Type:    8,
		Flags:   event.Uninterruptible | event.FromIRQ,
	})
	s := Summarize(b.Recording())
	var by []Waker
	for _, w := range s.Waits {
		if w.TID == leader {
			by = w.By
		}
	}
	if len(by) != 1 || by[0].Doing != "waiting itself: disk" || by[0].Running < 0.199 || by[0].Running > 0.201 {
		t.Errorf("ended by %+v, want the worker, which waited for the disk and ran a fifth", by)
	}
}

func TestWakersUnknownAndInterrupts(t *testing.T) {
	b := recordtest.New()
	b.Off(recordtest.Off{
		TID:     leader,
		TS:      start,
		Dur:     100 * ms,
		Blocked: 90 * ms,
		Call:    230,
		Flags:   event.FromIRQ,
		By:      [2]uint32{77, 78},
	})
	b.Off(recordtest.Off{TID: leader, TS: start + 500*ms, Dur: 500 * ms, Call: 7, Flags: event.Open})
	s := Summarize(b.Recording())
	if len(s.Waits) != 2 || !s.Waits[0].By[0].Nobody || !s.Waits[1].By[0].Interrupt || s.Waits[1].By[0].TID != 0 {
		t.Errorf("waits %+v: want one that goes on, and one that a timer ended, not who ran then", s.Waits)
	}
}

// TestTheGIL holds that a wait whose stack tells nothing counts as what the same futex is elsewhere.
func TestTheGIL(t *testing.T) {
	b := recordtest.New().Thread(leader, worker, "worker")
	take := b.Stack(native("pthread_cond_timedwait"), native("take_gil"), recordtest.Python("step", "/app/main.py", 3))
	bare := b.Stack(native("futex"), recordtest.Python("step", "/app/main.py", 3)) // it could be any lock
	other := b.Stack(native("futex"), native("pthread_cond_wait"), recordtest.Python("pull", "/app/main.py", 30))
	hold := b.Stack(native("loop"), tokenize)
	for i := range uint64(10) {
		at := start + i*20*ms
		o := recordtest.Off{
			TID:     leader,
			TS:      at,
			Dur:     5 * ms,
			Blocked: 5 * ms,
			Call:    futexN,
			Arg:     0x10,
			By:      [2]uint32{leader, worker},
		}
		switch i {
		case 0:
			o.Stack = take
		case 1, 2, 3:
			o.Stack = bare
		}
		b.Off(o)
		b.Sample(worker, at+2*ms, hold, event.Whole)
		b.Off(recordtest.Off{
			TID:     leader,
			TS:      at + 10*ms,
			Dur:     ms,
			Blocked: ms,
			Call:    futexN,
			Arg:     0x20,
			Stack:   other * (1 - i%2),
		})
	}
	s := Summarize(b.Recording())
	if len(s.States) != 1 {
		t.Fatalf("states %+v, want the GIL alone", s.States)
	}
	g := s.States[0]
	if g.Name != "waiting for the GIL" || g.Waits != 10 || g.Blocked != 50*ms || g.TID != leader ||
		g.Place != "step (main.py:3)" {
		t.Errorf("GIL %+v, want 10 waits of 50 ms by the leader in step", g)
	}
	if g.HolderTID != worker || g.HolderAt != "tokenize (tok.py:12)" {
		t.Errorf("held by %d at %q, want the worker in tokenize", g.HolderTID, g.HolderAt)
	}
}

func TestPolling(t *testing.T) {
	b := recordtest.New()
	sync := b.Function(
		recording.Function{Name: "cudaStreamSynchronize", Library: "runtime", Group: "sync", Timed: true},
	)
	launch := b.Function(recording.Function{Name: "cuGraphLaunch", Library: "driver", Group: "graph", Timed: true})
	b.Timed(leader, sync, start+100*ms, 300*ms, 0)
	b.Timed(leader, sync, start+150*ms, 100*ms, 0) // within the first: the driver's
	b.Timed(leader, launch, start+500*ms, 100*ms, 0)
	b.Off(recordtest.Off{TID: leader, TS: start + 200*ms, Dur: 100 * ms, Blocked: 90 * ms, Call: 7})
	s := Summarize(b.Recording())
	if len(s.Threads) != 1 || s.Threads[0].Polling != 200*ms {
		t.Errorf("threads %+v, want 200 ms of polling: 300 less the 100 off the CPU", s.Threads)
	}
}

func TestPressure(t *testing.T) {
	b := recordtest.New()
	b.Meta.OtherThreads = []recording.Thread{{PID: 9, TID: 9, Name: "hog"}}
	b.Meta.Pressure = []recording.Pressure{
		{TS: start, Throttled: 5 * ms, MajorFaults: 10, GPUNode: 0},
		{
			TS:          start + 500*ms,
			Throttled:   9 * ms,
			Periods:     2,
			MajorFaults: 17,
			GPUNode:     0,
			RemotePages: map[string]uint64{"0": 100, "1": 300},
		},
	}
	b.Off(recordtest.Off{
		TID:   leader,
		TS:    start,
		Dur:   200 * ms,
		Call:  event.NoSyscall,
		Flags: event.Preempted,
		By:    [2]uint32{9, 9},
		CPUs:  [2]uint16{0, 1},
	})
	b.Off(recordtest.Off{TID: leader, TS: start + 300*ms, Dur: 50 * ms, Call: event.NoSyscall, Flags: event.Preempted})
	p := Summarize(b.Recording()).Pressure
	want := Pressure{
		Runnable: 250 * ms, Share: 0.25, Involuntary: 2, Migrations: 1,
		Takers: []taker{
			{PID: 9, TID: 9, Name: "hog", OtherThread: true, Count: 1, Time: 200 * ms},
			{Throttled: true, Count: 1, Time: 50 * ms},
		},
		Ran: 750 * ms, Known: true, Throttled: 4 * ms, Periods: 2, MajorFaults: 7,
		Pages: map[string]uint64{"0": 100, "1": 300}, RemoteShare: 0.75,
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("pressure (-want +got):\n%s", diff)
	}
}

// The leader runs on both nodes, the worker on the GPU's; a quarter of the memory is there.
func TestNodes(t *testing.T) {
	b := recordtest.New().Thread(leader, worker, "worker")
	b.Meta.Host.NodeOf = []int{0, 1, 0, 1}
	b.Meta.Pressure = []recording.Pressure{{TS: start, GPUNode: 1, RemotePages: map[string]uint64{"0": 300, "1": 100}}}
	b.Off(
		recordtest.Off{
			TID:     leader,
			TS:      start + 300*ms,
			Dur:     100 * ms,
			Blocked: 100 * ms,
			Call:    futexN,
			CPUs:    [2]uint16{0, 3},
		},
	) // 300 ms on node 0, then 600 on node 1
	b.Off(
		recordtest.Off{
			TID:     worker,
			TS:      start + 400*ms,
			Dur:     100 * ms,
			Blocked: 100 * ms,
			Call:    futexN,
			CPUs:    [2]uint16{3, 1},
		},
	) // 900 ms on node 1
	s := Summarize(b.Recording())
	p := &s.Pressure
	if diff := cmp.Diff(map[string]uint64{"0": 300 * ms, "1": 1500 * ms}, p.Nodes); diff != "" {
		t.Errorf("running time by node (-want +got):\n%s", diff)
	}
	if p.Migrations != 2 || p.Crossings != 1 {
		t.Errorf("%d migrations, %d to another node, want 2 and 1", p.Migrations, p.Crossings)
	}
	near := func(x, y float64) bool { return max(x-y, y-x) < 1e-9 }
	if !near(p.RemoteRunning, 1.0/6) || !near(p.RemoteAccess, 1-(0.75/6+0.25*5/6)) || !near(p.RemoteShare, 0.75) {
		t.Errorf("remote: running %f, access %f, pages %f", p.RemoteRunning, p.RemoteAccess, p.RemoteShare)
	}
	for _, th := range s.Threads {
		if want := map[uint32]float64{leader: 2.0 / 3, worker: 1}[th.TID]; th.Node != 1 || !near(th.NodeShare, want) {
			t.Errorf("thread %d: node %d for %f", th.TID, th.Node, th.NodeShare)
		}
	}
}

// Readings do not come at the window's ends: what lies outside of it does not count.
func TestCountersBetweenReadings(t *testing.T) {
	b := recordtest.New() // a window of 1 s
	b.Meta.Pressure = []recording.Pressure{
		{TS: start - 800*ms, Throttled: 100 * ms, MajorFaults: 7},
		{TS: start + 200*ms, Throttled: 600 * ms, MajorFaults: 7},
		{TS: start + 1200*ms, Throttled: 1100 * ms, MajorFaults: 17},
	}
	p := Summarize(b.Recording()).Pressure
	if p.Throttled != 500*ms || p.MajorFaults != 8 {
		t.Errorf("throttled %d ns and %d major faults, want 500 ms (half of each second) and 8 of 10",
			p.Throttled, p.MajorFaults)
	}
}

func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		want   string
		frames []recording.Frame
	}{
		{"", nil},
		{
			"step (main.py:3)",
			[]recording.Frame{
				native("x"), recordtest.Python("wait", "/usr/lib/python3.12/threading.py", 355),
				recordtest.Python("step", "/app/main.py", 3),
			},
		},
		{
			"wait (threading.py:355)",
			[]recording.Frame{native("x"), recordtest.Python("wait", "/usr/lib/python3.12/threading.py", 355)},
		},
		{
			"cudaMemcpy in step (main.py:3)",
			[]recording.Frame{
				native("cuMemcpyHtoD_v2"), native("cudaMemcpy"), native("at::copy"),
				recordtest.Python("step", "/app/main.py", 3),
			},
		},
		{
			"at::copy",
			[]recording.Frame{
				recordtest.Kernel("futex"), recordtest.Native("syscall", "libc.so.6"), native("at::copy"),
				native("main"),
			},
		},
		{"futex", []recording.Frame{recordtest.Kernel("futex"), recordtest.Native("syscall", "libc.so.6")}},
		{
			"pipe_read",
			[]recording.Frame{
				recordtest.Kernel("finish_task_switch.isra.0"), recordtest.Kernel("schedule"),
				recordtest.Kernel("pipe_read"),
			},
		},
		{"", []recording.Frame{recordtest.Kernel("schedule")}},
		{"custom_op", []recording.Frame{native("custom_op")}}, // no call of CUDA's
		{
			"forward (torch/nn/modules/linear.py:1)",
			[]recording.Frame{
				recordtest.Python("forward", "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 1),
			},
		},
		{
			"dumps (multiprocessing/reduction.py)",
			[]recording.Frame{recordtest.Python("dumps", "/usr/lib/python3.12/multiprocessing/reduction.py", 0)},
		},
	} {
		if got := placeOf(tt.frames); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.frames, got, tt.want)
		}
	}
}

// TestAnyRecording holds that what contradicts itself neither fails nor makes more
// time than there is.
func TestAnyRecording(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		rec := random(r)
		s := Summarize(rec)
		for _, th := range s.Threads {
			if sum := th.Running + th.Runnable + th.Blocked + th.Absent; s.Scheduled && sum != 0 && sum != s.Length {
				t.Fatalf("thread %+v adds up to %d of %d", th, sum, s.Length)
			}
			if th.Polling > th.Running {
				t.Fatalf("thread %+v polls longer than it runs", th)
			}
		}
		for _, w := range s.Waits {
			if w.Time > s.Length || w.Longest > w.Time {
				t.Fatalf("wait %+v in a window of %d", w, s.Length)
			}
		}
		for _, f := range append(s.Python, s.Functions...) {
			if f.Self > f.Total || f.Total > s.Origins.Samples {
				t.Fatalf("function %+v of %d samples", f, s.Origins.Samples)
			}
		}
		if diff := cmp.Diff(s, Summarize(rec)); diff != "" {
			t.Fatalf("two summaries of one recording differ:\n%s", diff)
		}
	}
}

func random(r *rand.Rand) *recording.Recording {
	rec := starved().Recording()
	for i := range rec.Events {
		e := &rec.Events[i]
		switch r.IntN(8) {
		case 0:
			e.TS = r.Uint64() >> r.IntN(64)
		case 1:
			e.Dur = r.Uint64() >> r.IntN(64)
		case 2:
			e.Args[r.IntN(4)] = r.Uint64() >> r.IntN(64)
		case 3:
			e.Flags = event.Flags(r.Uint32())
		case 4:
			e.Func = uint16(r.Uint32())
		case 5:
			e.TID = leader + r.Uint32N(3)
		}
	}
	for i := range rec.Meta.Stacks {
		if r.IntN(4) == 0 {
			rec.Meta.Stacks[i] = recording.Node{Parent: int32(r.Uint32()), Frame: r.Uint32() >> r.IntN(32)}
		}
	}
	return rec
}

// TestRecorderIsNotTheProgram: what the agent's thread computed, waited for and took of a CPU is none of the program's.
func TestRecorderIsNotTheProgram(t *testing.T) {
	const agent = leader + 7
	b := recordtest.New().Thread(leader, agent, "inferscope")
	b.Samples(leader, start, start+50*ms, 5, b.Stack(native("gemm")), event.Whole)
	b.Samples(agent, start, start+50*ms, 5, b.Stack(native("flush")), event.Whole)
	b.Off(recordtest.Off{TID: agent, TS: start, Dur: 80 * ms, Call: futexN})
	b.Off(recordtest.Off{
		TID: leader, TS: start + 50*ms, Dur: 4 * ms, Call: event.NoSyscall, Flags: event.Preempted,
		By: [2]uint32{leader, agent},
	})
	s := Summarize(b.Recording())
	if s.Origins.Samples != 5 || len(s.Functions) != 1 || s.Functions[0].Name != "gemm" {
		t.Errorf("%d samples, functions %+v; want the leader's alone", s.Origins.Samples, s.Functions)
	}
	for _, w := range s.Waits {
		if w.TID == agent {
			t.Errorf("the agent's wait is listed: %+v", w)
		}
	}
	if p := s.Pressure; p.OwnTime != 4*ms || len(p.Takers) != 0 {
		t.Errorf("own time %d ns, takers %+v; want 4 ms of our own", p.OwnTime, p.Takers)
	}
}
