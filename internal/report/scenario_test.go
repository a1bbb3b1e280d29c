package report

import (
	"fmt"
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	us = calltest.Microsecond
	ms = calltest.Millisecond
	s  = calltest.Second
)

// scenario is a recording with a name and what its report must say.
type scenario struct {
	name string
	rec  *recording.Recording
	rows int
}

// scenarios are made once: nothing changes a recording.
func scenarios() []scenario { return made() }

var made = sync.OnceValue(func() []scenario {
	return append(slices.Concat(answerScenarios(), cpuScenarios(), gpuScenarios()), []scenario{
		{"decode", decode().Recording(), 0},
		{"no_library", noLibrary().Recording(), 0},
		{"no_calls", noCalls().Recording(), 0},
		{"unprobed", unprobed().Recording(), 0},
		{"losses", losses().Recording(), 0},
		{"exited", exited().Recording(), 0},
		{"exited_before", exitedBefore().Recording(), 0},
		{"processes", processes().Recording(), 0},
		{"many_functions", manyFunctions().Recording(), 12},
		{"pageable", pageable().Recording(), 0},
		{"hostile", hostile().Recording(), 0},
	}...)
})

// libraries adds what a PyTorch process maps, all of it at cheap points.
func libraries(b *calltest.Builder, pid uint32) *calltest.Builder {
	b.Library(recording.Library{
		PID: pid, Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159", Inode: 11, BuildID: "aabb", Kind: "driver",
		Found: 688, Points: 407, Cheap: 407, Mode: "session", Mapped: 15_000_000, Probed: 20_000_000,
	})
	b.Library(recording.Library{
		PID: pid, Path: "/usr/local/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", Inode: 12,
		Kind:  "runtime",
		Found: 310, Points: 96, Cheap: 96, Mode: "session", Mapped: 15_000_000, Probed: 20_000_000,
	})
	return b
}

// decode is the heart of an eager decode: for each of 50 tokens 40 launches, a
// small copy each way, a synchronisation, and a few allocations at the start.
func decode() *calltest.Builder {
	b := libraries(calltest.New(), recordtest.PID)
	b.Thread(recordtest.PID, recordtest.PID+5, "pt_data_pin")
	b.Do("cudaMalloc", 1_000_000, 900*us, 0x7f00_0000_0000, 2<<30)
	b.Do("cuMemAlloc_v2", 1_010_000, 880*us, 0x7f00_0000_0000, 2<<30)
	b.Do("cudaHostAlloc", 2_000_000, 3*ms, 0x7e00_0000_0000, 64<<20)
	b.Do("cudaMemcpy", 6_000_000, 30*ms, 1, 2, 500_000_000, calltest.Kind(calltest.HostToDevice, 0))
	b.Do("cuMemcpyHtoD_v2", 6_005_000, 29_900*us, 1, 2, 500_000_000)
	for token := range int64(50) {
		at := 50_000_000 + token*18_000_000
		b.Do("cudaMemcpyAsync", at, uint64(5+token%7)*us, 1, 2, 4096, calltest.Kind(calltest.HostToDevice, 0x55d0))
		b.Do("cuMemcpyHtoDAsync_v2", at+1000, 3*us, 1, 2, 4096, 0x55d0)
		for k := range int64(40) {
			grid, block, shared := [3]uint32{uint32(1 + k%4*20), 1, 1}, [3]uint32{256, 1, 1}, uint32(0)
			if k%8 == 7 {
				block, shared = [3]uint32{32, 4, 1}, 49152
			}
			b.Launch("cuLaunchKernel", at+20_000+k*100_000, uint64(0x9000+k%12), 0x55d0, grid, block, shared)
		}
		b.Do("cudaStreamSynchronize", at+4_100_000, uint64(9_000_000+token*20_000), 0x55d0)
		b.Do("cuStreamSynchronize", at+4_101_000, uint64(8_990_000+token*20_000), 0x55d0)
		b.Do("cudaMemcpyAsync", at+15_000_000, 40*us, 1, 2, 201_028, calltest.Kind(calltest.DeviceToHost, 0x55d0))
		b.Do("cuMemcpyDtoHAsync_v2", at+15_001_000, 38*us, 1, 2, 201_028, 0x55d0)
		b.Do("cuEventRecord", at+15_100_000, 0, 0x77, 0x55d0)
	}
	b.As(recordtest.PID, recordtest.PID+5)
	for i := range int64(20) {
		b.Do("cuMemcpyHtoDAsync_v2", 100_000_000+i*40_000_000, 12*us, 1, 2, 2_000_000, 0x66e0)
	}
	return b
}

func noLibrary() *calltest.Builder {
	b := calltest.New()
	b.Meta.Processes[0].Probed = 0
	b.Meta.Sources = []recording.Source{{Name: "cuda", State: "waiting", Detail: "no CUDA library is mapped yet"}}
	return b
}

func noCalls() *calltest.Builder { return libraries(calltest.New(), recordtest.PID) }

func unprobed() *calltest.Builder {
	b := calltest.New()
	b.Library(recording.Library{
		PID:   recordtest.PID,
		Path:  "/opt/app/libcuda.so.1",
		Inode: 3,
		Kind:  "driver",
		Error: "section header table ends at 9,000,000 of 4,096 bytes",
	})
	b.Loss(loss.Loss{
		Reason: loss.LibraryRefused,
		Count:  1,
		Where:  "/opt/app/libcuda.so.1",
		Detail: "section header table ends at 9,000,000 of 4,096 bytes",
	})
	return b
}

// losses has one of every severity, and probe points that are dear.
func losses() *calltest.Builder {
	b := decode()
	b.Library(recording.Library{
		PID: recordtest.PID, Path: "/opt/other/libcudart.so.12", Inode: 13, Kind: "runtime", Found: 300, Points: 90,
		Cheap: 61, Mode: "multi",
	})
	for cpu := range 6 {
		b.Loss(loss.Loss{Reason: loss.RingFull, Count: uint64(1000 + cpu), Where: fmt.Sprintf("cpu %d", cpu)})
	}
	b.Loss(loss.Loss{Reason: loss.Overwritten, Count: 250_000})
	b.Loss(loss.Loss{
		Reason: loss.LateProbe,
		Count:  1,
		PID:    1234,
		Where:  "pid 1234",
		Detail: "probed 2.5 s after the library was mapped",
	})
	b.Loss(loss.Loss{Reason: loss.CallDepth, Count: 0})
	b.Event(event.Event{
		TS:    1_900_000_000,
		PID:   4321,
		TID:   4321,
		Func:  b.Fn("cuLaunchKernelEx"),
		Kind:  event.Call,
		Flags: event.Fault,
	})
	return b
}

func exited() *calltest.Builder {
	b := decode()
	b.Meta.Processes[0].Died = 1_960_000_000
	b.Window(calltest.Start, 1_960_000_000+3_200*ms)
	return b
}

func exitedBefore() *calltest.Builder {
	b := libraries(calltest.New(), recordtest.PID)
	b.Meta.Processes[0].Died, b.Meta.Processes[0].ExitCode = 900_000_000, 9
	return b
}

// processes is a server with two workers, one of which crashed, and a child without CUDA.
func processes() *calltest.Builder {
	b := libraries(libraries(calltest.New(), 2001), 2002)
	b.Meta.Processes[0].Comm, b.Meta.Processes[0].Cmdline = "server", "server --workers 2 --model "+
		"/models/an/awfully/long/path/to/the/weights.safetensors"
	b.Process(recording.Process{
		PID:     2001,
		NSPID:   14,
		Parent:  recordtest.PID,
		Comm:    "worker",
		Cmdline: "server: worker 0",
		Born:    50_000_000,
		Probed:  90_000_000,
	})
	b.Process(recording.Process{
		PID:      2002,
		Parent:   recordtest.PID,
		Comm:     "worker",
		Cmdline:  "server: worker 1",
		Born:     60_000_000,
		Probed:   90_000_000,
		Died:     1_500_000_000,
		ExitCode: 139,
	})
	b.Process(recording.Process{
		PID:     2003,
		Parent:  recordtest.PID,
		Comm:    "tokenizer",
		Cmdline: "server: tokenizer",
		Born:    70_000_000,
	})
	b.Meta.Processes[0].Probed = 0
	for i, pid := range []uint32{2001, 2002} {
		b.Thread(pid, pid, "worker")
		b.As(pid, pid)
		for n := range int64(8 - 3*i) {
			at := n * 90_000_000
			b.Launch("cuLaunchKernel", at, 0x10, 0, [3]uint32{10, 1, 1}, [3]uint32{128, 1, 1}, 0)
			b.Do("cuGraphLaunch", at+100_000, 80*us, 0x20, 0)
			b.Do("cuCtxSynchronize", at+300_000, 40*ms)
		}
	}
	b.Fail("cuCtxSynchronize", 450_000_000, 20*us, 700)
	return b
}

// manyFunctions has more functions than a table shows.
func manyFunctions() *calltest.Builder {
	b := libraries(calltest.New(), recordtest.PID)
	names := []string{
		"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemcpyHtoD_v2",
		"cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
		"cuMemcpyDtoDAsync_v2", "cuMemcpyPeerAsync", "cuMemsetD8_v2", "cuMemsetD8Async", "cuMemsetD32_v2",
		"cuGraphLaunch", "cuGraphInstantiateWithFlags", "cuStreamCreate", "cuStreamSynchronize",
		"cuEventSynchronize", "cuEventRecord", "cuEventQuery", "cuModuleLoadDataEx", "cuLibraryLoadData",
		"cuInit", "cuDevicePrimaryCtxRetain", "cuMemHostRegister_v2", "cuMemPoolCreate",
	}
	for n := range int64(5) {
		b.Launch("cuLaunchCooperativeKernel", 25_000_000+n*1000, 0x40, 0, [3]uint32{132, 1, 1},
			[3]uint32{1024, 1, 1}, 65536)
	}
	for i, name := range names {
		for n := range int64(3) {
			b.Do(name, int64(i)*30_000_000+n*2_000_000, uint64(i+1)*20*us,
				0x1000, uint64(n+1)*1000, uint64(n+1)*1000, 0)
		}
	}
	return b
}

// pageable is what an async copy to pageable memory looks like: it waits for the kernels before it.
func pageable() *calltest.Builder {
	b := libraries(calltest.New(), recordtest.PID)
	for token := range int64(100) {
		at := token * 10_000_000
		for k := range int64(20) {
			b.Launch("cuLaunchKernel", at+k*10_000, 0x10, 0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
		}
		b.Do("cudaMemcpyAsync", at+300_000, 6*ms, 1, 2, 4, calltest.Kind(calltest.DeviceToHost, 0))
		b.Do("cudaStreamSynchronize", at+6_400_000, 4*us, 0)
	}
	return b
}

// hostile has names that would rewrite a terminal, or a page.
func hostile() *calltest.Builder {
	b := decode()
	b.Meta.Processes[0].Comm = "\x1b[2J\x1b]0;owned\a"
	b.Meta.Processes[0].Cmdline = "python\n# Heading\n<script>alert(1)</script> | *bold* [x](javascript:y)"
	b.Meta.Threads[0].Name = "a|b\r\n\u202eevil"
	b.Library(recording.Library{
		PID:   recordtest.PID,
		Path:  "/tmp/\x1b[31mlibcuda.so.1|<b>",
		Inode: 99,
		Kind:  "driver",
		Error: "bad\n- **error**: fake",
	})
	return b
}
