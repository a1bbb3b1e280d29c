package report

import (
	"io"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// full is as much as the default budget of a recorder holds: 1.5 million events
// (96 MB) of a decode on four threads.
func full() *recording.Recording {
	const threads, tokens = 4, 9000
	b := libraries(calltest.New(), 1234)
	b.Window(calltest.Start, calltest.Start+60*s)
	for t := range int64(threads) {
		b.As(1234, uint32(1234+t))
		for token := range int64(tokens) {
			at := token*6_000_000 + t*37
			for k := range int64(36) {
				b.Launch("cuLaunchKernel", at+k*6000, uint64(0x9000+k%70), uint64(0x55d0+t),
					[3]uint32{uint32(k % 12), 1, 1}, [3]uint32{256, 1, 1}, 0)
			}
			b.Do("cudaMemcpyAsync", at+300_000, uint64(5000+at%977), 1, 2, 4096,
				calltest.Kind(calltest.HostToDevice, 0x55d0))
			b.Do("cuMemcpyHtoDAsync_v2", at+301_000, 3000, 1, 2, 4096, 0x55d0)
			b.Do("cudaStreamSynchronize", at+400_000, uint64(2_000_000+at%99_991), 0x55d0)
			b.Do("cuStreamSynchronize", at+401_000, 1_900_000, 0x55d0)
			b.Do("cudaMallocAsync", at+4_000_000, 2000, uint64(0x7f0000000000+at), 4096, 0x55d0)
			b.Do("cudaFreeAsync", at+4_500_000, 2000, uint64(0x7f0000000000+at), 0x55d0)
		}
	}
	return b.Recording()
}

func BenchmarkFullRecording(b *testing.B) {
	rec := full()
	perEvent := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(rec.Events)), "ns/event")
	}
	b.Run("timeline", func(b *testing.B) {
		for range b.N {
			timeline.Build(rec)
		}
		perEvent(b)
	})
	t := timeline.Build(rec)
	b.Run("summary", func(b *testing.B) {
		for range b.N {
			summary.Summarize(t)
		}
		perEvent(b)
	})
	b.Run("report", func(b *testing.B) {
		for range b.N {
			must.NoError(b, Text(io.Discard, New(rec), TextOptions{}))
		}
		perEvent(b)
	})
}
