package libcuda

import "testing"

// TestNamed: a version or a per-thread suffix makes no other function of a name; anything else does.
func TestNamed(t *testing.T) {
	functions := []string{"cuLaunchKernel", "cuCtxDestroy"}
	for name, want := range map[string]bool{
		"cuLaunchKernel": true, "cuLaunchKernel_ptsz": true, "cuCtxDestroy_v2": true, "cuCtxDestroy_v2_ptds": true,
		"cuLaunchKernelEx": false, "cuLaunch": false, "cuCtxDestroy_v9": false, "cuCtxDestroy_v2_old": false,
		"_cuLaunchKernel": false, "": false, "_v2": false, "cuMemAlloc_v2": false,
	} {
		if named(name, functions) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
