package whatif

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// sleepy is steps with a kernel, computing and a sleep, by the step's number.
func sleepy(computing, sleep func(step int) uint64) *scene {
	sc := newScene()
	at := uint64(0)
	for i := range 120 {
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
		sc.wait(at+5*us, at+1020*us)
		at += 1020*us + computing(i)
		sc.Off(recordtest.Off{
			TID: leader, TS: start + at, Dur: sleep(i), Blocked: sleep(i), Call: sysSleep, Flags: event.FromIRQ,
		})
		at += sleep(i)
	}
	return sc
}

// TestScatter: how much parts of a recording differ in what a change brings widens its interval, and a pace that varies
// before the change and after it alike does not.
func TestScatter(t *testing.T) {
	always := func(ns uint64) func(int) uint64 { return func(int) uint64 { return ns } }
	alternately := func(x, y uint64) func(int) uint64 {
		return func(i int) uint64 {
			if i/30%2 == 0 {
				return x
			}
			return y
		}
	}
	scatter := func(sc *scene) float64 {
		s := sc.study(t)
		return s.scatter([]Edit{edit(t, Without, "sleep")}, usual())
	}
	if off := scatter(sleepy(always(ms), always(2*ms))); off > 0.005 {
		t.Errorf("steps that are all alike scatter by %.3f", off)
	}
	changing := scatter(sleepy(always(ms), alternately(3*ms, ms)))
	if changing < 0.1 || changing > 0.4 {
		t.Errorf("sleeps of 3 and 1 ms in turns scatter by %.3f", changing)
	}
	// 2 ms and 6 ms of 4 and 12 ms: each half becomes twice as fast.
	if off := scatter(sleepy(alternately(980*us, 4980*us), alternately(2*ms, 6*ms))); off > changing/4 {
		t.Errorf("a pace that varies scatters by %.3f", off)
	}
}

// TestDrift: sleeps of 3, 2 and 1 ms in the thirds of a recording make the remedy worth 2.5, 2 and 1.5: the interval
// holds each. The same steps in any order are no drift.
func TestDrift(t *testing.T) {
	const rest = 2020 * float64(us)
	predicted := func(third func(step int) int) Prediction {
		sc := sleepy(func(int) uint64 { return ms }, func(i int) uint64 { return uint64(3-third(i)) * ms })
		return sc.study(t).Predict(edit(t, Without, "sleep"))
	}
	p := predicted(func(step int) int { return step / 40 })
	for _, ns := range []float64{3 * float64(ms), 2 * float64(ms), float64(ms)} {
		if gain := (rest + ns) / rest; gain < p.Low || gain > p.High {
			t.Errorf("%.2f is not in %.2f to %.2f", gain, p.Low, p.High)
		}
	}
	if p := predicted(func(step int) int { return step % 3 }); p.High-p.Low > 0.3*p.Speedup {
		t.Errorf("in turns: %.2f (%.2f to %.2f)", p.Speedup, p.Low, p.High)
	}
}

// TestChanceIsNoDrift: of blocks in any order one recording in ten seems to drift, however many blocks it has.
func TestChanceIsNoDrift(t *testing.T) {
	for _, n := range []int{6, 9, 30} {
		const tries = 4000
		drifted, state := 0, uint64(1)
		for range tries {
			list := make([]replay.Block, n)
			for i := range list {
				list[i] = replay.Block{Before: 1, After: 1}
				for range 6 { // nearly a normal distribution, which F is about
					state = state*6364136223846793005 + 1442695040888963407
					list[i].Before += 0.02 * float64(state>>11) / (1 << 53)
				}
			}
			if drift(list) > 0 {
				drifted++
			}
		}
		if share := float64(drifted) / tries; share < 0.08 || share > 0.12 {
			t.Errorf("%d blocks drift by chance in %.3f, want 0.1", n, share)
		}
	}
}

// TestRatioError: the interval of a ratio of means holds the true one 9 times in 10, of ten blocks and of three; two
// say nothing.
func TestRatioError(t *testing.T) {
	if _, ok := ratioError([]replay.Block{{Before: 1, After: 1}, {Before: 2, After: 1}}); ok {
		t.Error("two blocks are enough")
	}
	for _, n := range []int{3, 10} {
		held, state := 0, uint64(1)
		random := func() float64 { // of mean 1, deviation 0.29
			state = state*6364136223846793005 + 1442695040888963407
			return 0.5 + float64(state>>11)/(1<<53)
		}
		const tries = 4000
		for range tries {
			list := make([]replay.Block, n)
			before, after := 0.0, 0.0
			for i := range list {
				rest := 1 + 0.2*random()
				list[i] = replay.Block{Before: rest + random(), After: rest}
				before, after = before+list[i].Before, after+list[i].After
			}
			if off, _ := ratioError(list); math.Abs(before/after/(2.2/1.2)-1) <= off*before/after/(2.2/1.2) {
				held++
			}
		}
		if share := float64(held) / tries; share < 0.84 || share > 0.94 {
			t.Errorf("the interval of %d blocks holds %.3f of the true ratios, want 0.9", n, share)
		}
	}
}

// TestLighter: what recording may cost each call widens the interval of a change that leaves no calls, and hardly that
// of one that leaves the share of the calls as it is; and where windows were compared, by no more than these say.
func TestLighter(t *testing.T) {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * period
		for k := range uint64(100) {
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+k*20*us, at+k*20*us+10*us, at+k*20*us+12*us, 0)
		}
		sc.wait(at+2100*us, at+2200*us)
	}
	tl := timeline.Build(sc.Recording())
	lighter := func(windows *observer.Effect, text string) float64 {
		st := Some(tl, tl.Index.Threads(), nil, timeline.Span{From: tl.From, To: tl.To}, math.MaxInt, windows)
		return st.lighter([]Edit{edit(t, Without, text)}, usual())
	}
	launches, sleep := lighter(nil, "launches"), lighter(nil, "sleep")
	if launches < 0.04 || launches > 0.12 { // 2.1 µs for each of 101 calls in 4 ms
		t.Errorf("launches are less by %.3f", launches)
	}
	if sleep > 0.001 {
		t.Errorf("without a change the speed-up differs by %.3f", sleep)
	}
	compared := &observer.Effect{Steps: observer.Share{Mean: 0.05, Low: 0.04, High: 0.06}}
	if off := lighter(compared, "launches"); off > launches/3 {
		t.Errorf("with an effect that is known to 1%% launches are less by %.3f", off)
	}
}

// TestUnseenCost: a program that runs at 83% of its pace while it is recorded, by its own progress, may be as much less
// to speed up. A cost that was predicted, or may be chance, widens nothing.
func TestUnseenCost(t *testing.T) {
	low := func(o *recording.Overhead) float64 {
		sc := stepwise()
		sc.Meta.Overhead = o
		return sc.study(t).Predict(edit(t, Faster, "encode=1000000")).Low
	}
	cost := func(low float64, basis string) *recording.Overhead {
		return &recording.Overhead{Total: recording.Cost{Share: 0.17, Low: low, High: 0.2, Basis: basis}}
	}
	without := low(nil)
	if got := low(cost(0.14, recording.CostMeasured)); got > 0.93*without {
		t.Errorf("the lower end is %.2f, and %.2f where nothing was measured", got, without)
	}
	for _, o := range []*recording.Overhead{cost(0.14, recording.CostPredicted), cost(-0.01, recording.CostMeasured)} {
		if got := low(o); got != without {
			t.Errorf("%+v: the lower end is %.3f, want %.3f", o.Total, got, without)
		}
	}
}
