package timeline

import (
	"cmp"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Indices into testFunctions.
const (
	cudaMemcpy uint16 = iota
	cuMemcpyHtoD
	cudaLaunchKernel
	cuLaunchKernel
	cudaEventRecord
	cuEventRecord
	cuModuleLoadData
	cuStreamSynchronize
	cudaStreamWaitEvent
)

func testFunctions() []recording.Function {
	return []recording.Function{
		{Name: "cudaMemcpy", Base: "cudaMemcpy", Library: "runtime", Group: "copy", Timed: true},
		{Name: "cuMemcpyHtoD_v2", Base: "cuMemcpyHtoD", Library: "driver", Group: "copy", Timed: true},
		{Name: "cudaLaunchKernel", Base: "cudaLaunchKernel", Library: "runtime", Group: "launch"},
		{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch"},
		{Name: "cudaEventRecord", Base: "cudaEventRecord", Library: "runtime", Group: "event"},
		{Name: "cuEventRecord", Base: "cuEventRecord", Library: "driver", Group: "event"},
		{Name: "cuModuleLoadData", Base: "cuModuleLoadData", Library: "driver", Group: "module", Timed: true},
		{Name: "cuStreamSynchronize", Base: "cuStreamSynchronize", Library: "driver", Group: "sync", Timed: true},
		{Name: "cudaStreamWaitEvent", Base: "cudaStreamWaitEvent", Library: "runtime", Group: "stream"},
		{Name: "cuMemcpyDtoDAsync_v2", Base: "cuMemcpyDtoDAsync", Library: "driver", Group: "copy", Timed: true},
		{Name: "ncclAllGather", Base: "ncclAllGather", Library: "nccl", Group: "collective", Timed: true},
		{Name: "ncclGroupStart", Base: "ncclGroupStart", Library: "nccl", Group: "collective"},
		{Name: "ncclGroupEnd", Base: "ncclGroupEnd", Library: "nccl", Group: "collective", Timed: true},
	}
}

const (
	testPID = 100
	testTID = 101
)

// call makes the event of a call of the usual thread; dur < 0 means entry only.
func call(fn uint16, ts uint64, dur int64) event.Event {
	e := event.Event{TS: ts, PID: testPID, TID: testTID, Func: fn, Kind: event.Call}
	if dur >= 0 {
		e.Flags, e.Dur = event.Timed, uint64(dur)
	}
	return e
}

// launch is call for a launch with a shape.
func launch(fn uint16, ts, grid, block uint64) event.Event {
	e := call(fn, ts, -1)
	e.Args = [4]uint64{0xabc, 0, grid, block}
	return e
}

// recordingOf puts events into a recording with the window [1000, 1 s * 1000], ordered by time.
func recordingOf(events ...event.Event) *recording.Recording {
	slices.SortStableFunc(events, func(a, b event.Event) int { return cmp.Compare(a.TS, b.TS) })
	return &recording.Recording{
		Meta: recording.Meta{
			From: 1000, To: 1_000_000_000_000,
			Processes: []recording.Process{{PID: testPID, Comm: "python"}},
			Threads:   []recording.Thread{{PID: testPID, TID: testTID, Name: "main"}},
			Functions: testFunctions(),
		},
		Events: events,
	}
}

// build makes a timeline and checks it.
func build(t *testing.T, rec *recording.Recording) *Timeline {
	t.Helper()
	tl := Build(rec)
	if err := tl.Check(); err != nil {
		t.Fatalf("Check: %v", err)
	}
	return tl
}

// parents returns the parents of all ops, in the order of the ops.
func parents(tl *Timeline) []int32 {
	var p []int32
	for i := range tl.Ops {
		p = append(p, tl.Ops[i].Parent)
	}
	return p
}
