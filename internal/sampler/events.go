package sampler

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/event"
)

// inheritThread is attr.inherit_thread of include/uapi/linux/perf_event.h (Linux
// 5.13), which x/sys does not name: threads that are born later are sampled too, but
// not forked processes: the daemon follows those as processes of their own.
const inheritThread = unix.CBitFieldMaskBit35

// ticker describes the events that samples come from.
type ticker struct {
	hz     int
	cycles bool
}

// attr returns the attributes of a thread's event.
func (c *ticker) attr(cause event.SampleCause) unix.PerfEventAttr {
	a := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: uint64(c.hz),
		Bits: unix.PerfBitFreq | unix.PerfBitInherit | inheritThread,
	}
	a.Size = uint32(unsafe.Sizeof(a))
	switch {
	case cause == event.Switch:
		// Each: the program chooses among them. With a frequency in the place of a period the
		// kernel lengthens the distance after its first ticks, and does not come back.
		a.Config = unix.PERF_COUNT_SW_CONTEXT_SWITCHES
		a.Sample = 1
		a.Bits &^= unix.PerfBitFreq
	case c.cycles:
		a.Type, a.Config = unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES
	}
	return a
}

// probeCycles says whether this CPU counts cycles for us.
func probeCycles() bool {
	a := (&ticker{hz: DefaultHz, cycles: true}).attr(event.Clock)
	a.Bits |= unix.PerfBitDisabled
	fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// open samples thread tid: the event is off until the program is on it. ESRCH means
// that the thread is gone.
func (c *ticker) open(tid uint32, cause event.SampleCause, program int) (int, error) {
	a := c.attr(cause)
	a.Bits |= unix.PerfBitDisabled
	fd, err := unix.PerfEventOpen(&a, int(tid), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
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
