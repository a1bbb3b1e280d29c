package diagnose_test

import (
	"runtime"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// BenchmarkNew gives the cost of the diagnosis alone, of each event and of each gap, for ten seconds of a decode whose
// every kernel is over before the next is launched.
func BenchmarkNew(b *testing.B) {
	s := timelinetest.New(timelinetest.Config{Agent: true, Both: true, Length: 10_000 * ms})
	s.Spawn(recordtest.PID).Decode(s.Stream(0x5500, 13), 10_000, timelinetest.Layers(12), 10*us, 300*us)
	rec := s.Run()
	t := timeline.Build(rec)
	w, g, c := gap.Build(t), gpu.Summarize(t), cpu.Summarize(rec)
	gaps := 0
	for range w.All() {
		gaps++
	}
	runtime.GC()
	b.ReportAllocs()
	for b.Loop() {
		diagnose.New(t, w, g, c, nil)
	}
	each := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	b.ReportMetric(each/float64(len(rec.Events)), "ns/event")
	b.ReportMetric(each/float64(gaps), "ns/gap")
	b.ReportMetric(float64(len(rec.Events)), "events")
}
