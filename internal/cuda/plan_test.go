package cuda

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestIdentify(t *testing.T) {
	driver := []Export{{"cuInit", 1}, {"cuLaunchKernel", 2}}
	runtime := []Export{{"cudaMalloc", 1}, {"cudaLaunchKernel", 2}}
	runtime12 := append(slices.Clone(runtime), Export{"cudaMemPrefetchAsync_v2", 3})
	runtime13 := append(slices.Clone(runtime), Export{"cudaMemPrefetchBatchAsync", 3})
	both := append(slices.Clone(driver), runtime...)
	for _, c := range []struct {
		soname  string
		exports []Export
		want    Identity
		ok      bool
	}{
		{"libcuda.so.1", driver, Identity{Kind: Driver}, true},
		{"libcuda.so.1", runtime, Identity{}, false},
		{"libcuda.so.1", nil, Identity{}, false},
		{"libcudart.so.11.0", runtime, Identity{Runtime, 11}, true},
		{"libcudart.so.12", runtime, Identity{Runtime, 12}, true},
		{"libcudart.so.13", runtime, Identity{Runtime, 13}, true},
		{"libcudart-d0da41ae.so.11.0", runtime, Identity{Runtime, 11}, true}, // as auditwheel renames it
		{"libcudart.7ec1eba6.so.12", runtime, Identity{Runtime, 12}, true},
		{"libcudart.so", runtime13, Identity{Runtime, 13}, true},
		{"libcudart.so.x", runtime12, Identity{Runtime, 12}, true},
		{"libcudart.so", runtime, Identity{Runtime, 0}, true},
		{"", driver, Identity{Kind: Driver}, true},
		{"", runtime13, Identity{Runtime, 13}, true},
		{"", both, Identity{}, false},
		{"", nil, Identity{}, false},
		{"libvgpu.so", driver, Identity{}, false}, // an interposer calls the real driver
		{"libcudadebugger.so.1", driver, Identity{}, false},
		{"libcuda", driver, Identity{}, false},
		{"libcudart_static.so", runtime, Identity{}, false},
	} {
		got, ok := Identify(c.soname, c.exports)
		if got != c.want || ok != c.ok {
			t.Errorf("%q with %d exports: %+v, %v; want %+v, %v", c.soname, len(c.exports), got, ok, c.want, c.ok)
		}
	}
}

// TestFileNames: a file is the driver's only where the agent takes it for that, too (agent/src/library.c).
func TestFileNames(t *testing.T) {
	for base, want := range map[string]bool{
		"libcuda.so": true, "libcuda.so.1": true, "libcuda.so.580.159": true,
		"libcuda-xyz.so": false, "libcuda-xyz.so.1": false, "libcuda.txt": false, "libcudart.so.13": false,
		"libcuda.sock": false,
	} {
		if IsDriverFile(base) != want {
			t.Errorf("%s: %v", base, !want)
		}
	}
}

// names lists what a selection probes, with all names of each address.
func names(s Selection) []string {
	var out []string
	for _, p := range s.Points {
		out = append(out, fmt.Sprintf("%s=%v@%d", p.Name, p.Names, p.Addr))
	}
	return out
}

func TestPlan(t *testing.T) {
	exports := []Export{
		{"cuLaunchKernel_ptsz", 90},
		{"cuLaunchKernel", 91},
		{"cuInit", 10},
		{"cuMemHostRegister", 20},
		{"cuMemHostRegister_v2", 20}, // one address: the newest name
		{"cuStreamQuery_ptsz", 30},
		{"cuStreamQuery", 30},   // one address: the plain name
		{"cuCtxGetCurrent", 40}, // hot
		{"cudaMalloc", 50},      // of the other library
		{"cuGetErrorString", 60},
		{"unrelated", 61}, // not in the table
		{"cuCtxSynchronize", 70},
		{"cuCtxSynchronize", 70}, // listed twice
	}
	got, err := Plan(Identity{Kind: Driver}, exports, Options{})
	must.NoError(t, err)
	want := []string{
		"cuInit=[cuInit]@10",
		"cuMemHostRegister_v2=[cuMemHostRegister cuMemHostRegister_v2]@20",
		"cuLaunchKernel=[cuLaunchKernel]@91",
		"cuLaunchKernel_ptsz=[cuLaunchKernel_ptsz]@90",
		"cuCtxSynchronize=[cuCtxSynchronize]@70",
		"cuStreamQuery=[cuStreamQuery cuStreamQuery_ptsz]@30",
	}
	if diff := cmp.Diff(want, names(got)); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	if got.Found != 10 || got.Hot != 1 || got.Shadowed != 0 {
		t.Errorf("found %d, hot %d, shadowed %d; want 10, 1, 0", got.Found, got.Hot, got.Shadowed)
	}
	all, err := Plan(Identity{Kind: Driver}, exports, Options{Hot: true})
	if err != nil || len(all.Points) != len(got.Points)+1 || all.Hot != 0 {
		t.Errorf("with hot functions: %d points, %v", len(all.Points), err)
	}
}

// TestPlanShadowed: a runtime's launches are probed only where no driver is.
func TestPlanShadowed(t *testing.T) {
	exports := []Export{
		{"cudaLaunchKernel", 1},
		{"cudaMalloc", 2},
		{"cudaMemPrefetchAsync", 3},
		{"cudaGetDevice", 4},
		{"cudaStreamIsCapturing", 5},
	}
	for _, c := range []struct {
		options Options
		want    []string
	}{
		{Options{}, []string{"cudaMalloc=[cudaMalloc]@2", "cudaMemPrefetchAsync=[cudaMemPrefetchAsync]@3"}},
		{
			Options{Shadowed: true},
			[]string{
				"cudaMalloc=[cudaMalloc]@2", "cudaMemPrefetchAsync=[cudaMemPrefetchAsync]@3",
				"cudaLaunchKernel=[cudaLaunchKernel]@1",
			},
		},
		{Options{Hot: true, Shadowed: true}, []string{
			"cudaGetDevice=[cudaGetDevice]@4", "cudaMalloc=[cudaMalloc]@2",
			"cudaMemPrefetchAsync=[cudaMemPrefetchAsync]@3", "cudaLaunchKernel=[cudaLaunchKernel]@1",
			"cudaStreamIsCapturing=[cudaStreamIsCapturing]@5",
		}},
	} {
		got, err := Plan(Identity{Runtime, 13}, exports, c.options)
		must.NoError(t, err)
		if diff := cmp.Diff(c.want, names(got)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.options, diff)
		}
		if i := slices.IndexFunc(got.Points, func(p Point) bool {
			return p.Name == "cudaMemPrefetchAsync"
		}); got.Points[i].Row.Name != "cudaMemPrefetchAsync_v2" {
			t.Errorf("CUDA 13 changed cudaMemPrefetchAsync: row %s", got.Points[i].Row.Name)
		}
	}
}

// TestPlanOrder: the plan does not depend on the order of the symbols.
func TestPlanOrder(t *testing.T) {
	exports := []Export{
		{"cuInit", 1},
		{"cuMemAlloc", 2},
		{"cuMemAlloc_v2", 3},
		{"cuMemHostRegister_v2", 4},
		{"cuMemHostRegister", 4},
		{"cuCtxGetFlags", 5},
	}
	first, err := Plan(Identity{Kind: Driver}, exports, Options{})
	must.NoError(t, err)
	slices.Reverse(exports)
	second, err := Plan(Identity{Kind: Driver}, exports, Options{})
	must.NoError(t, err)
	if diff := cmp.Diff(names(first), names(second)); diff != "" {
		t.Errorf("order matters:\n%s", diff)
	}
}

func TestPlanRefusesTooMany(t *testing.T) {
	var exports []Export
	for i := range uint64(maxPoints + 1) {
		exports = append(exports, Export{fmt.Sprintf("cuMemHostile%d", i), i})
	}
	if _, err := Plan(Identity{Kind: Driver}, exports, Options{}); err == nil {
		t.Errorf("planned %d probes", len(exports))
	}
	if s, err := Plan(Identity{Kind: Driver}, exports[1:], Options{}); err != nil || len(s.Points) != maxPoints {
		t.Errorf("%d points, %v; want %d", len(s.Points), err, maxPoints)
	}
}

func BenchmarkPlan(b *testing.B) {
	var exports []Export
	for i, r := range Rows() {
		for j, suffix := range []string{"", "_v2", "_ptsz"} {
			exports = append(exports, Export{r.Name + suffix, uint64(3*i + j)})
		}
	}
	for b.Loop() {
		if _, err := Plan(Identity{Kind: Driver}, exports, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCoreKeepsWhatWorksAndWaits(t *testing.T) {
	exports := []Export{
		{"cuInit", 1},
		{"cuLaunchKernel", 2},
		{"cuMemcpyHtoDAsync_v2", 3},
		{"cuStreamSynchronize", 4},
		{"cuMemAlloc_v2", 5},
		{"cuGraphLaunch", 6},
		{"cuGraphAddKernelNode_v2", 7},
		{"cuEventRecord", 8},
		{"cuModuleLoadData", 9},
		{"cuMemFree_v2", 10},
	}
	s, err := Plan(Identity{Kind: Driver}, exports, Options{Core: true})
	must.NoError(t, err)
	var got []uint64
	for _, p := range s.Points {
		got = append(got, p.Addr)
	}
	slices.Sort(got)
	if want := []uint64{2, 3, 4, 5, 6, 10}; !slices.Equal(got, want) || s.Minor != len(exports)-len(want) {
		t.Errorf("probed %v, want %v; %d left out", got, want, s.Minor)
	}
}
