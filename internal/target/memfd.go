package target

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMemfds bounds how many memfds of one name are looked at.
const maxMemfds = 8

// wantSeals must be on memory that is mapped: could it shrink, the daemon would die of
// SIGBUS when the target shrinks it.
const wantSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// MappedMemfds returns links, in /proc/PID/map_files, to the memfds of this name that p
// has mapped, eight at most. A forked child has its parent's mappings, too.
func MappedMemfds(p *Process, name string) []string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.PID))
	if err != nil {
		return nil
	}
	defer f.Close()
	suffix := []byte(" /memfd:" + name + " (deleted)")
	var links []string
	lines := bufio.NewScanner(io.LimitReader(f, maxMapsBytes))
	lines.Buffer(make([]byte, 64<<10), 64<<10)
	for lines.Scan() && len(links) < maxMemfds {
		if area, _, ok := bytes.Cut(lines.Bytes(), []byte(" ")); ok && bytes.HasSuffix(lines.Bytes(), suffix) {
			links = append(links, fmt.Sprintf("/proc/%d/map_files/%s", p.PID, trimZeros(string(area))))
		}
	}
	return links
}

// trimZeros makes the name of a link in map_files of the first word of a line of maps,
// which pads addresses to eight digits.
func trimZeros(area string) string {
	start, end, _ := strings.Cut(area, "-")
	return strings.TrimLeft(start, "0") + "-" + strings.TrimLeft(end, "0")
}

// OpenMemfd opens what link, a magic link in /proc/PID, stands for, if it is shared memory
// sealed against changes of its size, for reading and writing; size is in bytes. Whatever
// the target has put there is looked at before it is opened: opening a device or a fifo may
// block or do something. The O_PATH descriptor holds the very file that is looked at.
func OpenMemfd(p *Process, link string) (fd int, size int64, err error) {
	path, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("opening %s: %w", link, err)
	}
	defer unix.Close(path)
	if !p.Alive() {
		return -1, 0, fmt.Errorf("opening %s: %w", link, unix.ESRCH)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(path, &st), unix.Fstatfs(path, &fs)); err != nil {
		return -1, 0, fmt.Errorf("looking at %s: %w", link, err)
	}
	// Huge pages, too, can be sealed, and raise SIGBUS when there are none left.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return -1, 0, fmt.Errorf("%s is no shared memory", link)
	}
	fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("opening %s: %w", link, err)
	}
	if size, err = sealedSize(fd); err != nil {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("%s: %w", link, err)
	}
	return fd, size, nil
}

// sealedSize returns the size of a file that keeps it, in bytes.
func sealedSize(fd int) (int64, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for its seals: %w", err)
	}
	if seals&wantSeals != wantSeals {
		return 0, fmt.Errorf("it is not sealed against changes of its size (seals %#x)", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("looking at it: %w", err)
	}
	return st.Size, nil
}

// maxAuxv is more than the auxiliary vector of any kernel, bytes.
const maxAuxv = 4 << 10

// Image returns what tells the programs that a process runs one after another apart: its
// auxiliary vector, with the addresses that execve(2) chose.
func Image(p *Process) (string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/auxv", p.PID))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAuxv))
	if err == nil && !p.Alive() {
		err = unix.ESRCH
	}
	return string(b), err
}
