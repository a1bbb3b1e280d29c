// Package clock reads the clock of all events: CLOCK_MONOTONIC, which bpf_ktime_get_ns reads in the kernel.
package clock

import _ "unsafe" // for go:linkname

// Monotonic returns CLOCK_MONOTONIC, in ns. It makes no system call: each would wake the monitor
// thread of Go's runtime, which then looks every 20 us and more what the others do.
func Monotonic() uint64 { return uint64(nanotime()) }

// nanotime reads CLOCK_MONOTONIC on Linux. It is promised to stay (go.dev/issue/67401).
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64
