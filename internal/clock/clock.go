// Package clock reads the clock of all events: CLOCK_MONOTONIC, which bpf_ktime_get_ns reads in the kernel.
package clock

import "golang.org/x/sys/unix"

// Monotonic returns CLOCK_MONOTONIC, in ns.
func Monotonic() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // it cannot fail: the clock exists
	return uint64(now.Nano())
}
