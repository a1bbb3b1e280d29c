package diagnosis

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/whatif"
)

// foretoldError is how far a prediction may lie from what is measured.
const foretoldError = 0.10

// foretold is a prediction and what came of it.
type foretold struct {
	number            int
	scenario          *scenario
	whatif.Prediction                   // of the fix, and of what the machine made of the fixed run beside it
	Typed             whatif.Prediction // of the fix alone
	Measured          float64
	Replay            float64 // error of the replay without changes
	Learned           float64 // see whatif.Study
	Unexplained       float64 // see whatif.Study
	Crowded           float64 // share of the time for which one of the two programs had no CPU
}

func (v *foretold) off() float64 {
	if v.Measured == 0 {
		return math.Inf(1)
	}
	return v.Speedup/v.Measured - 1
}

func (v *foretold) near() bool   { return math.Abs(v.off()) <= foretoldError }
func (v *foretold) inside() bool { return v.Low <= v.Measured && v.Measured <= v.High }

func (v *foretold) mark() string {
	var marks []string
	if !v.near() {
		marks = append(marks, "far")
	}
	if !v.inside() {
		marks = append(marks, "outside")
	}
	return strings.Join(marks, ", ")
}

// foretoldTable prints a row for each, and what they amount to.
func foretoldTable(all []*foretold) string {
	var b strings.Builder
	b.WriteString("| # | scenario | change | foretold | interval | measured | error | of the fix alone | replay | from the other half | unexplained | no CPU | |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| %d | %s | %s | %.2f | %.2f to %.2f | %.2f | %+.1f%% | %.2f | %+.2f%% | %+.1f%% | %.1f%% | %.0f%% | %s |\n", v.number, v.scenario.name, v.Plan, v.Speedup, v.Low, v.High, v.Measured,
			100*v.off(), v.Typed.Speedup, 100*v.Replay, 100*v.Learned, 100*v.Unexplained, 100*v.Crowded, v.mark())
	}
	s := foretoldScore(all)
	fmt.Fprintf(&b, "\n%d programs with their fixed twins: %.0f%% of the speed-ups are foretold to within %.0f%%, %.0f%% of the measured ones lie in the interval; of the fix alone, without the machine's part, %.0f%% and %.0f%%; the replay without changes is off by %.2f%% at most, and with times learned from the other half of the recording by %.1f%% in the median.\n",
		len(all), 100*s.near, 100*foretoldError, 100*s.inside, 100*s.typedNear, 100*s.typedInside, 100*s.replay, 100*s.learned)
	return b.String()
}

type foretoldSum struct{ near, inside, typedNear, typedInside, replay, learned float64 }

func foretoldScore(all []*foretold) foretoldSum {
	var s foretoldSum
	for _, v := range all {
		if v.near() {
			s.near++
		}
		if v.inside() {
			s.inside++
		}
		if math.Abs(v.Typed.Speedup/v.Measured-1) <= foretoldError {
			s.typedNear++
		}
		if v.Typed.Low <= v.Measured && v.Measured <= v.Typed.High {
			s.typedInside++
		}
		s.replay = max(s.replay, math.Abs(v.Replay))
	}
	learned := make([]float64, 0, len(all))
	for _, v := range all {
		learned = append(learned, math.Abs(v.Learned))
	}
	slices.Sort(learned)
	s.learned = learned[len(learned)/2]
	s.near /= float64(len(all))
	s.inside /= float64(len(all))
	s.typedNear /= float64(len(all))
	s.typedInside /= float64(len(all))
	return s
}
