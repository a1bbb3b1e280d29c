package gpu

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// BenchmarkInject prints for how long a thread is stopped, and how long it takes from Follow to
// the first kernel, in a process that launches all the time.
func BenchmarkInject(b *testing.B) {
	opts := simOptions(b, Continuous)
	v := cudasim.Start(b, cudasim.Options{Level: "off"}, "repeat 100000 { rate 2000 for 20ms; sync }")
	var stopped, first time.Duration
	n := 0
	for b.Loop() {
		s, err := New(opts)
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		watch(b, s, v)
		for got := 0; got == 0; time.Sleep(time.Millisecond) {
			s.Feed(0, func(batch []event.Event) { got += len(batch) })
		}
		first += time.Since(begin)
		stopped += time.Duration(s.Agents()[0].Stopped)
		n++
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		s.Feed(0, func([]event.Event) {})
	}
	b.ReportMetric(float64(stopped.Microseconds())/float64(n), "us-stopped")
	b.ReportMetric(float64(first.Microseconds())/float64(n), "us-to-first-event")
}
