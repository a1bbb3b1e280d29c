package ring

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// benchmarkDrain prefills the rings, then drains them through f, over and over.
func benchmarkDrain(b *testing.B, drain func(r *Rings) int) {
	r := newRings(b, 2*maxRing)
	inRing := int(r.size / 72)
	p := newProducer(b, r)
	events := 0
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		p.run(b, order{base: uint64(events), n: uint64(inRing)})
		b.StartTimer()
		events += drain(r)
	}
	b.StopTimer()
	if events != b.N*inRing {
		b.Fatalf("%d of %d events arrived", events, b.N*inRing)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

func BenchmarkDrain(b *testing.B) {
	sum := uint64(0)
	benchmarkDrain(b, func(r *Rings) int {
		return r.Drain(func(batch []event.Event) {
			for i := range batch {
				sum += batch[i].Dur
			}
		})
	})
}

func BenchmarkDrainAppend(b *testing.B) {
	rec, err := recording.NewRecorder(100_000_000, time.Minute)
	must.NoError(b, err)
	for range 100_000_000 / event.Size / batchEvents { // touch all of its memory first
		rec.Append(make([]event.Event, batchEvents)...)
	}
	benchmarkDrain(b, func(r *Rings) int {
		return r.Drain(func(batch []event.Event) { rec.Append(batch...) })
	})
}

// BenchmarkPaced runs the daemon's drain loop against 500,000 events/s on one CPU,
// one second per iteration, and reports what was lost and how much of a core the
// draining took.
func BenchmarkPaced(b *testing.B) {
	r := newRings(b, DefaultBytes)
	p := newProducer(b, r)
	rec, err := recording.NewRecorder(100_000_000, time.Minute)
	must.NoError(b, err)
	const sent, tick = 500_000, time.Millisecond
	var arrived int
	var busy time.Duration
	for b.Loop() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i, next := 0, time.Now(); i < 1000; i++ {
				p.run(b, order{base: uint64(i), n: sent / 1000})
				next = next.Add(tick)
				time.Sleep(time.Until(next))
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			case <-time.After(interval(r.Fill())):
			}
			start := time.Now()
			arrived += r.Drain(func(batch []event.Event) { rec.Append(batch...) })
			busy += time.Since(start)
		}
	}
	b.ReportMetric(float64(b.N*sent-arrived), "lost")
	b.ReportMetric(100*busy.Seconds()/b.Elapsed().Seconds(), "%core")
}

// interval is a rule for the timer: fast where the fullest ring is more than a quarter full.
func interval(fill float64) time.Duration {
	if fill > 0.25 {
		return 10 * time.Millisecond
	}
	return 50 * time.Millisecond
}
