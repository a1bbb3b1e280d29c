package uprobe

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forking is held while a fork has copies of all descriptors of this process: another link that was closed meanwhile
// would stay until that fork ends.
var forking sync.Mutex

// closeByExit closes a link by the end of a process that holds its only descriptor, and returns when its probes are
// off. A SIGKILL cannot break that off: the kernel gives up taking out breakpoints in a task with a fatal signal
// (get_user_pages in uprobe_unregister), and drops signals to processes that are already ending (prepare_signal).
// Where no process can be started it closes the link itself.
func closeByExit(fd int) error {
	pid, err := handOver(fd)
	if pid == 0 {
		return unix.Close(fd)
	}
	for {
		if _, waited := unix.Wait4(pid, nil, 0, nil); !errors.Is(waited, unix.EINTR) {
			return errors.Join(err, waited)
		}
	}
}

// handOver starts a process that holds fd, closes it here, and has that process end. It returns when that one has no
// other descriptor left. Where none was started, pid is 0 and fd is open still.
func handOver(fd int) (pid int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	// The kernel closes the files of a process from the highest down: theirs goes before the link, which takes long.
	theirs, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD_CLOEXEC, fd+1)
	_ = unix.Close(pair[1])
	if err != nil {
		return 0, fmt.Errorf("move a descriptor above %d: %w", fd, err)
	}
	forking.Lock()
	defer forking.Unlock()
	pid, errno := forkUntil(theirs, pair[0])
	_ = unix.Close(theirs)
	if errno != 0 {
		return 0, os.NewSyscallError("clone", errno)
	}
	given := errors.Join(unix.Close(fd), unix.Shutdown(pair[0], unix.SHUT_WR))
	for {
		if _, err := unix.Read(pair[0], make([]byte, 1)); !errors.Is(err, unix.EINTR) {
			return pid, given // end of file: it closes what it has
		}
	}
}

// forkUntil starts a copy of this process that waits until the other end of socket fd, which is peer, is shut down or
// this process has died, and ends. The copy has one thread and no Go runtime: it makes raw system calls only, and ends
// by SIGKILL, since another one may be pending as it calls exit.
//
//go:noinline
//go:norace
func forkUntil(fd, peer int) (pid int, errno syscall.Errno) {
	poll := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	child, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || child != 0 {
		return int(child), errno
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(peer), 0, 0)
	for {
		_, _, errno = syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, 0, 0, 0, 0)
		if errno != syscall.EINTR {
			break
		}
	}
	self, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_KILL, self, uintptr(syscall.SIGKILL), 0)
	}
}
