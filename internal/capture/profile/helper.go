package profile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
)

// HelperArgument is the first argument of a program that is to be the helper of a
// Source: whoever sets Options.Helper has to hand what follows it to RunHelper.
const HelperArgument = "unwinder-helper"

// The helper's memory: of the unwind tables that it reads, 10 MB at a time, nothing
// remains. Collecting garbage early costs it time that nobody waits for; the limit, in
// bytes, is soft.
const (
	helperGC     = 20 // percent, where Go has 100
	helperMemory = 48 << 20
)

// How many threads run Go code in the helper. First one reads unwind tables while the other takes
// traces; from then on one does both, in turns of 10 ms: Go's runtime looks every 20 us what a thread does
// that waits in the kernel, and for ten times as long where another one would be free. More threads, on
// a host with many CPUs, would only look for work each time that one wakes up, and collect
// garbage beside the target.
const (
	helperThreads = 2
	laterThreads  = 1
)

// The helper's priority. What it does first, somebody waits for: until its programs are
// loaded and the tables of the stacks at hand are read, stacks are cut. On a host whose CPUs
// the target all keeps busy, that took ten times as long at the low priority. So its first
// seconds of CPU are at the daemon's priority, and from then on whoever wants the CPU goes
// before it, the target before all.
const (
	helperNice   = 10
	helperUrgent = 3 * time.Second // of CPU
	helperLook   = 200 * time.Millisecond
	// helperSettled is after what time it is lowered in any case.
	helperSettled = 30 * time.Second
)

// RunHelper is the whole of a helper process: it loads the native unwinder, hands its
// entry program to its parent, and then the stacks. It returns when the parent is gone,
// or when the unwinder fails; args are what stands behind HelperArgument.
//
// The unwinder has a process of its own because reading the unwind tables of a PyTorch
// takes it seconds of CPU and much memory: beside the goroutine that empties the rings,
// that lost events. Here the kernel schedules it, at a low priority, and its garbage
// is collected apart.
func RunHelper(args []string) error {
	hz, pids, err := helperArguments(args)
	if err != nil {
		return err
	}
	conn, err := helper.Parent()
	if err != nil {
		return err
	}
	defer conn.Close()
	helper.Unwind.Take()
	runtime.GOMAXPROCS(min(helperThreads, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(helperGC)
	debug.SetMemoryLimit(helperMemory)
	silence(zap.NewNop())
	go yield()
	gone, failed := make(chan struct{}), make(chan error, 1)
	go func() { // the parent says nothing, so this returns when it is gone, however it went
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1))
	}()
	go func() { failed <- help(conn, hz, pids) }()
	select {
	case <-gone: // whatever the unwinder is doing ends with the process
		return nil
	case err = <-failed:
	}
	e := encoder{packet: []byte{wireFailed}}
	e.text(err.Error())
	_, _ = conn.Write(e.packet) // the parent may be gone
	return err
}

// yield lowers the priority, and the number of threads, once the helper has had the CPU that it may have before others.
func yield() {
	look := time.NewTicker(helperLook)
	defer look.Stop()
	for began := time.Now(); ; <-look.C {
		if spent() >= helperUrgent || time.Since(began) >= helperSettled {
			// For its group, which is all its threads; it can do without.
			_ = unix.Setpriority(unix.PRIO_PGRP, 0, helperNice)
			runtime.GOMAXPROCS(laterThreads)
			return
		}
	}
}

// spent is the CPU time of this process; for ever where it is not known.
func spent() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return math.MaxInt64
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// help runs the unwinder until it fails.
func help(conn *net.UnixConn, hz int, pids []uint32) error {
	u, err := startLibrary(context.Background(), zap.NewNop(), hz, pids, newConverter(newModules()))
	if err != nil {
		return err
	}
	return serve(conn, u)
}

// helperArguments reads the sampling frequency, and the processes that are followed already.
func helperArguments(args []string) (hz int, pids []uint32, err error) {
	if len(args) == 0 {
		return 0, nil, errors.New("inferscoped starts this itself; there is nothing to be had from it")
	}
	if hz, err = strconv.Atoi(args[0]); err != nil || hz < minHz || hz > maxHz {
		return 0, nil, fmt.Errorf("%q is no sampling frequency", args[0])
	}
	for _, arg := range args[1:] {
		pid, err := strconv.ParseUint(arg, 10, 31)
		if err != nil || pid == 0 {
			return 0, nil, fmt.Errorf("%q is no process id", arg)
		}
		pids = append(pids, uint32(pid))
	}
	return hz, pids, nil
}

// serve hands over the entry program, and the traces as they come.
func serve(conn *net.UnixConn, l *library) error {
	defer l.close()
	if err := helper.Send(conn, []byte{wireReady}, l.entry().FD()); err != nil {
		return fmt.Errorf("hand over the entry program: %w", err)
	}
	e := newEncoder(packets(conn))
	for {
		select {
		case <-l.ended:
			return l.err()
		case <-l.fresh:
		}
		for _, t := range l.take() {
			if err := e.trace(&t); err != nil {
				return err
			}
		}
		if err := e.flush(1); err != nil {
			return err
		}
	}
}

func packets(conn *net.UnixConn) func([]byte) error {
	return func(packet []byte) error {
		if _, err := conn.Write(packet); err != nil {
			return fmt.Errorf("hand over stacks: %w", err)
		}
		return nil
	}
}
