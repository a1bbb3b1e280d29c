package whatif

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// hot is stepwise, 4 ms a step of which a kernel takes 1, on a named device of 132 multiprocessors.
func hot(name string, blocks uint64) *Study {
	s := stepwise()
	s.Meta.GPU.Devices[0].Name, s.Meta.GPU.Devices[0].SMs = name, 132
	rec := s.Recording()
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Kernel {
			e.Args[2] = blocks | 1<<32 | 1<<48
		}
	}
	t := timeline.Build(rec)
	return New(t, t.Index.Threads())
}

// TestClocks: a kernel that keeps a GPU at its limit takes longer, which is expected where that is known of the GPU,
// and else possible. One block draws nothing.
func TestClocks(t *testing.T) {
	for name, c := range map[string]struct {
		device string
		blocks uint64
		want   float64 // of kernels of 1 ms in steps that then take 1.04 ms, 0.93 of the way to the limit
		low    float64 // at most
	}{
		"known":     {"NVIDIA H200", 132, 4 / (1.07 + 0.11*0.93), 3.5},
		"not known": {"cudasim virtual GPU", 132, 3.74, 3.2},
		"one block": {"NVIDIA H200", 1, 3.74, 3.65},
	} {
		p := hot(c.device, c.blocks).Predict(edit(t, Without, "encode"))
		if math.Abs(p.Speedup/c.want-1) > 0.02 {
			t.Errorf("%s: %.3f times as fast, want %.3f", name, p.Speedup, c.want)
		}
		if p.Low > c.low {
			t.Errorf("%s: %.3f at least", name, p.Low)
		}
	}
	known, other := hot("NVIDIA H200", 132), hot("cudasim virtual GPU", 132)
	e := edit(t, Without, "encode")
	if a, b := known.Predict(e), other.Predict(e); a.High < b.Speedup {
		t.Errorf("clocks may stay: %.3f at most, and %.3f without", a.High, b.Speedup)
	}
}

// TestWarm: of a thread that computes for 2 ms each time that it has slept, the computing may be 100 µs shorter where
// it does not sleep, half of that where it sleeps for half as long, and its collections by a third; another thread's
// may not.
func TestWarm(t *testing.T) {
	g := &replay.Graph{
		Whats: []replay.What{
			{Kind: replay.Run, TID: 1},
			{Kind: replay.External, TID: 1},
			{Kind: replay.Run, TID: 2},
			{Kind: replay.External, TID: 2},
			{Kind: replay.Run, TID: 1, Cause: cause.GC},
		},
		Times: []replay.Time{
			{Own: ms * 50, Count: 50},
			{Own: 18 * ms * 50, Count: 50},
			{Own: 2 * ms, Count: 1},
			{Own: ms, Count: 1},
			{Own: ms * 50, Count: 50},
		},
	}
	for _, c := range []struct{ left, computing, collecting float64 }{
		{0, 0.95, 1 - chilled}, {0.5, 0.975, 1 - chilled/2}, {1, 1, 1},
	} {
		p := g.Unchanged()
		p.Changes[1].Scale = c.left
		warmed(g, p, refill)
		for i, want := range map[int]float64{0: c.computing, 2: 1, 4: c.collecting} {
			if got := p.Changes[i].Scale; math.Abs(got-want) > 1e-9 {
				t.Errorf("with %v of its waits, %d is scaled by %v, want %v", c.left, i, got, want)
			}
		}
	}
}
