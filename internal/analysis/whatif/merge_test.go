package whatif

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
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
	// the copy begins 1 µs after its call, and is waited for 2 longer; the kernel begins 20 µs later
	const rest = call + 1 + fixed + 2 + 20 + 1000 + 20
	predicts(t, p, step/(rest+48))
	// at the slowest, what is computed between copies stays, 10 µs each
	if low, high := step/(rest+72+205+990), step/(rest+29); p.Low > low || p.Low < 0.85*low || p.High < high || p.High > 1.15*high {
		t.Errorf("%.2f to %.2f, want %.2f to %.2f", p.Low, p.High, low, high)
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
	if p.Low > step/(150+1030) || p.High < step/1040 {
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

// TestWhatKernelsShare: of 64 kernels of 1.5 µs and 64 of 5.5, fused into one row and two more launches, 4 µs of each of
// the longer ones are traffic. The thread spends up to 500 ns on each tensor of 10 µs.
func TestWhatKernelsShare(t *testing.T) {
	const name = "void at::native::elementwise_kernel<128, 4>(int)"
	s := rowsOf(50, func(r *rowScene) {
		r.kernels(64, name)
		id := int32(len(r.Meta.GPU.Kernels))
		for range 64 {
			r.run(event.Kernel, "cuLaunchKernel", 7, r.at, r.at+8*us, r.at+13500, id)
			r.at += 10 * us
		}
	}).study(t)
	g := s.parts[0].graph
	for end, want := range map[linkSpeed][2]float64{
		expected: {0.7, 0.2}, slowest: {1, 0.5}, fastest: {0.4, 0},
	} {
		gpu, host := s.mergedTimes(g, replay.Elementwise, end)
		if on := (3*1.5 + want[0]*64*4) / (128*1.5 + 64*4); math.Abs(gpu-on) > 0.01 || math.Abs(host-want[1]/10) > 0.003 {
			t.Errorf("%v: %.3f of the GPU's time and %.3f of the thread's, want %.3f and %.3f", end, gpu, host, on, want[1]/10)
		}
	}
}

// TestWorkBetweenLaunchesStays: what a program computes between copies or after them is not the copies'.
func TestWorkBetweenLaunchesStays(t *testing.T) {
	computed := func(r *rowScene, ns uint64) {
		st := r.Stack(recordtest.Python("preprocess", "/app/serve.py", 7))
		r.Sample(leader, start+r.at+ns/2, st, event.Whole)
		r.at += ns
	}
	for what, c := range map[string]struct {
		most float64
		step func(r *rowScene)
	}{
		"between": {1.05, func(r *rowScene) {
			for range 16 {
				r.upload(16 << 10)
				computed(r, 300*us)
			}
		}},
		"after": {1.02, func(r *rowScene) {
			r.run(event.Kernel, "cudaGraphLaunch", 7, r.at, r.at+10*us, r.at+4010*us, 0)
			r.at += 10 * us
			for range 10 {
				r.copy(r.at, r.at+4*us, r.at+8*us, 1|3<<8, 1<<10)
				r.at += 10 * us
			}
			computed(r, 3*ms)
			r.wait(r.at, r.at+1000*us)
			r.at += 3 * ms
		}},
		"one a step": {1, func(r *rowScene) {
			computed(r, 5*ms)
			r.upload(16 << 10)
		}},
	} {
		r := &rowScene{scene: newScene()}
		for range 60 {
			c.step(r)
		}
		if p := r.study(t).Predict(edit(t, Merge, "sync-copy")); p.Speedup > c.most {
			t.Errorf("%s: %.2f times as fast, at most %.2f is possible", what, p.Speedup, c.most)
		}
	}
}

// TestGraphsAreNoRow: a graph of small kernels is launched once as it is.
func TestGraphsAreNoRow(t *testing.T) {
	sc := newScene()
	sc.Meta.GPU.Kernels = append(sc.Meta.GPU.Kernels, recording.Kernel{Name: "void at::native::elementwise_kernel<128, 4>(int)"})
	for _, name := range []string{"cudaGraphLaunch", "cuLaunchKernel"} { // also of a call with several kernels
		for n := range uint64(50) {
			at := n * 15 * us
			if name == "cuLaunchKernel" {
				at += 10 * ms
			}
			id := sc.call(name, at, 5*us)
			for k := range uint64(2) {
				sc.Event(event.Event{
					TS: start + at + 6*us + k*4*us, Dur: 3 * us, PID: leader, TID: 7, Func: 1 << 8, Kind: event.Kernel,
					Flags: event.Timed, Ret: int32(len(sc.Meta.GPU.Kernels)), Args: [4]uint64{uint64(id), 0, 1 << 20},
				})
			}
		}
	}
	if p := sc.study(t).Predict(edit(t, Merge, "launch-overhead")); !p.Empty() {
		t.Errorf("%+v", p)
	}
}
