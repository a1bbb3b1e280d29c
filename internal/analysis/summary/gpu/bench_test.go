package gpu_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// million is about a million events of four threads that decode, with calls from the agent or from probes.
func million(agent bool) *recording.Recording {
	s := timelinetest.New(timelinetest.Config{Agent: agent, Both: agent, Length: 2 * calltest.Second})
	for i := range uint64(4) {
		st := s.Stream(0x5500+i*0x100, uint32(13+i))
		s.Spawn(uint32(recordtest.PID+i)).Decode(st, 1000, timelinetest.Layers(12), 10*us, 300*us)
	}
	return s.Run()
}

// replay is as many of one thread that replays graphs.
func replay() *recording.Recording {
	s := timelinetest.New(timelinetest.Config{Agent: true, Both: true, Length: 8 * calltest.Second})
	st := s.Stream(0x10, 13)
	th := s.Spawn(recordtest.PID)
	for range 6500 {
		th.Then(func(t *timelinetest.Thread) { t.Graph(st, 0x99, timelinetest.Layers(12), 30*us); t.Sync(st) })
	}
	return s.Run()
}

// BenchmarkGPU gives the cost of each event and its memory.
func BenchmarkGPU(b *testing.B) {
	for _, kind := range []struct {
		name string
		rec  *recording.Recording
	}{{"ids", million(true)}, {"graphs", replay()}, {"order", million(false)}} {
		perEvent := func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(kind.rec.Events)), "ns/event")
			b.ReportMetric(float64(len(kind.rec.Events)), "events")
		}
		b.Run(kind.name+"/timeline", func(b *testing.B) {
			for range b.N {
				timeline.Build(kind.rec)
			}
			perEvent(b)
		})
		t := timeline.Build(kind.rec)
		b.Run(kind.name+"/summary", func(b *testing.B) {
			for range b.N {
				gpu.Summarize(t)
			}
			perEvent(b)
		})
	}
}
