package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Alive reports whether the process still has a thread that runs. A zombie is
// not alive. False for a Process without a pidfd and after its Watcher has let
// it go, so it is never true of another process with the same pid.
func (p *Process) Alive() bool { return alive(p.pidfd) }

// Close lets the process go: Alive is false from then on. Only the caller of
// Describe closes; what a Watcher hands out, the Watcher closes.
func (p *Process) Close() error {
	if p.pidfd == nil {
		return nil
	}
	return p.pidfd.Close()
}

// openPidfd takes hold of whatever process has the pid now (Linux 5.3).
func openPidfd(pid uint32) (*os.File, error) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), nil
}

// alive asks the pidfd, which becomes readable when the last thread has ended.
func alive(pidfd *os.File) bool {
	if pidfd == nil {
		return false
	}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	running := false
	err = conn.Control(func(fd uintptr) { running = !readable(fd) })
	return err == nil && running
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}
