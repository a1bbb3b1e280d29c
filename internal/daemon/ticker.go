package daemon

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ticker ticks on a kernel timer (timerfd_create(2)). A Go timer would also wake the runtime's monitor thread, which
// then polls every 20 µs while other threads are busy: that was a third of the daemon's CPU time at 100,000 events/s,
// and half of it when idle.
type ticker struct {
	C        chan struct{} // has one in it where a tick has not been taken
	file     *os.File
	raw      syscall.RawConn
	interval time.Duration
}

func newTicker(interval time.Duration) (*ticker, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	t := &ticker{C: make(chan struct{}, 1), file: os.NewFile(uintptr(fd), "timer")}
	if t.raw, err = t.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	t.reset(interval)
	return t, nil
}

// reset changes the interval, which counts from now on.
func (t *ticker) reset(interval time.Duration) {
	if interval == t.interval {
		return
	}
	t.interval = interval
	each := unix.NsecToTimespec(interval.Nanoseconds())
	spec := unix.ItimerSpec{Interval: each, Value: each}
	_ = t.raw.Control(func(fd uintptr) { // it fails only when it is closed
		_, _, _ = syscall.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
}

// run ticks until close.
func (t *ticker) run() {
	for t.raw.Read(expired) == nil {
		select {
		case t.C <- struct{}{}:
		default:
		}
	}
}

// expired reads a timer without blocking, and reports whether it has expired since it was last read. It is a raw system
// call, for the same reason.
func expired(fd uintptr) bool {
	var times [8]byte
	n, _, _ := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&times)), uintptr(len(times)))
	return int(n) == len(times)
}

// close ends run.
func (t *ticker) close() { _ = t.file.Close() }

// start runs a ticker until ctx is done.
func (t *ticker) start(ctx context.Context) {
	go t.run()
	context.AfterFunc(ctx, t.close)
}
