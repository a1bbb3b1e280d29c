package report

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// thirtySeconds is what a daemon with its default settings keeps of 30 seconds of an eager decode: windows of 200 ms
// every 2 s with all launches and kernels, copies and waits all the time, 99 samples a second of the thread that
// launches and of a loader, and the loader's waits.
func thirtySeconds() *recording.Recording {
	const windows = 15
	var spans []timelinetest.Span
	for i := range uint64(windows) {
		spans = append(spans, timelinetest.Between(i*2*s+s, i*2*s+s+200*ms))
	}
	p := sampledProgram(timelinetest.Config{Length: 30 * s, Windows: spans})
	p.Thread(recordtest.PID, worker, "loader")
	item := p.item()
	tokenize := p.Stack(native("tokenizers::tokenizer::encode", "tokenizers.abi3.so"),
		python("tokenize", "/app/tok.py", 12), python("run", "/app/loader.py", 80))
	for range 30_000 {
		p.leader.Then(func(t *timelinetest.Thread) {
			at := t.Now
			t.Copy(p.st, 4096, timelinetest.Pinned, 6*us)
			p.burst(t, timelinetest.Layers(16))
			p.sync(t, item)
			p.Off(recordtest.Off{
				TID:     worker,
				TS:      at,
				Dur:     ms,
				Blocked: ms - 20*us,
				Call:    sysFutex,
				By:      [2]uint32{recordtest.PID, leader},
				Arg:     0x7f00_2000,
			})
			p.samples(worker, at+ms, t.Now, tokenize)
			p.Off(recordtest.Off{
				TID:     leader,
				TS:      t.Now,
				Dur:     300 * us,
				Blocked: 290 * us,
				Call:    sysFutex,
				By:      [2]uint32{recordtest.PID, worker},
				Arg:     0x7f00_3000,
				Flags:   event.Timed,
			})
			t.Pause(300 * us)
		})
	}
	return p.Run()
}

// BenchmarkUsualReport is the time from a recording of 30 seconds to the text of its report, and of its parts; gains
// are the diagnosis with what each remedy would bring.
func BenchmarkUsualReport(b *testing.B) {
	rec := thirtySeconds()
	t := timeline.Build(rec)
	b.Run("timeline", func(b *testing.B) {
		for range b.N {
			timeline.Build(rec)
		}
	})
	b.Run("gaps", func(b *testing.B) {
		for range b.N {
			gap.Build(t)
		}
	})
	b.Run("analysis", func(b *testing.B) {
		for range b.N {
			analysis.Run(rec)
		}
	})
	m := New(rec)
	b.Run("text", func(b *testing.B) {
		for range b.N {
			_ = Text(io.Discard, m, TextOptions{})
		}
	})
	b.Run("whole", func(b *testing.B) {
		before := cpuTime(b)
		for range b.N {
			must.NoError(b, Text(io.Discard, New(rec), TextOptions{}))
		}
		b.ReportMetric(
			float64(cpuTime(b)-before)/float64(b.N),
			"cpu-ns/op",
		) // of all CPUs: it does not depend on who else runs
		b.ReportMetric(float64(len(rec.Events)), "events")
	})
}

// cpuTime is the CPU time of this process so far, ns.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
