package timeline

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestNesting says for calls of one thread which of them are inside which.
func TestNesting(t *testing.T) {
	const grid, block = 4 | 1<<32 | 1<<48, 256 | 1<<11 | 1<<22
	tests := []struct {
		name   string
		events []event.Event
		want   []int32
	}{
		{
			"a driver copy inside a runtime copy",
			[]event.Event{call(cudaMemcpy, 2000, 100), call(cuMemcpyHtoD, 2010, 80)},
			[]int32{None, 0},
		},
		{
			"a call that ends with its caller is inside",
			[]event.Event{call(cudaMemcpy, 2000, 100), call(cuMemcpyHtoD, 2010, 90)},
			[]int32{None, 0},
		},
		{
			"a call that begins when another ends is not inside",
			[]event.Event{call(cudaMemcpy, 2000, 100), call(cuMemcpyHtoD, 2100, 90)},
			[]int32{None, None},
		},
		{
			"a driver call inside a driver call inside a runtime call",
			[]event.Event{
				call(cudaMemcpy, 2000, 100),
				call(cuMemcpyHtoD, 2010, 80),
				call(cuStreamSynchronize, 2020, 20),
			},
			[]int32{None, 0, 1},
		},
		{
			"of two that begin together the longer one is outside",
			[]event.Event{call(cuMemcpyHtoD, 2000, 80), call(cudaMemcpy, 2000, 100)},
			[]int32{None, 0},
		},
		{
			"an entry-only call inside a timed one",
			[]event.Event{call(cudaMemcpy, 2000, 100), call(cuEventRecord, 2050, -1)},
			[]int32{None, 0},
		},
		{
			"a runtime launch owns the next driver launch, once",
			[]event.Event{
				launch(cudaLaunchKernel, 2000, grid, block),
				launch(cuLaunchKernel, 2005, grid, block),
				launch(cuLaunchKernel, 2010, grid, block),
			},
			[]int32{None, 0, None},
		},
		{
			"but not one of another shape",
			[]event.Event{launch(cudaLaunchKernel, 2000, grid, block), launch(cuLaunchKernel, 2005, grid+1, block)},
			[]int32{None, None},
		},
		{
			"a shape that could not be read fits any",
			[]event.Event{launch(cudaLaunchKernel, 2000, 0, 0), launch(cuLaunchKernel, 2005, grid, block)},
			[]int32{None, 0},
		},
		{
			"but not with a copy in between",
			[]event.Event{
				launch(cudaLaunchKernel, 2000, grid, block),
				call(cuMemcpyHtoD, 2002, 1),
				launch(cuLaunchKernel, 2005, grid, block),
			},
			[]int32{None, None, None},
		},
		{
			"loading the module in between stays an operation of its own",
			[]event.Event{
				launch(cudaLaunchKernel, 2000, grid, block),
				call(cuModuleLoadData, 2002, 900_000_000),
				launch(cuLaunchKernel, 900_010_000, grid, block),
			},
			[]int32{None, None, 0},
		},
		{
			"but not after more than a second of nothing",
			[]event.Event{
				launch(cudaLaunchKernel, 2000, grid, block),
				launch(cuLaunchKernel, 1_000_002_001, grid, block),
			},
			[]int32{None, None},
		},
		{
			"two runtime launches, the first of which failed",
			[]event.Event{
				launch(cudaLaunchKernel, 2000, grid, block),
				launch(cudaLaunchKernel, 2005, grid, block),
				launch(cuLaunchKernel, 2007, grid, block),
			},
			[]int32{None, None, 1},
		},
		{
			"a runtime event record owns the driver's",
			[]event.Event{call(cudaEventRecord, 2000, -1), call(cuEventRecord, 2005, -1)},
			[]int32{None, 0},
		},
		{
			"a runtime stream wait does not own an event record",
			[]event.Event{call(cudaStreamWaitEvent, 2000, -1), call(cuEventRecord, 2005, -1)},
			[]int32{None, None},
		},
		{
			"a driver launch owns nothing",
			[]event.Event{launch(cuLaunchKernel, 2000, grid, block), launch(cuLaunchKernel, 2005, grid, block)},
			[]int32{None, None},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tl := build(t, recordingOf(tt.events...))
			if diff := cmp.Diff(tt.want, parents(tl)); diff != "" {
				t.Errorf("parents (-want +got):\n%s", diff)
			}
			if tl.Doubts != (doubts{}) {
				t.Errorf("doubts = %+v, want none", tl.Doubts)
			}
		})
	}
}

func TestThreadsDoNotNestInEachOther(t *testing.T) {
	other := call(cuMemcpyHtoD, 2010, 10)
	other.TID = testTID + 1
	tl := build(t, recordingOf(call(cudaMemcpy, 2000, 100), other))
	if diff := cmp.Diff([]int32{None, None}, parents(tl)); diff != "" {
		t.Error(diff)
	}
	if len(tl.Threads) != 2 || tl.Threads[0].Name != "main" || tl.Threads[1].Name != "" {
		t.Errorf("threads = %+v, want main and a nameless one", tl.Threads)
	}
}

func TestCrossingIsADoubt(t *testing.T) {
	tl := build(t, recordingOf(call(cudaMemcpy, 2000, 100), call(cuMemcpyHtoD, 2050, 100)))
	if tl.Doubts.Crossed != 1 {
		t.Errorf("crossed = %d, want 1", tl.Doubts.Crossed)
	}
	if diff := cmp.Diff([]int32{None, None}, parents(tl)); diff != "" {
		t.Error(diff)
	}
}

func TestReusedPIDIsTwoProcesses(t *testing.T) {
	rec := recordingOf(call(cudaMemcpy, 2000, 10), call(cudaMemcpy, 5000, 10), call(cudaMemcpy, 9000, 10))
	rec.Meta.Processes = []recording.Process{
		{PID: testPID, Comm: "first", Born: 0, Died: 3000},
		// Born is rounded down to 10 ms, so that it may lie before the death of the former one.
		{PID: testPID, Comm: "second", Born: 1000, Died: 6000},
	}
	tl := build(t, rec)
	var got []string
	for _, th := range tl.Threads {
		got = append(got, tl.Processes[th.Process].Comm)
	}
	if diff := cmp.Diff([]string{"first", "second", ""}, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if tl.Doubts.Unlisted != 1 {
		t.Errorf("unlisted = %d, want the call after both had died", tl.Doubts.Unlisted)
	}
}

func TestWindow(t *testing.T) {
	rec := recordingOf(
		call(cudaMemcpy, 100, 200),               // over before the window
		call(cudaMemcpy, 500, 1000),              // reaches into it
		call(cuStreamSynchronize, 999_000, 5000), // reaches out of it
		call(cudaMemcpy, 2_000_000, 1),           // begins after it
	)
	rec.Meta.To = 1_000_000
	tl := build(t, rec)
	if len(tl.Ops) != 2 || !tl.Early(&tl.Ops[0]) || tl.Early(&tl.Ops[1]) {
		t.Fatalf("ops = %+v, want an early one and one that is not", tl.Ops)
	}
	for i, want := range [][2]uint64{{1000, 1500}, {999_000, 1_000_000}} {
		if from, to := tl.Clip(&tl.Ops[i]); from != want[0] || to != want[1] {
			t.Errorf("Clip(%d) = %d, %d, want %v", i, from, to, want)
		}
	}
	if tl.Ops[1].Dur != 5000 {
		t.Errorf("dur = %d, want the whole 5000", tl.Ops[1].Dur)
	}
}

func TestEventsThatAreNoCalls(t *testing.T) {
	fork := event.Event{TS: 2000, PID: testPID, TID: testTID, Kind: event.Fork}
	stray := call(999, 2001, -1)
	tl := build(t, recordingOf(fork, stray, call(cudaMemcpy, 3000, 10)))
	if len(tl.Ops) != 1 || tl.Doubts.Stray != 1 {
		t.Errorf("%d ops, doubts %+v; want one op and one stray call", len(tl.Ops), tl.Doubts)
	}
}

func TestEmpty(t *testing.T) {
	tl := build(t, &recording.Recording{})
	if len(tl.Ops)+len(tl.Threads)+len(tl.Processes) != 0 {
		t.Errorf("an empty recording made %+v", tl)
	}
}

func TestBuildDoesNotChangeTheRecording(t *testing.T) {
	rec := recordingOf(call(cuMemcpyHtoD, 2000, 80), call(cudaMemcpy, 2000, 100))
	slices.Reverse(rec.Events)
	before := slices.Clone(rec.Events)
	build(t, rec)
	if diff := cmp.Diff(before, rec.Events); diff != "" {
		t.Errorf("events changed:\n%s", diff)
	}
}
