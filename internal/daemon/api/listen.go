package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// maxSocketPath is the longest path that struct sockaddr_un holds with its final NUL, in bytes.
const maxSocketPath = 107

// Listener is a unix socket that only one daemon can hold at a time.
type Listener struct {
	*net.UnixListener
	lock *os.File
}

// Listen makes the socket at path: its directory if that is missing (0755), and
// the socket itself open to everybody (0666), since credentials decide who sees
// what. A daemon that is already there gives clierror.Busy with its pid; the socket
// of one that is gone is removed; anything at path that is not a socket stays
// and gives clierror.Usage.
func Listen(path string) (*Listener, error) {
	if len(path) == 0 || len(path) > maxSocketPath {
		return nil, clierror.New(clierror.Usage, "choose a shorter path with --socket",
			fmt.Errorf("a socket path has 1 to %d bytes, this one has %d", maxSocketPath, len(path)))
	}
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, listenFault(path, err)
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		release(lock)
		return nil, err
	}
	return &Listener{UnixListener: l, lock: lock}, nil
}

// Close removes the socket and lets the next daemon have its place. It can be called twice.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if l.lock != nil {
		release(l.lock)
		l.lock = nil
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// makeDir makes a missing directory, readable by all whatever the umask says; one that is there stays as it is.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func listenFault(path string, err error) error {
	code, hint := clierror.General, "choose another path with --socket"
	if errors.Is(err, os.ErrPermission) {
		code, hint = clierror.Permission, "run the daemon as root, or choose a writable place with --socket"
	}
	return clierror.New(code, hint, fmt.Errorf("making the socket %s: %w", path, err))
}

// acquire takes the lock beside the socket and writes the own pid into it. The
// lock is the kernel's (flock), so it ends with the process however that ends.
func acquire(path string) (*os.File, error) {
	name := path + ".lock"
	// The file is removed by whoever releases it, so one that was opened just
	// before may be an orphan: then look again. Three times is twice too often.
	const attempts = 3
	for attempt := range attempts {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, listenFault(path, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if attempt+1 < attempts && squatted(f) && sameFile(f, name) {
				f.Close() // a new file has a lock of its own
				if err := os.Remove(name); err != nil {
					return nil, listenFault(path, fmt.Errorf("removing %s, which another user holds: %w", name, err))
				}
				continue
			}
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, busyFault(path, f)
			}
			return nil, listenFault(path, fmt.Errorf("locking %s: %w", name, err))
		}
		if !sameFile(f, name) {
			f.Close()
			continue
		}
		// Of a daemon of before: whoever may open it can lock it, too, and keep every daemon away.
		if err := f.Chmod(0o600); err != nil {
			release(f)
			return nil, listenFault(path, fmt.Errorf("closing %s to other users: %w", name, err))
		}
		if err := writePID(f); err != nil {
			release(f)
			return nil, listenFault(path, err)
		}
		return f, nil
	}
	return nil, listenFault(path, fmt.Errorf("%s keeps being replaced", name))
}

// squatted reports whether a lock that is held is one that other users could take: the file of a daemon of before that
// everybody could open, and that nobody who holds it has written a living daemon's pid into.
func squatted(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return false
	}
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return err != nil || pid <= 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

func sameFile(f *os.File, name string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(opened, there)
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("emptying %s: %w", f.Name(), err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("writing the pid to %s: %w", f.Name(), err)
	}
	return nil
}

func busyFault(path string, lock io.ReaderAt) error {
	buf := make([]byte, 20)
	n, _ := lock.ReadAt(buf, 0)
	holder := "another inferscoped"
	if pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n]))); err == nil && pid > 0 {
		holder = fmt.Sprintf("inferscoped with pid %d", pid)
	}
	return clierror.New(clierror.Busy, "stop that one, or choose another socket with --socket",
		fmt.Errorf("%s already serves %s", holder, path))
}

// release removes the lock file before the lock ends: afterwards it might be another daemon's.
func release(lock *os.File) {
	if sameFile(lock, lock.Name()) {
		_ = os.Remove(lock.Name())
	}
	_ = lock.Close()
}

// bind is called with the lock held, so a socket that is already there has no daemon.
func bind(path string) (*net.UnixListener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, listenFault(path, err)
	case info.Mode().Type() != os.ModeSocket:
		return nil, clierror.New(clierror.Usage, "move it away, or choose another path with --socket",
			fmt.Errorf("%s exists and is not a socket: it is left alone", path))
	default:
		if err := os.Remove(path); err != nil {
			return nil, listenFault(path, fmt.Errorf("removing the socket of a daemon that is gone: %w", err))
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, listenFault(path, err)
	}
	if err := open(path); err != nil {
		_ = l.Close()
		return nil, listenFault(path, err)
	}
	return l, nil
}

// open lets everybody connect. It goes through a descriptor, so that a symbolic
// link put in the socket's place meanwhile does not get its goal opened instead.
func open(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening it again: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("looking at it: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("something else took its place")
	}
	if err := os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o666); err != nil {
		return fmt.Errorf("opening it to all users: %w", err)
	}
	return nil
}
