package timeline_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// events is how many events a benchmark has: INFERSCOPE_EVENTS, default a million.
func events(b *testing.B) int {
	b.Helper()
	text := os.Getenv("INFERSCOPE_EVENTS")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatalf("INFERSCOPE_EVENTS: %v", err)
	}
	return n
}

// BenchmarkMix makes timelines of realistic mixes of events.
func BenchmarkMix(b *testing.B) {
	n := events(b)
	for m := range timelinetest.Mixes {
		rec := m.Make(n)
		runtime.GC()
		b.Run(fmt.Sprint(m), func(b *testing.B) {
			timelinetest.Measure(b, len(rec.Events), func() { timeline.Build(rec) })
		})
	}
}
