package diagnose_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// part is a part of the analysis of a recording.
type part struct {
	name string
	run  func()
}

// parts are the parts in their order, each on what those before it made.
func parts(rec *recording.Recording) []part {
	t := timeline.Build(rec)
	list := t.Index.Threads()
	w, g, c := gap.New(t, list), gpu.Summarize(t), cpu.SummarizeThreads(t, list)
	return []part{
		{"timeline", func() { timeline.Build(rec) }},
		{"threads", func() { t.Index.Threads() }},
		{"calls", func() { summary.Summarize(t) }},
		{"gpu", func() { gpu.Summarize(t) }},
		{"cpu", func() { cpu.SummarizeThreads(t, list) }},
		{"gap", func() { gap.New(t, list) }},
		{"diagnose", func() { diagnose.New(t, w, g, c, nil) }},
		{"whole", func() { report.New(rec) }},
	}
}

// BenchmarkWhole gives for each mix of events what each part of the analysis costs, and all of them
// together. INFERSCOPE_EVENTS is how many events there are, default a million.
func BenchmarkWhole(b *testing.B) {
	n, err := strconv.Atoi(os.Getenv("INFERSCOPE_EVENTS"))
	if err != nil {
		n = 1_000_000
	}
	for m := range timelinetest.Mixes {
		rec := m.Make(n)
		for _, p := range parts(rec) {
			b.Run(m.String()+"/"+p.name, func(b *testing.B) { timelinetest.Measure(b, len(rec.Events), p.run) })
		}
	}
}

// BenchmarkLinear gives what the whole of the analysis costs each event where there are 1, 3 and 10 million of them: it
// should be the same.
func BenchmarkLinear(b *testing.B) {
	for m := range timelinetest.Mixes {
		for _, millions := range []int{1, 3, 10} {
			rec := m.Make(millions * 1_000_000)
			b.Run(fmt.Sprintf("%s/%dM", m, millions), func(b *testing.B) {
				timelinetest.Measure(b, len(rec.Events), func() { report.New(rec) })
			})
		}
	}
}
