package whatif

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestRecordersAreNoTie: the agent's thread, which lives by a timer, lets go of something now and then that the leader
// waited for: the leader is not held to that timer.
func TestRecordersAreNoTie(t *testing.T) {
	for name, tied := range map[string]bool{"inferscope": false, "cupti": false, "loader": true} {
		sc := stepwise()
		sc.Thread(leader, helper, name)
		for i := range uint64(steps / 24) {
			at := start + i*24*period
			sc.Off(recordtest.Off{
				TID:     helper,
				TS:      at + 2100*us,
				Dur:     24*period - 200*us,
				Blocked: 24*period - 200*us,
				Call:    sysSleep,
				Flags:   event.FromIRQ,
			})
			sc.Off(recordtest.Off{
				TID:     leader,
				TS:      at + 2000*us,
				Dur:     60 * us,
				Blocked: 60 * us,
				Call:    sysFutex,
				By:      [2]uint32{leader, helper},
			})
		}
		p := sc.study(t).Predict(edit(t, Without, "encode"))
		if got := p.Speedup < 2; got != tied {
			t.Errorf("a thread called %s: %.2f times as fast", name, p.Speedup)
		}
	}
}

// TestPageableCopies: a copy of 2 ms from pageable memory before the kernel, for which the thread waits as PyTorch
// does, in a synchronization of its own: with the copy gone from the path nobody waits for it.
func TestPageableCopies(t *testing.T) {
	const h2d = 1 | 1<<8 // CUPTI_ACTIVITY_MEMCPY_KIND_HTOD from CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE
	sc := newScene()
	for i := range uint64(steps) {
		at := i * period
		sc.run(event.Copy, "cudaMemcpyAsync", 7, at, at+10*us, at+2010*us, h2d)
		sc.wait(at+5*us, at+2020*us)
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+2025*us, at+2035*us, at+3935*us, 0)
		sc.wait(at+2030*us, at+3940*us)
	}
	// The kernel, its launch and its wait stay, and the 60 µs before the next step; a quarter of the copy runs beside
	// them.
	predicts(t, sc.study(t).Predict(edit(t, Without, "sync-copy")), 4000.0/(1920+60+5))
}

func times3(ns ...uint64) []replay.Time {
	out := make([]replay.Time, len(ns))
	for i, n := range ns {
		out[i] = replay.Time{Own: n, Count: 1}
	}
	return out
}

// TestMostly: what samples call otherwise in a function that is of a cause goes with it, and a function of many causes
// is of none.
func TestMostly(t *testing.T) {
	g := &replay.Graph{Whats: []replay.What{
		{Cause: cause.Compilation, Name: "compile"},
		{Cause: cause.PageFaults, Name: "compile"},
		{Cause: cause.Compilation, Name: "step"},
		{Cause: cause.PythonWork, Name: "step"},
		{Cause: cause.Compilation},
	}, Times: times3(92, 8, 50, 50, 100)}
	got := mostly(g, cause.Compilation, maxMisattributed)
	if got[function{name: "compile"}] != 1 || got[function{name: "step"}] != 0 || got[function{}] != 0 {
		t.Errorf("%v", got)
	}
	if len(mostly(g, cause.Count, maxMisattributed)) != 0 {
		t.Error("no cause has functions")
	}
}

// TestLessCrowded: a thread that computes half as long loses its CPU half as often, and uses half as much of a quota.
// One that wakes up waits half as long where the target's others compute half as long, and as long as before where only
// it does.
func TestLessCrowded(t *testing.T) {
	g := &replay.Graph{Whats: []replay.What{
		{Kind: replay.Run, TID: 1},
		{Kind: replay.Call, TID: 1},
		{Kind: replay.Ready, TID: 1, Ousted: true},
		{Kind: replay.Ready, TID: 1},
		{Kind: replay.Ready, TID: 1, Cause: cause.Throttled},
		{Kind: replay.Ready, TID: 2, Ousted: true},
		{Kind: replay.Ready, TID: 2},
	}, Times: times3(80, 20, 10, 10, 10, 10, 10)}
	p := g.Unchanged()
	p.Changes[0].Scale = 0.375
	lessCrowded(g, p, nil)
	for i, want := range []float64{0.375, 1, 0.5, 1, 0.5, 1, 0.5} {
		if p.Changes[i].Scale != want {
			t.Errorf("%d: %v, want %v", i, p.Changes[i].Scale, want)
		}
	}
}

// TestBursts: what a thread does on its way to the next launch is launching whatever it is called; a long piece of work
// between two launches is not.
func TestBursts(t *testing.T) {
	sc := newScene()
	work := sc.Stack(recordtest.Python("choose", "/app/infer.py", 9))
	for i := range uint64(steps) {
		at := i * period
		for k := range uint64(40) {
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+k*20*us, at+k*20*us+10*us, at+k*20*us+12*us, 0)
		}
		sc.Sample(leader, start+at+110*us, work, event.Whole) // chance: one of 39 ways
		for k := range uint64(4) {
			sc.Sample(leader, start+at+900*us+k*500*us, work, event.Whole)
		}
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+3000*us, at+3010*us, at+3012*us, 0)
		sc.wait(at+3003*us, at+3020*us)
	}
	p := sc.study(t).Predict(edit(t, Without, "launches"))
	if p.Speedup < 1.2 || p.Speedup > 1.35 { // 780 µs of 4 ms go but for one launch; the choosing stays
		t.Errorf("%.3f times as fast", p.Speedup)
	}
}

// touching is stepwise with a function that touches fresh memory for the last 2.5 ms of each step: of its 25 samples so
// many are not in the kernel.
func touching(otherwise int) *scene {
	s := stepwise()
	fault := s.Stack(recordtest.Kernel("exc_page_fault"), recordtest.Kernel("asm_exc_page_fault"),
		recordtest.Native("grow", "prog"))
	own := s.Stack(recordtest.Native("grow", "prog"))
	for i := range uint64(steps) {
		for k := range 25 {
			stack := fault
			if k >= 3 && k < 3+otherwise {
				stack = own
			}
			s.Sample(leader, start+i*period+1400*us+uint64(k)*100*us, stack, event.Whole)
		}
	}
	return s
}

// TestMisattributedSamplesWidenInterval: samples at the instruction that touches a page may be of the kernel's way to
// its handler and back. Up to a tenth of the function's they are taken for that, up to a quarter some of them are, and
// the interval holds both.
func TestMisattributedSamplesWidenInterval(t *testing.T) {
	speedup := func(otherwise int) Prediction {
		return touching(otherwise).study(t).Predict(edit(t, Without, "page-faults"))
	}
	all, few, more, some, many := speedup(0), speedup(2), speedup(3), speedup(5), speedup(10)
	if more.Speedup < 0.93*all.Speedup || more.Speedup >= all.Speedup {
		t.Errorf("with 3 of 25 %.2f, all of it is %.2f", more.Speedup, all.Speedup)
	}
	if few.Speedup < 0.98*all.Speedup {
		t.Errorf("with 2 of 25 samples that are named otherwise %.2f, without %.2f", few.Speedup, all.Speedup)
	}
	if some.Speedup > 0.9*all.Speedup || some.High < all.Speedup {
		t.Errorf("with 5 of 25 %.2f to %.2f, all of it is %.2f", some.Speedup, some.High, all.Speedup)
	}
	if many.High >= all.Speedup {
		t.Errorf("with 10 of 25 %.2f to %.2f, all of it is %.2f", many.Speedup, many.High, all.Speedup)
	}
}
