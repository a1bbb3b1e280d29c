package timeline

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// minEventsPerTask is how many events a goroutine should have: with fewer, starting it costs more than it gains.
const minEventsPerTask = 1 << 15

// inParallel runs tasks on as many CPUs as there are, beginning with the first ones, and waits for all.
// What a task writes must not depend on the others, so that the result is the same on one CPU.
func inParallel(tasks []func()) {
	var next atomic.Int64
	var workers sync.WaitGroup
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(tasks)); i = next.Add(1) - 1 {
			tasks[i]()
		}
	}
	for range min(len(tasks), runtime.GOMAXPROCS(0)) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
}

// splitWork splits [0, n) into parts for the available CPUs; there is at least one part, which may be empty.
func splitWork(n int) [][2]int {
	parts := max(1, min(runtime.GOMAXPROCS(0), n/minEventsPerTask))
	out := make([][2]int, parts)
	for i := range out {
		out[i] = [2]int{n * i / parts, n * (i + 1) / parts}
	}
	return out
}
