package cuda_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
)

// TestHIPNamesMeanWhatCUDAsDo names the functions that PyTorch for ROCm calls at each step.
func TestHIPNamesMeanWhatCUDAsDo(t *testing.T) {
	for name, want := range map[string]cuda.Group{
		"hipLaunchKernel": cuda.Launch, "hipExtModuleLaunchKernel": cuda.Launch, "hipModuleLaunchKernel": cuda.Launch,
		"hipExtLaunchKernel": cuda.Launch, "hipMemcpyAsync": cuda.Copy, "hipMemcpyWithStream": cuda.Copy,
		"hipMemcpyDtoHAsync": cuda.Copy, "hipStreamSynchronize": cuda.Sync, "hipDeviceSynchronize": cuda.Sync,
		"hipEventSynchronize": cuda.Sync, "hipMalloc": cuda.Alloc, "hipHostMalloc": cuda.Alloc, "hipFree": cuda.Free,
		"hipHostFree": cuda.Free, "hipMemsetAsync": cuda.Set, "hipGraphLaunch": cuda.Graph,
		"hipStreamBeginCapture": cuda.Graph, "hipEventRecord": cuda.Event, "hipGetDevice": cuda.Device,
		"hipModuleLoadData": cuda.Module, "hipStreamSynchronize_spt": cuda.Sync,
	} {
		row, ok := cuda.MatchHIP(name)
		if !ok || row.Group != want {
			t.Errorf("%s: group %q (known: %v), want %q", name, row.Group, ok, want)
		}
	}
	for _, name := range []string{"cudaMalloc", "hipo", "hipNoSuchFunction", "", "hip"} {
		if row, ok := cuda.MatchHIP(name); ok {
			t.Errorf("%q was taken for %s", name, row.Name)
		}
	}
	for _, base := range []string{"hipLaunchKernel", "hipMemcpyAsync"} {
		if _, ok := cuda.Match(base); ok {
			t.Errorf("%s is matched as a function to probe", base)
		}
	}
}
