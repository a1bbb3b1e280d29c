package request_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkCost says what the programs add to a server for a chunk and for a request, what other sockets of the machine
// pay meanwhile included, and what that is of a CPU at 16 streams of 50 tokens a second.
func BenchmarkCost(b *testing.B) {
	const streams, chunks = 16, 200
	s := start(b)
	counting, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Skip("needs statistics of BPF programs: ", err)
	}
	defer func() { _ = counting.Close() }()
	spend := func(tokens int) float64 {
		before, err := s.source.Spent()
		if err != nil {
			b.Fatal(err)
		}
		var wait sync.WaitGroup
		for range streams {
			wait.Go(func() {
				c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				if _, err := ask(c, s.url, map[string]any{
					"stream": true, "max_tokens": tokens, "gap_ms": 20,
				}); err != nil {
					b.Error(err)
				}
			})
		}
		done := make(chan struct{})
		go func() { wait.Wait(); close(done) }()
		for waiting := true; waiting; s.drain() {
			select {
			case <-done:
				waiting = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		after, err := s.source.Spent()
		if err != nil {
			b.Fatal(err)
		}
		return float64((after - before).Nanoseconds()) / streams
	}
	var short, long float64 // ns a request
	for b.Loop() {
		short += spend(1)
		long += spend(1 + chunks)
	}
	chunk := (long - short) / chunks / float64(b.N)
	b.ReportMetric(chunk, "ns/chunk")
	b.ReportMetric(short/float64(b.N)-chunk, "ns/request")
	b.ReportMetric(chunk*streams*50/1e9*100, "%CPU")
}
