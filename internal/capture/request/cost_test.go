package request_test

import (
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
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
		must.NoError(b, err)
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
		must.NoError(b, err)
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

// BenchmarkPaired says how much CPU time a server of 16 streams of 50 tokens a second takes while its requests are
// recorded against while they are not, in turns: the median of the ratios, and the interval that holds the true one
// with a probability of 95% or more.
func BenchmarkPaired(b *testing.B) {
	const streams, tokens = 16, 50
	s := start(b)
	off := len(s.source.Levels()) - 1
	turn := func(level int) float64 {
		must.NoError(b, s.source.SetLevel(level))
		before := cpuTime(b, s.p.PID)
		var wait sync.WaitGroup
		for range streams {
			wait.Go(func() {
				c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				if _, err := ask(c, s.url, map[string]any{"stream": true, "max_tokens": tokens, "gap_ms": 20}); err != nil {
					b.Error(err)
				}
			})
		}
		wait.Wait()
		s.drain()
		return float64(cpuTime(b, s.p.PID) - before)
	}
	turn(off) // a server takes longer for its first streams
	var ratios []float64
	for b.Loop() {
		levels := []int{0, off}
		if len(ratios)%2 == 1 {
			slices.Reverse(levels)
		}
		spent := map[int]float64{}
		for _, level := range levels {
			spent[level] = turn(level)
		}
		ratios = append(ratios, spent[0]/spent[off])
	}
	slices.Sort(ratios)
	n := len(ratios)
	out := beyond(n)
	b.ReportMetric(ratios[n/2], "ratio")
	b.ReportMetric(ratios[out], "at-least")
	b.ReportMetric(ratios[n-1-out], "at-most")
}

// beyond returns how many of n sorted values lie outside of the interval that holds the true median with a probability
// of 95% or more, at each end: by the binomial distribution; none of fewer than 9.
func beyond(n int) int {
	out, below, p := 0, 0.0, math.Pow(0.5, float64(n))
	for ; below+p <= 0.025; out++ {
		below += p
		p *= float64(n-out) / float64(out+1)
	}
	return max(0, out-1)
}

// cpuTime returns what a process has used so far, in ns.
func cpuTime(b *testing.B, pid uint32) int64 {
	b.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED of include/linux/posix-timers.h
	var ts unix.Timespec
	must.NoError(b, unix.ClockGettime(^int32(pid)<<3|scheduled, &ts))
	return ts.Nano()
}
