package inject

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/ptrace.h, which x/sys has in part.
const (
	ptraceGetSigMask = 0x420a
	ptraceSetSigMask = 0x420b
	ptraceGetFilter  = 0x420c

	eventStop = 128 // PTRACE_EVENT_STOP: of the whole process, or a notice of SIGCONT
)

// thread is a thread of the target that this operating system thread traces. All
// methods must be called on the thread that called seize; when that thread ends the
// kernel lets go of the traced one without touching it, which ptrace alone can not
// do for a thread that runs.
type thread struct{ tid int }

// ptrace makes one call of ptrace(2). What data points to does not lie on the stack: that moves when it grows, which
// can be at the entry of this function, and the kernel would read and write where it was.
//
//go:uintptrescapes
func ptrace(request, tid int, addr, data uintptr) error {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// seize begins to trace a thread, which notices nothing.
func seize(tid int) (*thread, error) {
	if err := ptrace(unix.PTRACE_SEIZE, tid, 0, 0); err != nil {
		return nil, fmt.Errorf("ptrace(PTRACE_SEIZE, %d): %w", tid, err)
	}
	return &thread{tid: tid}, nil
}

// stop is why a traced thread stopped.
type stop struct {
	signal unix.Signal // to be delivered
	group  bool        // the whole process is stopped by signal
	notice bool        // of SIGCONT to the process: nothing is to be delivered
	ended  bool        // the thread is gone
}

// wait waits until the thread stops or ends.
func (t *thread) wait() (stop, error) {
	s, _, err := t.waitFor(unix.WALL)
	return s, err
}

// poll is wait, but false where the thread runs.
func (t *thread) poll() (stop, bool, error) { return t.waitFor(unix.WALL | unix.WNOHANG) }

func (t *thread) waitFor(options int) (stop, bool, error) {
	var ws unix.WaitStatus
	for {
		tid, err := unix.Wait4(t.tid, &ws, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return stop{ended: true}, true, nil
		case err != nil:
			return stop{}, false, fmt.Errorf("wait4(%d): %w", t.tid, err)
		}
		return stopOf(ws), tid != 0, nil
	}
}

func stopOf(ws unix.WaitStatus) stop {
	if !ws.Stopped() {
		return stop{ended: true}
	}
	s := stop{signal: ws.StopSignal()}
	if uint32(ws)>>16 == eventStop {
		s.notice = s.signal == unix.SIGTRAP
		s.group = !s.notice
	}
	return s
}

// resume lets the thread run on and delivers sig, or none.
func (t *thread) resume(sig unix.Signal) error { return t.restart(unix.PTRACE_CONT, sig) }

// listen leaves a thread in the stop of its whole process.
func (t *thread) listen() error { return t.restart(unix.PTRACE_LISTEN, 0) }

// detach ends the tracing of a stopped thread, which runs on.
func (t *thread) detach(sig unix.Signal) error { return t.restart(unix.PTRACE_DETACH, sig) }

func (t *thread) restart(request int, sig unix.Signal) error {
	if err := ptrace(request, t.tid, 0, uintptr(sig)); err != nil {
		return fmt.Errorf("ptrace(%#x, %d): %w", request, t.tid, err)
	}
	return nil
}

func (t *thread) getRegset(set int, b []byte) (int, error) {
	iov := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	err := ptrace(unix.PTRACE_GETREGSET, t.tid, uintptr(set), uintptr(unsafe.Pointer(&iov)))
	runtime.KeepAlive(b)
	if err != nil {
		return 0, fmt.Errorf("ptrace(PTRACE_GETREGSET, %d, %#x): %w", t.tid, set, err)
	}
	return int(iov.Len), nil
}

func (t *thread) setRegset(set int, b []byte) error {
	iov := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	err := ptrace(unix.PTRACE_SETREGSET, t.tid, uintptr(set), uintptr(unsafe.Pointer(&iov)))
	runtime.KeepAlive(b)
	if err != nil {
		return fmt.Errorf("ptrace(PTRACE_SETREGSET, %d, %#x): %w", t.tid, set, err)
	}
	return nil
}

// blocked returns the signals that the thread blocks.
func (t *thread) blocked() (uint64, error) {
	var set uint64
	if err := ptrace(ptraceGetSigMask, t.tid, 8, uintptr(unsafe.Pointer(&set))); err != nil {
		return 0, fmt.Errorf("ptrace(PTRACE_GETSIGMASK, %d): %w", t.tid, err)
	}
	return set, nil
}

func (t *thread) block(set uint64) error {
	if err := ptrace(ptraceSetSigMask, t.tid, 8, uintptr(unsafe.Pointer(&set))); err != nil {
		return fmt.Errorf("ptrace(PTRACE_SETSIGMASK, %d): %w", t.tid, err)
	}
	return nil
}

// poke writes one word. Other than process_vm_writev it makes the first thread's
// stack longer where the word lies below it.
func (t *thread) poke(addr, word uint64) error {
	if err := ptrace(unix.PTRACE_POKEDATA, t.tid, uintptr(addr), uintptr(word)); err != nil {
		return fmt.Errorf("ptrace(PTRACE_POKEDATA, %d, %#x): %w", t.tid, addr, err)
	}
	return nil
}

// filters returns the thread's seccomp filters, the newest first. It needs
// CAP_SYS_ADMIN, a tracer that is under no filter itself, and a stopped thread.
func (t *thread) filters() ([]program, error) {
	var all []program
	for i := uintptr(0); i < maxFilters; i++ {
		n, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(t.tid), i, 0, 0, 0)
		if errno == unix.ENOENT || errno == unix.EINVAL && i == 0 { // EINVAL: no filter at all
			return all, nil
		}
		if errno != 0 {
			return nil, fmt.Errorf("ptrace(PTRACE_SECCOMP_GET_FILTER, %d): %w", t.tid, errno)
		}
		p := make(program, n)
		if n == 0 {
			return nil, errFilter
		}
		_, _, errno = unix.RawSyscall6(
			unix.SYS_PTRACE,
			ptraceGetFilter,
			uintptr(t.tid),
			i,
			uintptr(unsafe.Pointer(&p[0])),
			0,
			0,
		)
		if errno != 0 {
			return nil, fmt.Errorf("ptrace(PTRACE_SECCOMP_GET_FILTER, %d): %w", t.tid, errno)
		}
		all = append(all, p)
	}
	return nil, errFilter
}

var errNot64 = errors.New("the thread runs 32-bit code")

func (t *thread) registers() (registers, error) {
	var r registers
	n, err := t.getRegset(unix.NT_PRSTATUS, unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r)))
	if err == nil && n != int(unsafe.Sizeof(r)) {
		err = errNot64
	}
	return r, err
}

func (t *thread) setRegisters(r registers) error {
	return t.setRegset(unix.NT_PRSTATUS, unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r)))
}
