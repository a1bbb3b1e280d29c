// Package procfile opens the files that other processes make reachable below /proc/PID: through their root,
// their descriptors and their mappings.
//
// Whoever runs such a process decides what lies there and what it is called, and changes it at any moment, while
// the reader may be root. So one rule holds for every such file: it is opened with O_PATH, which asks nothing of
// it; what it is, is proven on that descriptor; and only that descriptor is used from then on. A name, also one
// that the kernel prints (readlink of /proc/PID/fd/N, /proc/PID/maps), says where to look and never what is there.
package procfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Why a file is not used.
var (
	ErrNotRegular  = errors.New("not a regular file")
	ErrReplaced    = errors.New("another file is there now")
	errNotMemfd    = errors.New("it is no shared memory that a memfd is")
	errNotWritable = errors.New("the process itself may only read it")
	errSeals       = errors.New("it is not sealed as it must be")
)

// File is a file that was found below /proc/PID, behind an O_PATH descriptor: it has been looked at, not opened.
type File struct {
	fd   int
	name string // for messages
	stat unix.Statx_t
}

// Open looks at the file that a magic link of /proc/PID leads to.
func Open(link string) (*File, error) {
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", link, err)
	}
	return look(fd, link)
}

// OpenRoot looks at the root directory of a process. The caller closes the descriptor.
func OpenRoot(proc string, pid uint32) (int, error) {
	link := fmt.Sprintf("%s/%d/root", proc, pid)
	fd, err := unix.Open(link, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening %s: %w", link, err)
	}
	return fd, nil
}

// OpenIn looks at the file that path leads to inside of root, a directory: neither a symbolic link nor ".." leads
// out of it, and no magic link is followed (openat2(2), Linux 5.6).
func OpenIn(root int, path string) (*File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, path, &how)
	// EAGAIN: a rename or a mount anywhere raced with "..". The process could go on with that for ever.
	for try := 0; try < 8 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(root, path, &how)
	}
	if err != nil {
		return nil, err
	}
	return look(fd, path)
}

// look takes over fd. AT_STATX_DONT_SYNC: a file system whose server is the process itself need not answer.
func look(fd int, name string) (*File, error) {
	f := &File{fd: fd, name: name}
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_INO | unix.STATX_NLINK
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, mask, &f.stat); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("looking at %s: %w", name, err)
	}
	return f, nil
}

// Close closes the O_PATH descriptor. It is never an operation of the file system behind it.
func (f *File) Close() { unix.Close(f.fd) }

// FD returns the O_PATH descriptor, for fstatfs(2) and as a directory of openat2(2).
func (f *File) FD() int { return f.fd }

// Inode returns the inode number.
func (f *File) Inode() uint64 { return f.stat.Ino }

// Regular reports with ErrNotRegular what must not be opened: opening a device or a fifo may block or do something.
func (f *File) Regular() error {
	if f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return ErrNotRegular
	}
	return nil
}

// Read opens a regular file for reading.
func (f *File) Read() (*os.File, error) {
	if err := f.Regular(); err != nil {
		return nil, err
	}
	return f.reopen(unix.O_RDONLY)
}

// reopen opens the very file that was looked at. O_NONBLOCK: it does not wait for a lease that the process holds.
func (f *File) reopen(mode int) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(f.fd), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", f.name, err)
	}
	return os.NewFile(uintptr(fd), f.name), nil
}

// Head returns the first limit bytes, at most, of a text that the kernel makes, such as /proc/PID/status.
func Head(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var text bytes.Buffer
	text.Grow(int(min(limit, 4096))) // most of them fit
	_, err = text.ReadFrom(io.LimitReader(file, limit))
	return text.Bytes(), err
}
