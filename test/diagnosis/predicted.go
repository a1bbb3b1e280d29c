package diagnosis

import (
	"fmt"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/whatif"
)

// predictedError is how far a prediction may lie from what is measured.
const predictedError = 0.10

// predicted is a prediction and what came of it.
type predicted struct {
	number            int
	scenario          *scenario
	whatif.Prediction         // of the fix
	Measured          float64 // how many times as fast the fixed twin is, in turns
	Least, Most       float64 // of the turns
	Watched           float64 // the program's pace while it was recorded, of its pace without
	Tries             int     // recordings that were made until it had that pace
	Cost              float64 // what recording cost by the recording itself: whatif.Study.Recording
	Replay            float64 // error of the replay without changes
	Learned           float64 // see whatif.Study
	Unexplained       float64 // see whatif.Study
}

func (v *predicted) off() float64 {
	if v.Measured == 0 {
		return math.Inf(1)
	}
	return v.Speedup/v.Measured - 1
}

func (v *predicted) near() bool   { return math.Abs(v.off()) <= predictedError }
func (v *predicted) inside() bool { return v.Low <= v.Measured && v.Measured <= v.High }

func (v *predicted) mark() string {
	var marks []string
	if !v.near() {
		marks = append(marks, "far")
	}
	if !v.inside() {
		marks = append(marks, "outside")
	}
	return strings.Join(marks, ", ")
}

// predictedTable prints a row for each of so many as were asked for, and what they amount to.
func predictedTable(all []*predicted, asked int) string {
	var b strings.Builder
	b.WriteString(
		"| # | program | change | predicted | interval | measured | of the pairs | error | replay | cross-check | " +
			"not explained | pace while recorded | tries | recording | |\n" +
			"|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
	)
	for _, v := range all {
		fmt.Fprintf(
			&b,

			"| %d | %s | %s | %.2f | %.2f to %.2f | %.2f | %.2f to %.2f | %+.1f%% | %+.2f%% | %+.1f%% | %.1f%% | "+
				"%.0f%% | %d | %.1f%% | %s |\n",
			v.number,
			v.scenario.name,
			v.Plan,
			v.Speedup,
			v.Low,
			v.High,
			v.Measured,
			v.Least,
			v.Most,
			100*v.off(),
			100*v.Replay,
			100*v.Learned,
			100*v.Unexplained,
			100*v.Watched,
			v.Tries,
			100*v.Cost,
			v.mark(),
		)
	}
	s := predictedScore(all)
	fmt.Fprintf(
		&b,

		"\n%d programs with their fixed twins: %.1f%% of the speed-ups are predicted to within %.0f%%, %.1f%% of the "+
			"measured ones lie in the interval, which is +-%.1f%% wide in the median; the error is %.1f%%; the replay without changes is off "+
			"by %.2f%% at most, and with times learned from the other half of the recording by %.1f%% in the median.\n",
		len(all),
		100*s.near,
		100*predictedError,
		100*s.inside,
		100*s.width,
		100*s.off,
		100*s.replay,
		100*s.learned,
	)
	return b.String() + missing(len(all), asked)
}

type predictedSum struct{ near, inside, off, width, replay, learned float64 }

func predictedScore(all []*predicted) predictedSum {
	var s predictedSum
	var learned, off, width []float64
	for _, v := range all {
		if v.near() {
			s.near++
		}
		if v.inside() {
			s.inside++
		}
		s.replay = max(s.replay, math.Abs(v.Replay))
		learned, off = append(learned, math.Abs(v.Learned)), append(off, math.Abs(v.off()))
		width = append(width, (v.High-v.Low)/2/v.Speedup)
	}
	s.learned, s.off, s.width = middle(learned), middle(off), middle(width)
	s.near /= float64(len(all))
	s.inside /= float64(len(all))
	return s
}
