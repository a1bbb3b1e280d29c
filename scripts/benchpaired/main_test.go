package main

import (
	"maps"
	"testing"
	"time"
)

func TestInterval(t *testing.T) {
	for n, want := range map[int][3]float64{2: {1.5, 1, 2}, 6: {3.5, 1, 6}, 8: {4.5, 1, 8}, 9: {5, 2, 8}, 12: {6.5, 3, 10}} {
		var values []float64
		for i := n; i > 0; i-- {
			values = append(values, float64(i))
		}
		if middle, low, high := interval(values); [3]float64{middle, low, high} != want {
			t.Errorf("%d values: %v, %v to %v, want %v", n, middle, low, high, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{{1.06, 1.2, "WORSE"}, {0.9, 1.1, "unclear"}, {0.9, 1.04, ""}} {
		if got := verdict(c.low, c.high); got != c.want {
			t.Errorf("%v to %v is %q, want %q", c.low, c.high, got, c.want)
		}
	}
}

func TestBenchmarks(t *testing.T) {
	const text = "goos: linux\nBenchmarkMix/1,000-2 \t      12\t  123.4 ns/op\t 7 B/event\nBenchmarkAdd-2  9  1e+06 ns/op\nPASS\n"
	if got := benchmarks(text); !maps.Equal(got, map[string]result{"Mix/1,000": {12, 123}, "Add": {9, time.Millisecond}}) {
		t.Errorf("%v", got)
	}
	if got := only("internal/x Mix/1,000"); got != "^BenchmarkMix$/^1,000$" {
		t.Errorf("%q", got)
	}
}
