package cuda

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// TestPromised: every function and family that users were promised resolves, into
// the group that it belongs to.
func TestPromised(t *testing.T) {
	for name, group := range map[string]Group{
		"cuInit": groupInit, "cuDriverGetVersion": groupInit,
		"cuDeviceGet": Device, "cuDeviceGetCount": Device, "cuDeviceGetName": Device, "cuDeviceGetAttribute": Device,
		"cuDeviceGetUuid_v2": Device, "cuCtxCreate_v2": groupContext, "cuCtxCreate_v4": groupContext,
		"cuCtxSetCurrent": groupContext, "cuCtxGetCurrent": groupContext, "cuCtxPushCurrent_v2": groupContext,
		"cuCtxDestroy_v2": groupContext, "cuDevicePrimaryCtxRetain": groupContext,
		"cuDevicePrimaryCtxRelease_v2": groupContext, "cuCtxSetLimit": groupContext, "cuCtxSynchronize": Sync,
		"cuCtxSynchronize_v2": Sync, "cuMemAlloc_v2": Alloc, "cuMemAllocManaged": Alloc, "cuMemAllocAsync_ptsz": Alloc,
		"cuMemAllocFromPoolAsync": Alloc, "cuMemHostAlloc": Alloc, "cuMemAllocHost_v2": Alloc,
		"cuMemAllocPitch_v2": Alloc, "cuMemCreate": Alloc, "cuMemFree_v2": Free, "cuMemFreeAsync": Free,
		"cuMemFreeHost": Free, "cuMemRelease": Free, "cuMemHostRegister_v2": groupMemory, "cuMemMap": groupMemory,
		"cuMemUnmap": groupMemory, "cuMemPrefetchAsync_v2_ptsz": groupMemory, "cuMemAdvise_v2": groupMemory,
		"cuMemPoolCreate": groupMemory, "cuMemPoolSetAttribute": groupMemory, "cuMemGetInfo_v2": groupMemory,
		"cuPointerGetAttribute": groupMemory, "cuMemcpy": Copy, "cuMemcpyAsync_ptsz": Copy, "cuMemcpyHtoD_v2": Copy,
		"cuMemcpyDtoHAsync_v2_ptsz": Copy, "cuMemcpyDtoD_v2_ptds": Copy, "cuMemcpyPeerAsync": Copy,
		"cuMemcpy2D_v2": Copy, "cuMemcpy3DPeerAsync_ptsz": Copy, "cuMemcpyAtoH_v2": Copy, "cuMemcpyBatchAsync_v2": Copy,
		"cuMemsetD8_v2": Set, "cuMemsetD32Async": Set, "cuMemsetD2D16_v2_ptds": Set, "cuLaunchKernel": Launch,
		"cuLaunchKernel_ptsz": Launch, "cuLaunchKernelEx": Launch, "cuLaunchCooperativeKernel": Launch,
		"cuLaunch": Launch, "cuLaunchGrid": Launch, "cuLaunchGridAsync": Launch, "cuLaunchHostFunc": groupStream,
		"cuStreamCreate": groupStream, "cuStreamWaitEvent_ptsz": groupStream, "cuStreamQuery": groupStream,
		"cuStreamSynchronize": Sync, "cuStreamGetCtx": groupStream, "cuEventRecord_ptsz": Event, "cuEventCreate": Event,
		"cuEventQuery": Event, "cuEventSynchronize": Sync, "cuEventElapsedTime": Event, "cuModuleLoadData": Module,
		"cuModuleLoadDataEx": Module, "cuModuleGetFunction": Module, "cuModuleUnload": Module,
		"cuLibraryLoadData": Module, "cuLibraryGetKernel": Module, "cuKernelGetFunction": Module,
		"cuFuncGetAttribute": Module, "cuGraphLaunch": Graph, "cuGraphLaunch_ptsz": Graph,
		"cuGraphInstantiateWithFlags": Graph, "cuGraphAddKernelNode_v2": Graph, "cuStreamBeginCapture_v2": Graph,
		"cudaMalloc": Alloc, "cudaMallocAsync_ptsz": Alloc, "cudaMallocManaged": Alloc, "cudaMallocHost": Alloc,
		"cudaHostAlloc": Alloc, "cudaFree": Free, "cudaFreeAsync": Free, "cudaFreeHost": Free,
		"cudaHostRegister": groupMemory, "cudaMemPoolCreate": groupMemory, "cudaMemcpy": Copy, "cudaMemcpy_ptds": Copy,
		"cudaMemcpyAsync": Copy, "cudaMemcpyAsync_ptsz": Copy, "cudaMemcpy2DAsync": Copy, "cudaMemcpyToSymbol": Copy,
		"cudaMemcpyPeer": Copy, "cudaMemset": Set, "cudaMemsetAsync": Set, "cudaLaunchKernel": Launch,
		"cudaLaunchKernel_ptsz": Launch, "cudaLaunchKernelExC": Launch, "cudaLaunchCooperativeKernel": Launch,
		"cudaStreamSynchronize": Sync, "cudaStreamSynchronize_ptsz": Sync, "cudaDeviceSynchronize": Sync,
		"cudaEventSynchronize": Sync, "cudaStreamCreateWithFlags": groupStream, "cudaEventRecord": Event,
		"cudaGraphLaunch": Graph, "cudaGraphInstantiate": Graph, "cudaGetLastError": Device, "cudaGetDevice": Device,
		"cudaStreamIsCapturing": groupStream,
	} {
		row, ok := Match(name)
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		if row.Group != group {
			t.Errorf("%s is of group %s, want %s", name, row.Group, group)
		}
		want := Driver
		if strings.HasPrefix(name, "cuda") {
			want = Runtime
		}
		if row.Library != want {
			t.Errorf("%s is of library %s", name, row.Library)
		}
	}
}

func TestMatchVersions(t *testing.T) {
	for _, c := range []struct {
		name  string
		major int
		row   string // "" where nothing may match
	}{
		{"cuMemcpyHtoD", 0, "cuMemcpyHtoD_v1"},
		{"cuMemcpyHtoD_v2", 0, "cuMemcpyHtoD"},
		{"cuMemcpyHtoD_v2_ptds", 0, "cuMemcpyHtoD"},
		{"cuMemAlloc", 0, "cuMemAlloc_v1"},
		{"cuMemAlloc_v2", 0, "cuMemAlloc"},
		{"cuMemHostRegister", 0, "cuMemHostRegister"},
		{"cuMemHostRegister_v2", 0, "cuMemHostRegister"},
		{"cuMemPrefetchAsync_ptsz", 0, "cuMemPrefetchAsync"},
		{"cuMemPrefetchAsync_v2_ptsz", 0, "cuMemPrefetchAsync_v2"},
		{"cuCtxGetFlags", 0, "cuCtxGetFlags"}, // a glob's row takes the function's name
		{"cudaMemPrefetchAsync", 11, "cudaMemPrefetchAsync"},
		{"cudaMemPrefetchAsync", 12, "cudaMemPrefetchAsync"},
		{"cudaMemPrefetchAsync_v2_ptsz", 12, "cudaMemPrefetchAsync_v2"},
		{"cudaMemPrefetchAsync", 13, "cudaMemPrefetchAsync_v2"},
		{"cudaMemPrefetchAsync_ptsz", 14, "cudaMemPrefetchAsync_v2"},
		{"cudaMemcpyBatchAsync", 12, "cudaMemcpyBatchAsync"},
		{"cudaMemcpyBatchAsync", 13, "cudaMemcpyBatchAsync_v2"},
		{"ncclAllReduceConfig", 0, "ncclAllReduce"},
		{"ncclAlltoAllConfig", 0, "ncclAlltoAll"},
		{"ncclCommInitRankConfig", 0, "ncclCommInitRankConfig"},
		{"cuMemcpyHtoD_v", 0, "cuMemcpyHtoD_v"}, // no version: a function that the table has no row of its own for
		{"cuGetErrorString", 0, ""},
		{"cuGetProcAddress_v2", 0, ""},
		{"__cudaLaunchKernel", 13, ""}, // jumps to cudaLaunchKernel, which would be counted twice
		{"cuda", 0, ""},
		{"cu", 0, ""},
		{"", 0, ""},
		{"_v2", 0, ""},
		{"malloc", 0, ""},
		{"cuMem" + strings.Repeat("x", maxName), 0, ""},
	} {
		row, ok := match(c.name, c.major)
		if ok != (c.row != "") || row.Name != c.row {
			t.Errorf("%q in version %d: row %q (%v), want %q", c.name, c.major, row.Name, ok, c.row)
		}
	}
}

// TestHotAndTimed: the decisions that cost or save the target's time.
func TestHotAndTimed(t *testing.T) {
	for _, name := range []string{
		"cuCtxGetCurrent", "cuDevicePrimaryCtxGetState", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
		"cuCtxGetDevice", "cuCtxGetDevice_v2", "cuDeviceGetAttribute", "cuFuncGetAttribute",
		"cuStreamIsCapturing_ptsz", "cuPointerGetAttribute", "cudaGetDevice", "cudaGetLastError",
		"cudaStreamIsCapturing",
	} {
		if row, ok := Match(name); !ok || !row.Hot {
			t.Errorf("%s must be in the table, and hot", name)
		}
	}
	for _, name := range []string{
		"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cudaLaunchKernel", "cuEventRecord",
		"cuStreamQuery", "cuEventQuery", "cuStreamWaitEvent", "cudaEventRecord",
	} {
		if row, ok := Match(name); !ok || row.Timed || row.Hot {
			t.Errorf("%s must be probed at its entry only", name)
		}
	}
	for _, name := range []string{
		"cuInit", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize_v2", "cuMemcpyHtoD_v2",
		"cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemHostRegister_v2",
		"cuModuleLoadData", "cuLibraryLoadData", "cuGraphInstantiateWithFlags", "cuGraphLaunch",
		"cudaMemcpyAsync", "cudaMalloc", "cudaFree", "cudaDeviceSynchronize", "cudaGraphLaunch",
	} {
		if row, ok := Match(name); !ok || !row.Timed {
			t.Errorf("%s can block and must be timed", name)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, seed := range []string{
		"cuInit", "cuMemcpyHtoD_v2_ptds", "cuda_v", "cu_v2_v3_ptsz", "_ptsz", "cuMem*", "cudaMemPrefetchAsync@13",
		"=cuMemAlloc", "cu\x00",
	} {
		f.Add(seed, 13)
	}
	fuzzing.Run(f, func(t *testing.T, name string, major int) {
		row, ok := match(name, major)
		if !ok {
			return
		}
		if row.Glob() || row.Name == "" || len(name) > maxName {
			t.Errorf("%q gives row %q", name, row.Name)
		}
		if row.Only == nil && !strings.HasPrefix(name, row.Name) {
			t.Errorf("%q gives row %q of another function", name, row.Name)
		}
	})
}
