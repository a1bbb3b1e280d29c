package target

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	errNotRegular = errors.New("not a regular file")
	errReplaced   = errors.New("another file is at that path now")
)

// Open opens the very file behind a mapping of p, read-only. The path is walked
// inside p's own root: no symbolic link, "..", or magic link leads out of it, and
// what is not a regular file (a fifo, a device) is never opened, only looked at.
// A file that was replaced or deleted since is opened through
// /proc/PID/map_files, which needs CAP_CHECKPOINT_RESTORE (or root).
// It fails with a fault.NoProcess if p is gone.
func Open(p *Process, m Mapping) (*os.File, error) {
	return newProcfs(procRoot).open(p, m)
}

func (fs *procfs) open(p *Process, m Mapping) (*os.File, error) {
	f, byPath := fs.openPath(p, m)
	if byPath == nil {
		return f, nil
	}
	if !p.Alive() {
		return nil, fs.explainDead(p.PID)
	}
	f, byMapping := fs.openMapped(p, m)
	if byMapping == nil {
		return f, nil
	}
	return nil, fmt.Errorf("opening %q of pid %d: by its path: %w; by its mapping: %w", m.Path, p.PID, byPath, byMapping)
}

// openPath opens the mapping's path inside p's root. Dev is not compared: on
// overlayfs and btrfs maps prints another device than stat.
func (fs *procfs) openPath(p *Process, m Mapping) (*os.File, error) {
	root, err := unix.Open(fs.path(p.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("its root: %w", err)
	}
	defer unix.Close(root)
	if !p.Alive() {
		return nil, unix.ESRCH
	}
	var last error
	for _, path := range spellings(m) {
		f, err := fs.openIn(root, path, m.Inode)
		if err == nil {
			return f, nil
		}
		if last == nil {
			last = err
		}
	}
	return nil, last
}

// spellings returns the names that maps may have meant.
func spellings(m Mapping) []string {
	paths := []string{m.Path}
	if m.Deleted { // or a file that is called so
		paths = append(paths, m.Path+deletedSuffix)
	}
	if strings.Contains(m.Path, "\n") { // or a file with a backslash in its name
		paths = append(paths, strings.ReplaceAll(m.Path, "\n", `\012`))
	}
	return paths
}

// openIn walks to the file without opening it, looks at it, and only then opens
// that same file. Openat2 needs Linux 5.6.
func (fs *procfs) openIn(root int, path string, inode uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, path, &how)
	// EAGAIN: a rename or mount anywhere raced with "..". The target could go on with that for ever.
	for try := 0; try < 8 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(root, path, &how)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := isRegular(fd, inode); err != nil {
		return nil, err
	}
	return fs.reopen(fd, path)
}

// isRegular looks at a file; inode 0 is any.
func isRegular(fd int, inode uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errNotRegular
	}
	if inode != 0 && st.Ino != inode {
		return errReplaced
	}
	return nil
}

// reopen opens what an O_PATH descriptor stands for. O_NONBLOCK: a lease that
// the target holds on the file would else make us wait for it.
func (fs *procfs) reopen(fd int, name string) (*os.File, error) {
	again := fmt.Sprintf("%s/self/fd/%d", fs.root, fd)
	opened, err := unix.Open(again, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), name), nil
}

// openMapped opens the file through the mapping itself, wherever it lies. Its
// inode is not compared, for the reason that openPath may have failed is that
// stat and maps disagree about it; instead the mapping must still be the one we know.
func (fs *procfs) openMapped(p *Process, m Mapping) (*os.File, error) {
	link := fs.path(p.PID, fmt.Sprintf("map_files/%x-%x", m.Start, m.End))
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%w (needs CAP_CHECKPOINT_RESTORE)", err)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := isRegular(fd, 0); err != nil {
		return nil, err
	}
	if !fs.stillMapped(p, m) {
		return nil, errReplaced
	}
	return fs.reopen(fd, m.Path)
}

func (fs *procfs) stillMapped(p *Process, m Mapping) bool {
	now, err := fs.mappings(p, nil)
	if err != nil {
		return false
	}
	for _, n := range now {
		if n.Start == m.Start && n.End == m.End && n.Dev == m.Dev && n.Inode == m.Inode {
			return true
		}
	}
	return false
}
