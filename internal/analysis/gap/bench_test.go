package gap

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// BenchmarkMillionGaps walks a million gaps of an eager loop: launches 8 µs apart of kernels of 4 µs, a
// synchronization every 50, samples at 99 Hz, and a wait for a worker every 1,000 launches.
func BenchmarkMillionGaps(b *testing.B) {
	const n, period = 1_000_000, 20 * us
	s := newScene()
	s.Window(start, start+n*period)
	s.Meta.GPU.Windows[0].To = start + n*period
	stacks := []uint64{
		s.Stack(user),
		s.Stack(native("parse_table", "server")),
		s.Stack(python("forward", "/x/torch/nn/modules/linear.py"), user),
	}
	for i := range uint64(n) {
		at := i * period
		s.run(at, at+8*us, at+12*us)
		if i%50 == 49 {
			s.Do("cuStreamSynchronize", int64(at+4*us), 9*us, 0)
		}
		if i%500 == 250 {
			s.Sample(leader, start+at+14*us, stacks[i/500%3], event.Whole)
			s.Sample(helper, start+at+15*us, stacks[i/500%3], event.Whole)
		}
		if i%1000 == 999 {
			s.Off(recordtest.Off{
				TID:     leader,
				TS:      start + at + 13*us,
				Dur:     5 * us,
				Blocked: 5 * us,
				Call:    sysFutex,
				By:      [2]uint32{leader, helper},
			})
		}
	}
	t := timeline.Build(s.Recording())
	th := threads.Build(t.Rec)
	var w *Walk
	b.ResetTimer()
	b.ReportAllocs()
	before := spent()
	for range b.N {
		w = New(t, th)
	}
	b.StopTimer()
	used, gaps := spent()-before, 0
	for range w.All() {
		gaps++
	}
	b.ReportMetric(float64(used)/float64(b.N)/float64(gaps), "cpu-ns/gap")
	b.ReportMetric(float64(len(w.Steps))/float64(gaps), "kept-steps/gap")
}

// spent returns the CPU time of this process so far, ns: the machine may have other work.
func spent() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
