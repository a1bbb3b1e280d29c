package whatif

import (
	"math"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// TestStepsThatWindowsMiss: windows hold 8 of 120 steps that sleep, while steps that are timed all the time show that
// 24 of 120 do. A prediction is that of the program, not of the windows. Of steps that are alike the difference is
// what windows add.
func TestStepsThatWindowsMiss(t *testing.T) {
	const usual, nap = 2 * ms, 10 * ms
	sleeps := func(every, long uint64) func(int) uint64 {
		return func(i int) uint64 {
			if uint64(i)%every == 0 {
				return long
			}
			return 100 * us
		}
	}
	work := usual - 1020*us - 100*us
	sc := sleepy(func(int) uint64 { return work }, sleeps(15, nap))
	timed := func(long []uint64) *observer.Effect {
		e, at := &observer.Effect{}, start
		for _, d := range slices.Concat(long, long) {
			e.Timed = append(e.Timed, observer.Step{From: at, To: at + d})
			at += d
		}
		return e
	}
	lengths := func(every uint64) (out []uint64) {
		for i := range 120 {
			out = append(out, usual-100*us+sleeps(every, nap)(i))
		}
		return out
	}
	predict := func(e *observer.Effect) Prediction {
		tl := timeline.Build(sc.Recording())
		in := timeline.Span{From: tl.From, To: tl.To}
		return Some(tl, tl.Index.Threads(), nil, in, math.MaxInt, e).Predict(edit(t, Without, "sleep"))
	}
	mean := func(every float64) float64 {
		return float64(usual-100*us) + float64(nap)/every + float64(100*us)*(1-1/every)
	}
	truth := func(every float64) float64 { return mean(every) / float64(usual-100*us) }
	inWindows := predict(nil)
	if math.Abs(inWindows.Speedup-truth(15)) > 0.03 {
		t.Errorf("windows alone: %+v, want %.2f", inWindows, truth(15))
	}
	whole := predict(timed(append(lengths(15), slices.Repeat(lengths(4), 4)...)))
	want := (mean(15) + 4*mean(4)) / 5 / float64(usual-100*us)
	if math.Abs(whole.Speedup/want-1) > 0.05 || whole.Low > want || whole.High < want {
		t.Errorf("%+v, want %.2f", whole, want)
	}
	alike := predict(timed(slices.Repeat([]uint64{4 * ms}, 120)))
	if math.Abs(alike.Speedup-inWindows.Speedup) > 0.01 {
		t.Errorf("steps that are alike: %+v", alike)
	}
}
