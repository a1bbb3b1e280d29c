package profile

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// BenchmarkTable adds stacks as an eager PyTorch has them, 60 native frames of which the outer 45 are often the same,
// until the table is full, and says what a stack costs in time and all of it in memory.
func BenchmarkTable(b *testing.B) {
	m := &module{}
	random := rand.New(rand.NewPCG(1, 2))
	stack := make([]frame, 60)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var t table
	ts := uint64(0)
	for b.Loop() {
		for i := range stack {
			places := 4000
			if i > 15 {
				places = 1 + i%3
			}
			stack[i] = frame{module: m, addr: uint64(i*10000 + random.IntN(places))}
		}
		ts++
		t.add(stack, ts, 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	b.ReportMetric(float64(len(t.gens)), "generations")
	runtime.KeepAlive(&t)
}
