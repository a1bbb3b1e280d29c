package diff

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestRankSum compares with scipy.stats.mannwhitneyu(a, b, method="asymptotic") of SciPy 1.17.1.
func TestRankSum(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	b := []float64{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for _, c := range []struct {
		a, b []float64
		want float64
	}{{a, b, 0.18455094}, {a, a, 1}, {a, []float64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, 0.00018267179}} {
		if got := rankSum(c.a, c.b); math.Abs(got-c.want) > c.want*0.001 {
			t.Errorf("p = %g, want %g", got, c.want)
		}
	}
	if rankSum(a[:7], b) != unknown {
		t.Error("seven values were judged")
	}
}

// TestFalseAlarms draws both sides from one distribution: a test at 1% must not cry out much oftener.
func TestFalseAlarms(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() []float64 {
		out := make([]float64, 50)
		for i := range out {
			out[i] = math.Exp(r.NormFloat64())
		}
		return out
	}
	alarms := 0
	for range 2000 {
		if rankSum(draw(), draw()) < 0.01 {
			alarms++
		}
	}
	if alarms > 45 { // 20 expected; more than 45 has a probability below 1e-6
		t.Errorf("%d false alarms of 2000 at 1%%", alarms)
	}
}
