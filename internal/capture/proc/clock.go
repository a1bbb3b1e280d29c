package proc

import (
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
)

// nsPerTick is the unit of start times in /proc/PID/stat. USER_HZ is 100 on
// x86-64 and arm64 whatever CONFIG_HZ is (include/asm-generic/param.h).
const nsPerTick = 10_000_000

// monotonic returns CLOCK_MONOTONIC in ns, the clock of bpf_ktime_get_ns.
func monotonic() uint64 { return clock.Monotonic() }

// boottime returns CLOCK_BOOTTIME in ns.
func boottime() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// born turns a start time into CLOCK_MONOTONIC ns. Start times are in
// CLOCK_BOOTTIME, which goes on while the machine sleeps. The answer is early
// by up to 10 ms (a tick), and by the time that the machine has slept since the
// process started: that part of the difference of the clocks cannot be told from
// the part before. It is never later than the truth, and never negative.
func born(ticks uint64) uint64 {
	sleep := asleep()
	if ticks > (1<<63)/nsPerTick || ticks*nsPerTick < sleep {
		return 0
	}
	return ticks*nsPerTick - sleep
}

// asleep returns how long the machine has slept since it started, in ns.
func asleep() uint64 {
	least := uint64(1 << 63)
	// Being interrupted between two readings only ever adds.
	for range 4 {
		before := monotonic()
		least = min(least, boottime()-before)
	}
	if least < nsPerTick {
		return 0 // no sleep is so short
	}
	return least
}
