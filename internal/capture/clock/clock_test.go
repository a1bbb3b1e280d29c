package clock

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestMonotonicIsTheKernelsClock: a time lies between two that the kernel says before and after it.
func TestMonotonicIsTheKernelsClock(t *testing.T) {
	kernel := func() uint64 {
		var now unix.Timespec
		must.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		return uint64(now.Nano())
	}
	for range 100 {
		before, now, after := kernel(), Monotonic(), kernel()
		if now < before || now > after {
			t.Fatalf("%d ns is not within [%d, %d]", now, before, after)
		}
	}
}
