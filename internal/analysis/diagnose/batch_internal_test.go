package diagnose

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// h200 is what the agent says of an NVIDIA H200.
var h200 = recording.Device{Name: "NVIDIA H200", SMs: 132, PeakRate: 4_800_000_000_000, Major: 9}

// TestTimesWithTwiceTheBatch: what is known of a kernel bounds how much longer it takes.
func TestTimesWithTwiceTheBatch(t *testing.T) {
	d := doubling{device: &h200, shapes: map[shape]*moments{}, kernels: []recording.Kernel{
		{Name: "gemvx::kernel<int, int, __nv_bfloat16>", Registers: 64},
		{Name: "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"},
		{Name: "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", Registers: 128},
		{Name: "elementwise_kernel<128, 4>", Registers: 32},
		{Name: "sm90_xmma_gemm_bf16bf16_128x128x64", Registers: 168},
		{Name: "mul_mat_vec_q<(ggml_type)12, 1, false>"},
	}}
	for _, test := range []struct {
		of        string
		s         shape
		low, high float64
		by        basis
	}{
		{"a product with a vector", shape{0, 1024, 128}, 1, 1.125, byIntensity},
		{"a tile of 8 columns", shape{1, 512, 128}, 1, 1.07, byIntensity},
		{"4-bit weights by one vector", shape{5, 4096, 128}, 1, 1.37, byIntensity},
		{"attention that fills the GPU", shape{2, 264, 128}, 2, 2, byAttention},
		{"attention of few blocks", shape{2, 32, 128}, 1, 2, byAttention},
		{"a few blocks", shape{3, 16, 128}, 1, 1, byBlocks},
		{"half as many blocks as multiprocessors", shape{3, 66, 128}, 1, 2, byNothing},
		{"many turns", shape{3, 132 * 16 * 8, 128}, 2, 2, byBlocks},
		{"a product of one and a half turns", shape{4, 198, 256}, 1.5, 1.5, byBlocks},
		{"no name", shape{-1, 16, 128}, 1, 2, byNothing},
		{"no grid", shape{3, 0, 0}, 1, 2, byNothing},
	} {
		r, by := d.times(test.s)
		if math.Abs(r.Low-test.low) > 0.01 || math.Abs(r.High-test.high) > 0.01 || by != test.by {
			t.Errorf("%s: %.3f to %.3f by %d, want %.2f to %.2f by %d",
				test.of, r.Low, r.High, by, test.low, test.high, test.by)
		}
	}
	d.device = &recording.Device{}
	if r, by := d.times(shape{0, 1024, 128}); r != unknownTimes || by != byNothing {
		t.Errorf("an unknown device: %+v by %d", r, by)
	}
}

// TestTimesOfOtherGrids: a kernel whose time is known with another grid takes as long as that says.
func TestTimesOfOtherGrids(t *testing.T) {
	kernels := []recording.Kernel{{Name: "softmax"}, {Name: "gemm"}}
	d := doubling{device: &h200, kernels: kernels, shapes: map[shape]*moments{}}
	truth := func(blocks uint64) float64 { return 5000 + 40*float64(blocks) }
	for kernel := range int32(2) {
		for _, n := range []uint64{150, 300} {
			m := &moments{}
			for i := range 10 {
				m.add(truth(n) + float64(i%3-1)*20)
			}
			d.shapes[shape{kernel, n, 256}] = m
		}
	}
	r, by := d.times(shape{0, 150, 256})
	if want := truth(300) / truth(150); by != byGrids || r.Low > want || r.High < want || r.High-r.Low > 0.05 {
		t.Errorf("%+v by %d, want %.3f in it", r, by, want)
	}
	if r, by := d.times(shape{1, 150, 256}); by == byGrids { // its grid may be that of other weights
		t.Errorf("a product: %+v", r)
	}
}

// TestThroughputWithTwiceTheBatch: what is not in kernels may double.
func TestThroughputWithTwiceTheBatch(t *testing.T) {
	d := doubled{times: timeRange{Low: 1, High: 1.25}}
	for kernels, want := range map[float64]timeRange{1: {1.6, 2}, 0.5: {2 / 1.625, 2}, 0: {1, 2}} {
		if r := d.throughput(kernels); math.Abs(r.Low-want.Low) > 1e-9 || math.Abs(r.High-want.High) > 1e-9 {
			t.Errorf("%.1f of the time: %+v, want %+v", kernels, r, want)
		}
	}
}
