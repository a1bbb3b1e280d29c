package whatif

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// rowScene is steps of which each makes many small copies or kernels and then computes for a millisecond, in a graph.
type rowScene struct {
	*scene
	at uint64
}

func rowsOf(steps int, each func(r *rowScene)) *scene {
	r := &rowScene{scene: newScene(), at: 0}
	r.Meta.GPU.Devices[0].Major = 9 // 57 GB/s
	for range steps {
		each(r)
		r.run(event.Kernel, "cudaGraphLaunch", 7, r.at, r.at+10*us, r.at+1010*us, 0)
		r.wait(r.at+5*us, r.at+1020*us)
		r.at += 1030 * us
	}
	return r.scene
}

// upload makes a copy from pageable memory in a call of 3 µs, waits for it for 7, and goes on to the next for 10.
func (r *rowScene) upload(bytes uint64) {
	r.copy(r.at, r.at+4*us, r.at+8*us, 1|1<<8, bytes)
	r.wait(r.at+3*us, r.at+10*us)
	r.at += 20 * us
}

// TestOneUploadOfMany: 100 uploads of 16 KB take 2 ms of a step of 3 ms. One of 1.6 MB takes a call, a copy's own 4 µs
// and 48 µs at 60% of 57 GB/s; from 29 µs at its full rate to 72 µs at 40% of it with 205 µs to pack the rows.
func TestOneUploadOfMany(t *testing.T) {
	const step, call, fixed = 3030., 3., 4.
	s := rowsOf(200, func(r *rowScene) {
		for range 100 {
			r.upload(16 << 10)
		}
	}).study(t)
	p := s.Predict(edit(t, Merge, "sync-copy"))
	// after the row, a thread goes on at once, and the kernel begins when the copy is done
	predicts(t, p, step/(call+fixed+48+1000+11+10))
	if low := step / (call + fixed + 72 + 205 + 1000 + 40); p.Low > 1.05*low {
		t.Errorf("the lower end %.2f leaves no time to pack rows (%.2f)", p.Low, low)
	}
	if p.Speedup < 1.5*s.Predict(edit(t, Without, "sync-copy")).Speedup {
		t.Error("pinned memory is as good")
	}
	if named := s.Predict(edit(t, Merge, "h2d")); named.After != p.After {
		t.Errorf("by its name it takes %d, by its cause %d", named.After, p.After)
	}
	for _, other := range []string{"launch-overhead", "d2h", "host-sync"} {
		if p := s.Predict(edit(t, Merge, other)); !p.Empty() {
			t.Errorf("%s: %+v", other, p)
		}
	}
}

// TestFewOrLargeCopiesStay: seven copies are no row, and large ones none either.
func TestFewOrLargeCopiesStay(t *testing.T) {
	for _, c := range []struct{ count, bytes uint64 }{{7, 16 << 10}, {20, 1 << 20}} {
		s := rowsOf(100, func(r *rowScene) {
			for range c.count {
				r.upload(c.bytes)
			}
		}).study(t)
		if p := s.Predict(edit(t, Merge, "sync-copy")); !p.Empty() {
			t.Errorf("%d copies of %d bytes: %+v", c.count, c.bytes, p)
		}
	}
}

// kernels launches as many small kernels of a name, each in a call of 5 µs, 10 µs after each other.
func (r *rowScene) kernels(count int, name string) {
	r.Meta.GPU.Kernels = append(r.Meta.GPU.Kernels, recording.Kernel{Name: name})
	id := int32(len(r.Meta.GPU.Kernels))
	for range count {
		r.run(event.Kernel, "cuLaunchKernel", 7, r.at, r.at+8*us, r.at+9500, id)
		r.at += 10 * us
	}
}

// TestOneKernelOfMany: 300 elementwise kernels of 1.5 µs take 3 ms of a step of 4 ms. Fused, 5 kernels and 200 ns of
// the thread for each of the 299 are left. What multiplies matrices is not fused.
func TestOneKernelOfMany(t *testing.T) {
	const step = 4030.
	scene := func(name string) *Study {
		return rowsOf(100, func(r *rowScene) { r.kernels(300, name) }).study(t)
	}
	s := scene("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)")
	p := s.Predict(edit(t, Merge, "launch-overhead"))
	predicts(t, p, step/(3+60+1000+20+10))
	if p.Low > step/(150+1030) || p.High < step/(1040) {
		t.Errorf("%.2f (%.2f to %.2f)", p.Speedup, p.Low, p.High)
	}
	if p := scene("gemm").Predict(edit(t, Merge, "launch-overhead")); !p.Empty() {
		t.Errorf("gemm: %+v", p)
	}
}

// TestRowsEndWhereSomethingElseBegins: kernels between which a thread waits for the GPU, or launches others, are no row.
func TestRowsEndWhereSomethingElseBegins(t *testing.T) {
	const name = "void at::native::elementwise_kernel<128, 4>(int)"
	for what, between := range map[string]func(r *rowScene){
		"wait":   func(r *rowScene) { r.wait(r.at, r.at+5*us); r.at += 10 * us },
		"launch": func(r *rowScene) { r.kernels(1, "gemm") },
	} {
		s := rowsOf(50, func(r *rowScene) {
			for range 20 {
				r.kernels(5, name)
				between(r)
			}
		}).study(t)
		if p := s.Predict(edit(t, Merge, "elementwise")); !p.Empty() {
			t.Errorf("with a %s after each five: %+v", what, p)
		}
	}
}
