package demand_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/demand"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

const library = "libdemand.so.1"

// worker counts how many shifts began and how many run.
func worker(began, run *atomic.Int32) *demand.Worker {
	return demand.New(demand.Options{
		Uses: func(base string) bool { return strings.HasPrefix(base, library) },
		Start: func(stop <-chan struct{}, goroutine func(func())) {
			began.Add(1)
			run.Add(1)
			goroutine(func() {
				<-stop
				run.Add(-1)
			})
		},
	})
}

// TestWorksWhileUsed: from the first process with the library to the last; not for others, nor after Close.
func TestWorksWhileUsed(t *testing.T) {
	var began, run atomic.Int32
	w := worker(&began, &run)
	one, two, other := sleeper.Mapping(t, library), sleeper.Mapping(t, library), sleeper.Start(t)
	w.Follow(other)
	if w.Works() {
		t.Error("it works for a process without the library")
	}
	w.Follow(one)
	w.Follow(two)
	w.Follow(one)
	w.Forget(one)
	if began.Load() != 1 || run.Load() != 1 || !w.Works() {
		t.Errorf("%d shifts began and %d run with one process left", began.Load(), run.Load())
	}
	w.Forget(two)
	if run.Load() != 0 || w.Works() {
		t.Errorf("%d shifts run after the last process", run.Load())
	}
	w.Follow(one)
	w.Close()
	w.Follow(two)
	if began.Load() != 2 || run.Load() != 0 {
		t.Errorf("%d shifts began and %d run after Close", began.Load(), run.Load())
	}
}
