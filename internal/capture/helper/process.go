// Package helper starts this program again as a helper process, connected by a socket over which descriptors go, and
// gives it a name of its own, for people who look at a host: a program that starts itself again by /proc/self/exe is
// "exe" to all tools otherwise.
package helper

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Files are the descriptors of a helper: the socket to the process that started it, and the first one of those handed
// to Start (os/exec.Cmd.ExtraFiles).
const (
	socketFile = 3
	FirstFile  = 4
)

// The kinds of sockets between a helper and the process that started it.
const (
	Packets = unix.SOCK_SEQPACKET
	Stream  = unix.SOCK_STREAM
)

// Start starts cmd as a helper under the name, connected by a socket of the kind, with files from FirstFile on. The
// connection is closed by the caller, and says when the helper has gone, however it went.
func (n procName) Start(cmd *exec.Cmd, kind int, files ...*os.File) (*net.UnixConn, error) {
	ours, theirs, err := Pair(kind)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := Connect(ours)
	if err != nil {
		return nil, err
	}
	n.Give(cmd)
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Parent returns the connection of a helper to the process that started it.
func Parent() (*net.UnixConn, error) { return Connect(os.NewFile(socketFile, "parent")) }

// Pair makes two sockets that are connected.
func Pair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "helper"), os.NewFile(uintptr(fds[1]), "helper"), nil
}

// Connect makes a connection of a unix socket, and closes file.
func Connect(file *os.File) (*net.UnixConn, error) {
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use a socket: %w", err)
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("use a socket: it is no unix socket"), conn.Close())
	}
	return c, nil
}

// Send sends data, and descriptors along with it, which stay open here.
func Send(conn *net.UnixConn, data []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(data, rights, nil); err != nil {
		return fmt.Errorf("send %d bytes and %d descriptors: %w", len(data), len(fds), err)
	}
	return nil
}

// ErrMessage means that what came is not what Send sends.
var ErrMessage = errors.New("malformed message from another process")

// Receive waits for data, one byte at least, and the files that come along, which are close-on-exec: as many as most.
// The caller closes them. After an error there are none; it is io.EOF where there will be no data any more, and wraps
// ErrMessage where there is too much of either.
func Receive(conn *net.UnixConn, data []byte, most int) (n int, files []*os.File, err error) {
	rights := make([]byte, unix.CmsgSpace(4*most))
	n, size, flags, _, err := conn.ReadMsgUnix(data, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return n, nil, err
	}
	fds, err := descriptors(rights[:size])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: it is too long, or what comes along finds no descriptor", ErrMessage)
	}
	if err == nil && len(fds) > most { // there was room for two of 4 bytes where one was wanted
		err = fmt.Errorf("%w: %d descriptors come along, and %d are wanted at most", ErrMessage, len(fds), most)
	}
	for _, fd := range fds {
		if err != nil {
			_ = unix.Close(fd)
			continue
		}
		files = append(files, os.NewFile(uintptr(fd), "received"))
	}
	return n, files, err
}

func descriptors(rights []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, fmt.Errorf("%w: %w", ErrMessage, err)
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// RemoteError returns an error that another process reported. cause is what it means here, and may be nil.
func RemoteError(text string, cause error) error { return &remoteError{text, cause} }

type remoteError struct {
	text  string
	cause error
}

// Error returns the words of the process that failed.
func (r *remoteError) Error() string { return r.text }

// Unwrap returns what the error means.
func (r *remoteError) Unwrap() error { return r.cause }

// Of helper processes: what stands before their arguments, and what the kernel calls their threads (15 bytes at most).
var (
	Probes = procName{"inferscope-probes", "iscope-probes"}
	Inject = procName{"inferscope-inject", "iscope-inject"}
	Unwind = procName{"inferscope-unwind", "iscope-unwind"}
	Record = procName{"inferscope-record", "iscope-record"}
	Ranks  = procName{"inferscope-ranks", "iscope-ranks"}
)

// procName is what a process is called.
type procName struct{ args, comm string }

// Give makes cmd start under the name.
func (n procName) Give(cmd *exec.Cmd) { cmd.Args[0] = n.args }

// Take names the threads that this process has; those that they start inherit it. A process that may not write
// to its own /proc keeps its old name.
func (n procName) Take() {
	files, _ := filepath.Glob("/proc/self/task/*/comm") // the pattern is well formed
	for _, f := range files {
		_ = os.WriteFile(f, []byte(n.comm), 0)
	}
}
