package summary

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	us = calltest.Microsecond
	ms = calltest.Millisecond
)

// summarize makes the summary of what b built, and checks the timeline below it.
func summarize(t *testing.T, b *calltest.Builder) *Summary {
	t.Helper()
	tl := timeline.Build(b.Recording())
	must.NoError(t, tl.Check())
	return Summarize(tl)
}

func equal(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// function returns the row of a function.
func function(t *testing.T, s *Summary, name string) Function {
	t.Helper()
	for _, f := range s.Functions {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no row for %s in %+v", name, s.Functions)
	return Function{}
}

func TestRuntimeAndDriverCallsAreOneOperation(t *testing.T) {
	b := calltest.New()
	b.Do("cudaMemcpyAsync", 10_000, 100*us, 1, 2, 4096, calltest.Kind(calltest.HostToDevice, 7))
	b.Do("cuMemcpyHtoDAsync_v2", 20_000, 80*us, 1, 2, 4096, 7)
	s := summarize(t, b)
	equal(t, "operations", uint64(1), s.Operations)
	equal(t, "inner", uint64(1), s.Inner)
	equal(t, "inside", []inside{{"cuMemcpyHtoDAsync", "driver", 1, "cudaMemcpyAsync"}}, s.Inside)
	equal(t, "functions", []Function{{
		Name: "cudaMemcpyAsync", Library: "runtime", Group: "copy", Timed: true, Count: 1,
		Time: 100 * us, Share: 0.0001, P50: 100 * us, P99: 100 * us, Max: 100 * us, Bytes: 4096,
	}}, s.Functions)
	equal(t, "call time", 100*us, s.CallTime)
	equal(t, "copies",
		[]Copy{{Direction: cuda.H2D, Async: true, Count: 1, Bytes: 4096, Time: 100 * us, Longest: 100 * us}},
		s.Copies)
}

func TestVersionSuffixesAreOneRow(t *testing.T) {
	b := calltest.New()
	b.Do("cuMemcpyHtoD_v2", 0, 10*us, 1, 2, 100)
	b.Do("cuMemcpyHtoD_v2_ptds", 20_000, 10*us, 1, 2, 100)
	s := summarize(t, b)
	f := function(t, s, "cuMemcpyHtoD")
	equal(t, "count", uint64(2), f.Count)
	equal(t, "names", []string{"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"}, f.Names)
}

func TestPercentiles(t *testing.T) {
	b := calltest.New()
	for i := range int64(200) {
		b.Do("cuCtxSynchronize", i*1_000_000, uint64(i+1)*us)
	}
	f := function(t, summarize(t, b), "cuCtxSynchronize")
	equal(t, "p50, p99, max", [3]uint64{100 * us, 198 * us, 200 * us}, [3]uint64{f.P50, f.P99, f.Max})
}

// TestEdges holds that a call is counted where it began, and its time as far as it lies in the window.
func TestEdges(t *testing.T) {
	b := calltest.New()
	b.Do("cuStreamSynchronize", -50_000_000, 60*ms, 0) // 10 ms of it inside
	b.Do("cuStreamSynchronize", 990_000_000, 60*ms, 0) // 10 ms of it inside
	s := summarize(t, b)
	f := function(t, s, "cuStreamSynchronize")
	equal(t, "count", uint64(1), f.Count)
	equal(t, "early", uint64(1), f.Early)
	equal(t, "time", 20*ms, f.Time)
	equal(t, "max", 60*ms, f.Max)
	equal(t, "sync", Blocked{Calls: 1, Time: 20 * ms, Any: 20 * ms, Share: 0.02, Longest: 60 * ms}, s.Waiting.Sync)
	equal(t, "operations of the stream", uint64(1), s.Streams[0].Count)
}

func TestWaitingIsAUnionOverThreads(t *testing.T) {
	b := calltest.New()
	b.As(recordtest.PID, 1).Do("cudaStreamSynchronize", 0, 10*ms, 0).Do("cuStreamSynchronize", 1_000_000, 8*ms, 0)
	b.As(recordtest.PID, 2).Do("cudaDeviceSynchronize", 5_000_000, 10*ms)
	b.As(recordtest.PID, 3).Do("cudaMemcpy", 14_000_000, 6*ms, 1, 2, 1000, calltest.Kind(calltest.DeviceToHost, 0))
	b.As(recordtest.PID, 4).Do("cudaMemcpyAsync", 19_000_000, 3*ms, 1, 2, 1000, calltest.Kind(calltest.DeviceToHost, 0))
	s := summarize(t, b)
	equal(t, "waiting", waiting{
		Sync:        Blocked{Calls: 2, Time: 20 * ms, Any: 15 * ms, Share: 0.015, Longest: 10 * ms},
		Copies:      Blocked{Calls: 1, Time: 6 * ms, Any: 6 * ms, Share: 0.006, Longest: 6 * ms},
		AsyncCopies: Blocked{Calls: 1, Time: 3 * ms, Any: 3 * ms, Share: 0.003, Longest: 3 * ms},
		All:         Blocked{Calls: 4, Time: 29 * ms, Any: 22 * ms, Share: 0.022, Longest: 10 * ms},
	}, s.Waiting)
	equal(t, "first thread's sync", 10*ms, s.Threads[0].Sync)
}

func TestCopyBandwidth(t *testing.T) {
	const mb = 1_000_000
	b := calltest.New()
	b.Do("cudaMemcpy", 0, 2*ms, 1, 2, 8*mb, calltest.Kind(calltest.HostToDevice, 0))
	b.Do("cudaMemcpy", 3_000_000, 2*ms, 1, 2, 16*mb, calltest.Kind(calltest.HostToDevice, 0))
	b.Fail("cudaMemcpy", 6_000_000, 9*ms, 1, 1, 2, 32*mb, calltest.Kind(calltest.HostToDevice, 0))
	b.Do("cudaMemcpyAsync", 20_000_000, 1*ms, 1, 2, 99*mb, calltest.Kind(calltest.HostToDevice, 0))
	b.Do("cudaMemcpy", 30_000_000, 1*ms, 1, 2, 50*mb, calltest.Kind(calltest.DeviceToDevice, 0))
	b.Do("cudaMemcpy", 40_000_000, 1*ms, 1, 2, 5*mb, calltest.Kind(calltest.Default, 0))
	b.Do("cuMemcpyDtoH_v2", 40_100_000, ms/2, 1, 2, 5*mb) // what the default turned out to be
	b.Do("cuMemcpy", 50_000_000, 1*ms, 1, 2, 3*mb)
	equal(t, "copies", []Copy{
		{Direction: cuda.H2D, Async: true, Count: 1, Bytes: 99 * mb, Time: ms, Longest: ms},
		{Direction: cuda.D2D, Count: 1, Bytes: 50 * mb, Time: ms, Longest: ms},
		{Direction: cuda.H2D, Count: 3, Failed: 1, Bytes: 24 * mb, Time: 13 * ms, Longest: 9 * ms, Bandwidth: 6e9},
		{Direction: cuda.D2H, Count: 1, Bytes: 5 * mb, Time: ms, Longest: ms, Bandwidth: 5e9},
		{Direction: cuda.Unknown, Count: 1, Bytes: 3 * mb, Time: ms, Longest: ms},
	}, summarize(t, b).Copies)
}

func TestCopyTakesItsSizeFromTheCallInside(t *testing.T) {
	b := calltest.New()
	b.Do("cudaMemcpy3D", 0, 100*us)
	b.Do("cuMemcpy3D_v2", 1000, 90*us, 1, 2, 4096, calltest.Kind(calltest.HostToDevice, 0))
	b.Do("cudaMemcpy3D", 1_000_000, 100*us)
	got := summarize(t, b).Copies
	if len(got) != 2 || got[0].Bytes != 4096 || got[0].Direction != cuda.H2D || got[1].Unsized != 1 ||
		got[1].Direction != cuda.Unknown {
		t.Errorf("copies = %+v, want 4096 bytes H2D and one of which nothing is known", got)
	}
}

func TestMemoryIsMatchedInTime(t *testing.T) {
	b := calltest.New()
	b.Do("cudaMalloc", 0, 10*us, 0xa000, 1000)
	b.As(recordtest.PID, 99).Do("cudaFree", 100_000, 5*us, 0xa000) // by another thread
	b.As(recordtest.PID, recordtest.PID).Do("cudaMalloc", 200_000, 10*us, 0xa000, 300)
	b.Do("cudaMallocHost", 300_000, 20*us, 0xb000, 50)
	b.Do("cudaHostRegister", 340_000, 4*us, 0xc000, 700) // pins memory of the program's own
	b.Do("cudaHostUnregister", 360_000, 3*us, 0xc000)
	b.Do("cuMemHostRegister_v2", 380_000, 4*us, 0xe000, 8)
	b.Do("cudaFree", 400_000, 5*us, 0xdead) // allocated before the window
	b.Do("cudaFree", 500_000, 5*us, 0)      // allowed, frees nothing
	b.Fail("cudaMalloc", 600_000, 10*us, 2, 0, 1<<40)
	s := summarize(t, b)
	equal(t, "memory", Memory{
		Kinds: []allocation{
			{Kind: "device", Count: 3, Failed: 1, Bytes: 1300, Time: 30 * us, Kept: 300},
			{Kind: "host", Count: 3, Bytes: 758, Time: 28 * us, Kept: 58},
		},
		Frees: 4, FreeTime: 18 * us, Freed: 1700, Unmatched: 1, Net: 358,
	}, s.Memory)
	equal(t, "errors",
		[]ErrorCode{{Function: "cudaMalloc", Code: 2, Name: "cudaErrorMemoryAllocation", Count: 1}}, s.Errors)
	equal(t, "bytes of the one that failed", uint64(1300), function(t, s, "cudaMalloc").Bytes)
}

func TestLaunches(t *testing.T) {
	b := calltest.New()
	small, large := [3]uint32{1, 1, 1}, [3]uint32{80, 2, 1}
	block := [3]uint32{256, 1, 1}
	b.Launch("cuLaunchKernel", 0, 0xf1, 5, large, block, 1024)
	b.Launch("cuLaunchKernel", 1000, 0xf2, 5, large, block, 1024)
	b.Launch("cuLaunchKernelEx", 2000, 0xf1, 0, small, block, 0)
	b.Do("cuGraphLaunch", 3000, 10*us, 0x99, 5)
	b.Do("cuGraphUpload", 90_000, 10*us, 0x99, 5)
	s := summarize(t, b)
	equal(t, "launches", Launches{
		Kernels: 3, Graphs: 1, PerSecond: 4, Handles: 2, AllShapes: 2,
		Shapes: []shape{
			{Grid: large, Block: block, Shared: 1024, Count: 2, Share: 2. / 3, Handles: 2},
			{Grid: small, Block: block, Count: 1, Share: 1. / 3, Handles: 1},
		},
	}, s.Launches)
	equal(t, "streams", []Stream{
		{PID: recordtest.PID, Handle: 5, Count: 4, Kernels: 2, Graphs: 1},
		{PID: recordtest.PID, Name: "default", Count: 1, Kernels: 1},
	}, s.Streams)
	equal(t, "threads", []thread{{
		PID: recordtest.PID, TID: recordtest.PID, Name: "python", Count: 5, Launches: 4, Time: 20 * us, Share: 0.00002,
	}}, s.Threads)
}

func TestNotReadyIsNoError(t *testing.T) {
	b := calltest.New()
	b.Fail("cuStreamSynchronize", 0, us, 600, 0)
	b.Fail("cuStreamSynchronize", 10_000, us, 700, 0)
	s := summarize(t, b)
	equal(
		t,
		"errors",
		[]ErrorCode{{Function: "cuStreamSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Count: 1}},
		s.Errors,
	)
}

func TestObservedWindow(t *testing.T) {
	const s = calltest.Second
	tests := []struct {
		name      string
		processes []recording.Process
		from, to  uint64
	}{
		{"probed before the window", []recording.Process{{PID: 1, Probed: 1}}, 10 * s, 20 * s},
		{"probed within it", []recording.Process{{PID: 1, Probed: 12 * s}}, 12 * s, 20 * s},
		{
			"the first of two counts",
			[]recording.Process{{PID: 1, Probed: 12 * s}, {PID: 2, Probed: 11 * s}},
			11 * s,
			20 * s,
		},
		{"exited within it", []recording.Process{{PID: 1, Probed: 1, Died: 15 * s}}, 10 * s, 15 * s},
		{
			"a child lives on",
			[]recording.Process{{PID: 1, Probed: 1, Died: 15 * s}, {PID: 2, Probed: 2}},
			10 * s,
			20 * s,
		},
		{"exited before it", []recording.Process{{PID: 1, Probed: 1, Died: 5 * s}}, 10 * s, 10 * s},
		{"never probed", []recording.Process{{PID: 1}}, 10 * s, 20 * s},
		{"nothing known", nil, 10 * s, 20 * s},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Summarize(timeline.Build(
				&recording.Recording{Meta: recording.Meta{From: 10 * s, To: 20 * s, Processes: tt.processes}},
			))
			equal(t, "observed", [3]uint64{tt.from, tt.to, tt.to - tt.from},
				[3]uint64{got.Window.ObservedFrom, got.Window.ObservedTo, got.Window.Observed})
		})
	}
}

func TestUnreadableArguments(t *testing.T) {
	b := calltest.New()
	b.Event(event.Event{
		TS:    calltest.Start,
		PID:   b.PID,
		TID:   b.TID,
		Func:  b.Fn("cuLaunchKernelEx"),
		Kind:  event.Call,
		Flags: event.Fault,
	})
	equal(t, "unreadable", uint64(1), summarize(t, b).Unreadable)
}

func TestLibrariesAreOneRowForEachFile(t *testing.T) {
	got := Libraries([]recording.Library{
		{PID: 1, Path: "/a", Inode: 7, Kind: "driver", Points: 9, Cheap: 9},
		{PID: 2, Path: "/a", Inode: 7, Kind: "driver", Error: "permission denied"},
		{PID: 2, Path: "/a", Inode: 8, Kind: "driver", Points: 5, Cheap: 4},
	})
	equal(t, "libraries", []Library{
		{Path: "/a", Inode: 7, Kind: "driver", PIDs: []uint32{1, 2}, Points: 9, Cheap: 9, Error: "permission denied"},
		{Path: "/a", Inode: 8, Kind: "driver", PIDs: []uint32{2}, Points: 5, Cheap: 4},
	}, got)
}
