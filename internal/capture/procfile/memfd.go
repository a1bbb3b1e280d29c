package procfile

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Memfd is a memfd that a process has open or has mapped shared and writable. Its name is whatever its maker
// chose; what identifies it is the inode number.
type Memfd struct {
	Name       string
	Inode      uint64
	FD         int    // descriptor in the process; -1 where it was found as a mapping
	Start, End uint64 // addresses of the mapping; 0 where it was found as a descriptor
	pid        uint32
}

// Seals are what must, and what must not be on a memfd (fcntl(2), F_GET_SEALS).
type Seals struct{ Set, Clear int }

// FixedSize is for memory that is mapped here: were it to shrink, reading it would raise SIGBUS.
func FixedSize() Seals { return Seals{Set: unix.F_SEAL_SHRINK | unix.F_SEAL_GROW} }

// Unsealed is for a memfd that was just made with MFD_ALLOW_SEALING. No other file of the kernel's shared memory
// is without F_SEAL_SEAL.
func Unsealed() Seals { return Seals{Clear: ^0} }

// Bounds of what is searched for memfds.
const (
	maxDescriptors = 1 << 16
	maxFound       = 64
	maxMapsBytes   = 64 << 20
	maxMapsLine    = 64 << 10
	maxFDInfo      = 4 << 10 // a kernel prints 100 bytes, and a line for each lock
)

// device returns the device number of the mount that all memfds lie on. It is the kernel's own (shm_mnt): nobody
// can mount it, and so no mounted tmpfs and no bind mount has it.
var device = sync.OnceValues(func() (uint64, error) {
	const noExecSeal = 0x8 // MFD_NOEXEC_SEAL, Linux 6.3, which a sysctl may insist on
	fd, err := unix.MemfdCreate("inferscope-device", unix.MFD_CLOEXEC|noExecSeal)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("inferscope-device", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return 0, fmt.Errorf("make a memfd to learn where they lie: %w", err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("learn where memfds lie: %w", err)
	}
	return stat.Dev, nil
})

// isMemfd reports with errNotMemfd what is not shared memory of the kernel's own: a memfd, or a segment of System
// V shared memory, which differs in its seals (Open).
func (f *File) isMemfd() error {
	dev, err := device()
	if err != nil {
		return err
	}
	if f.Regular() != nil || unix.Mkdev(f.stat.Dev_major, f.stat.Dev_minor) != dev || f.stat.Nlink != 0 {
		return errNotMemfd
	}
	return nil
}

// Descriptor looks at a descriptor of a process, which must be of a memfd.
func Descriptor(pid uint32, fd int) (Memfd, error) {
	f, err := Open(fdLink(pid, fd))
	if err != nil {
		return Memfd{}, err
	}
	defer f.Close()
	if err := f.isMemfd(); err != nil {
		return Memfd{}, fmt.Errorf("%s: %w", f.name, err)
	}
	return Memfd{Inode: f.Inode(), FD: fd, pid: pid}, nil
}

// Descriptors finds the memfds that a process has open and whose names begin with prefix.
func Descriptors(pid uint32, prefix string) ([]Memfd, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, fmt.Errorf("list its open files: %w", err)
	}
	defer dir.Close()
	numbers, err := dir.Readdirnames(maxDescriptors)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list its open files: %w", err)
	}
	var found []Memfd
	for _, number := range numbers {
		fd, err := strconv.Atoi(number)
		if err != nil || len(found) == maxFound {
			continue
		}
		text, err := os.Readlink(fdLink(pid, fd))
		name, ok := memfdName(text)
		if err != nil || !ok || !strings.HasPrefix(name, prefix) {
			continue
		}
		if m, err := Descriptor(pid, fd); err == nil { // else something is only called so, or it is closed by now
			m.Name = name
			found = append(found, m)
		}
	}
	return found, nil
}

// memfdName returns the name of a memfd of what the kernel prints for it.
func memfdName(text string) (string, bool) {
	name, ok := strings.CutPrefix(text, "/memfd:")
	return strings.TrimSuffix(name, " (deleted)"), ok
}

// Mapped finds the memfds of this name that a process has mapped shared and writable. A forked child has the
// mappings of its parent, too.
func Mapped(pid uint32, name string) []Memfd {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil
	}
	defer file.Close()
	var found []Memfd
	lines := bufio.NewScanner(io.LimitReader(file, maxMapsBytes))
	lines.Buffer(make([]byte, maxMapsLine), maxMapsLine)
	suffix := []byte(" /memfd:" + name + " (deleted)")
	for lines.Scan() && len(found) < maxFound {
		if !bytes.HasSuffix(lines.Bytes(), suffix) {
			continue
		}
		if m, ok := parseMapping(lines.Bytes()); ok {
			m.Name, m.pid = name, pid
			found = append(found, m)
		}
	}
	return found
}

// parseMapping reads a line of a mapping that is writable and shared. Which file is mapped with which rights the
// kernel prints at one moment.
func parseMapping(line []byte) (Memfd, bool) {
	m, ok := ParseMapsLine(line)
	if !ok || m.Perms[1] != 'w' || m.Perms[3] != 's' {
		return Memfd{}, false
	}
	dev, err := device()
	return Memfd{Start: m.Start, End: m.End, Inode: m.Inode, FD: -1}, err == nil && unix.Mkdev(m.Major, m.Minor) == dev
}

// Open opens the memfd for reading and writing; size is in bytes. It fails with ErrReplaced where another file is
// there by now, and with errNotWritable where the process could not write it, so that nothing is ever written that
// the process could not have written itself, such as memory of another user's that it was sent to read. alive says
// that the process is still the one that is meant.
func (m *Memfd) Open(alive func() bool, seals Seals) (file *os.File, size int64, err error) {
	f, err := Open(m.link())
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if !alive() {
		return nil, 0, fmt.Errorf("opening %s: %w", f.name, unix.ESRCH)
	}
	if err := cmp.Or(m.isSame(f), f.isMemfd(), m.writable()); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", f.name, err)
	}
	if file, err = f.reopen(unix.O_RDWR); err != nil {
		return nil, 0, err
	}
	if size, err = checkSeals(file, seals); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%s: %w", f.name, err), file.Close())
	}
	return file, size, nil
}

func (m *Memfd) isSame(f *File) error {
	if f.Inode() != m.Inode {
		return ErrReplaced
	}
	return nil
}

// writable reports with errNotWritable what the process has open for reading only. A mapping was writable when it
// was found (Mapped). Of a descriptor the kernel prints file and rights at one moment (ino: since Linux 5.14), so
// that both are those of one file whatever the process puts under this number meanwhile.
func (m *Memfd) writable() error {
	if m.FD < 0 {
		return nil
	}
	text, err := Head(fmt.Sprintf("/proc/%d/fdinfo/%d", m.pid, m.FD), maxFDInfo)
	if err != nil {
		return fmt.Errorf("learn how it is open: %w", err)
	}
	flags, inode := uint64(0), uint64(0)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "flags":
			flags, err = strconv.ParseUint(value, 8, 64)
		case "ino":
			inode, err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return fmt.Errorf("learn how it is open: %w", err)
		}
	}
	switch {
	case inode != m.Inode:
		return ErrReplaced
	case flags&unix.O_ACCMODE == unix.O_RDONLY || flags&unix.O_PATH != 0:
		return errNotWritable
	}
	return nil
}

func (m *Memfd) link() string {
	if m.FD >= 0 {
		return fdLink(m.pid, m.FD)
	}
	return fmt.Sprintf("/proc/%d/map_files/%x-%x", m.pid, m.Start, m.End)
}

func fdLink(pid uint32, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

// checkSeals returns the size of a file with such seals, in bytes.
func checkSeals(file *os.File, want Seals) (size int64, err error) {
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for its seals: %w", err)
	}
	if seals&want.Set != want.Set || seals&want.Clear != 0 {
		return 0, fmt.Errorf("%w (seals %#x)", errSeals, seals)
	}
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("looking at it: %w", err)
	}
	return info.Size(), nil
}
