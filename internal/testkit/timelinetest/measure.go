package timelinetest

import (
	"runtime"
	"syscall"
	"testing"
)

// Measure runs a benchmark about so many events, and prints for each of them the time that passed, the CPU time
// that the process used (which says more on a machine that does other things), and the bytes that were allocated.
func Measure(b *testing.B, events int, run func()) {
	b.Helper()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := cpuTime(b)
	b.ResetTimer()
	for range b.N {
		run()
	}
	b.StopTimer()
	used = cpuTime(b) - used
	runtime.ReadMemStats(&after)
	each := float64(b.N) * float64(events)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/each, "ns/event")
	b.ReportMetric(float64(used)/each, "cpu-ns/event")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/each, "B/event")
	b.ReportMetric(0, "ns/op")
}

// cpuTime returns the CPU time of the process, ns.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatalf("getrusage: %v", err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
