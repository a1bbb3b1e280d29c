package inject

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How long a helper may not run until the kernel kills it. An ordinary thread waits longer for its turn than one of
// real-time priority, and a helper that only waits is not to be killed.
const (
	maxFrozen       = 50 * time.Millisecond
	maxFrozenSlowly = 250 * time.Millisecond
	watchdogTick    = 5 * time.Millisecond
)

// startWatchdog has the kernel kill this process as soon as it does not run for maxFrozen: stopped by a signal, by
// a debugger, or by a cgroup's freezer. A thread that it traces would stand still for as long, and the kernel lets
// go of the threads of a dead tracer. A process that is stopped cannot watch itself, and takes no signal but
// SIGKILL; so that is what a timer sends (timer_create(2)), which runs on meanwhile. It is for a process whose
// death harms nobody, a helper, and lasts as long as that.
func startWatchdog() error {
	// struct sigevent: value, signal, notification (0 is SIGEV_SIGNAL), room for more.
	event := struct {
		_              uint64
		signal, notify int32
		_              [48]byte
	}{signal: int32(unix.SIGKILL)}
	var timer int32
	_, _, errno := unix.Syscall(
		unix.SYS_TIMER_CREATE,
		unix.CLOCK_MONOTONIC,
		uintptr(unsafe.Pointer(&event)),
		uintptr(unsafe.Pointer(&timer)),
	)
	if errno != 0 {
		return fmt.Errorf("make a timer that ends a frozen helper: %w", errno)
	}
	started := make(chan error, 1)
	go onOwnThread(func() { feed(timer, started) })
	return <-started
}

// feed puts the end off again and again.
func feed(timer int32, started chan<- error) {
	limit := maxFrozenSlowly
	if setRealTimePriority() {
		limit = maxFrozen
	}
	started <- setTimer(timer, limit)
	tick := unix.NsecToTimespec(int64(watchdogTick))
	for {
		_ = unix.Nanosleep(&tick, nil) // one that is cut short is as good
		if setTimer(timer, limit) != nil {
			return // and soon dead: it cannot happen
		}
	}
}

// setTimer makes a timer fire once, that long from now.
func setTimer(timer int32, in time.Duration) error {
	at := struct{ interval, value unix.Timespec }{value: unix.NsecToTimespec(int64(in))} // struct itimerspec
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("set the timer that ends a frozen helper: %w", errno)
	}
	return nil
}
