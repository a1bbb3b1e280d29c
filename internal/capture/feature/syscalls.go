package feature

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/bpf.h; cilium/ebpf 0.22 does not export them.
const (
	cmdLinkCreate       = 28
	attachPerfEvent     = 41
	attachUprobeSession = 57
)

func systemCalls() []try {
	return []try{
		{RingBuffer, func() error { return features.HaveMapType(ebpf.RingBuf) }},
		{TaskStorage, func() error { return features.HaveMapType(ebpf.TaskStorage) }},
		{Tracepoint, func() error { return haveTracepoint("sched_process_exit") }}, // of bpf/process.bpf.c
		{PerfCookie, havePerfCookie},
		{UprobeMulti, features.HaveBPFLinkUprobeMulti},
		{UprobeSession, haveUprobeSession},
		{SocketLength, func() error { return haveTracepoint("sock_send_length") }}, // of bpf/request.bpf.c
	}
}

func nothing(spec ebpf.ProgramSpec) (*ebpf.Program, error) {
	spec.License = "GPL"
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	return ebpf.NewProgram(&spec)
}

// haveTracepoint loads a program for a tracepoint.
func haveTracepoint(name string) error {
	prog, err := nothing(
		ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: name},
	)
	if err != nil {
		return notSupportedIf(err, unix.EINVAL, unix.ENOENT)
	}
	return prog.Close()
}

// havePerfCookie makes a perf event link to no event: a kernel that knows such
// links looks for the event first, and answers EBADF.
func havePerfCookie() error {
	prog, err := nothing(ebpf.ProgramSpec{Type: ebpf.Kprobe})
	if err != nil {
		return err
	}
	defer prog.Close() //nolint:errcheck // nothing depends on it
	attr := struct {
		prog, target, attach, flags uint32
		cookie                      uint64
	}{prog: uint32(prog.FD()), target: ^uint32(0), attach: attachPerfEvent}
	return wantBadFile(linkCreate(unsafe.Pointer(&attr), unsafe.Sizeof(attr)))
}

// haveUprobeSession attaches to a directory: a kernel that knows sessions opens
// the path first, and answers EBADF because it is no file.
func haveUprobeSession() error {
	prog, err := nothing(ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachType(attachUprobeSession)})
	if err != nil {
		return notSupportedIf(err, unix.EINVAL, unix.E2BIG)
	}
	defer prog.Close() //nolint:errcheck // nothing depends on it
	root := [2]byte{'/', 0}
	var offset uint64
	attr := struct {
		prog, target, attach, linkFlags uint32
		path                            *byte
		offsets                         *uint64
		refCounts, cookies              uint64
		count, flags, pid, _            uint32
	}{prog: uint32(prog.FD()), attach: attachUprobeSession, path: &root[0], offsets: &offset, count: 1}
	return wantBadFile(linkCreate(unsafe.Pointer(&attr), unsafe.Sizeof(attr)))
}

func linkCreate(attr unsafe.Pointer, size uintptr) error {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, cmdLinkCreate, uintptr(attr), size)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func wantBadFile(err error) error {
	switch {
	case errors.Is(err, unix.EBADF):
		return nil
	case err == nil:
		return errors.New("the kernel accepted a link to nothing")
	}
	return notSupportedIf(err, unix.EINVAL)
}

// notSupportedIf turns the errors with which a kernel says that it does not know
// something into ebpf.ErrNotSupported. The others leave the question open.
func notSupportedIf(err error, errnos ...unix.Errno) error {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
		}
	}
	return err
}
