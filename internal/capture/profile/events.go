package profile

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// inheritThread is attr.inherit_thread of include/uapi/linux/perf_event.h (Linux
// 5.13), which x/sys does not name: threads that are born later are sampled too, but
// not forked processes: the daemon follows those as processes of their own.
const inheritThread = unix.CBitFieldMaskBit35

// ticker describes the events that samples come from.
type ticker struct{ cycles bool }

// attr returns the attributes of an event: of a thread and those that it starts, or of a CPU.
func (c *ticker) attr(cause event.SampleCause, hz int, thread bool) unix.PerfEventAttr {
	a := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: c.period(hz)}
	if thread {
		a.Bits = unix.PerfBitInherit | inheritThread
	} else if !c.cycles {
		a.Bits = unix.PerfBitExcludeIdle
	}
	a.Size = uint32(unsafe.Sizeof(a))
	switch {
	case cause == event.Switch:
		// Each: the program chooses among them. With a frequency in the place of a period the
		// kernel lengthens the distance after its first ticks, and does not come back.
		a.Config = unix.PERF_COUNT_SW_CONTEXT_SWITCHES
		a.Sample = 1
	case c.cycles:
		a.Type, a.Config = unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES
		a.Bits |= unix.PerfBitFreq
	}
	return a
}

// period returns what perf calls the sample period: ns of the CPU clock. Of cycles it is the frequency.
func (c *ticker) period(hz int) uint64 {
	if c.cycles {
		return uint64(hz)
	}
	return uint64(time.Second) / uint64(hz)
}

// setPeriod changes the period of an event that runs.
func setPeriod(fd int, period uint64) error {
	if _, _, errno := unix.Syscall(
		unix.SYS_IOCTL, uintptr(fd), unix.PERF_EVENT_IOC_PERIOD, uintptr(unsafe.Pointer(&period)),
	); errno != 0 {
		return fmt.Errorf("change the period of an event: %w", errno)
	}
	return nil
}

// probeCycles reports whether this CPU counts cycles for us.
func probeCycles() bool {
	a := (&ticker{cycles: true}).attr(event.Clock, DefaultHz, true)
	a.Bits |= unix.PerfBitDisabled
	fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// open samples thread tid. ESRCH means that the thread is gone.
func (c *ticker) open(tid uint32, hz int, cause event.SampleCause, program int) (int, error) {
	return c.openAt(int(tid), -1, hz, cause, program)
}

// openAt samples a thread, or for thread -1 a CPU: the event is off until the program is on it.
func (c *ticker) openAt(thread, cpu, hz int, cause event.SampleCause, program int) (int, error) {
	a := c.attr(cause, hz, thread >= 0)
	a.Bits |= unix.PerfBitDisabled
	fd, err := unix.PerfEventOpen(&a, thread, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, openError(err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("put the program on the event: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("switch the event on: %w", err)
	}
	return fd, nil
}

func openError(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%w: raise the limit of open files (ulimit -n, LimitNOFILE=)", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: it needs CAP_PERFMON (before Linux 5.8 and on Debian CAP_SYS_ADMIN)", err)
	}
	return err
}
