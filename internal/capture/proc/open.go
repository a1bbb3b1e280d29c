package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// Open opens the very file behind a mapping of p, read-only. The path is walked
// inside p's own root, and what is not a regular file is never opened (procfile).
// A file that was replaced or deleted since is opened through
// /proc/PID/map_files, which needs CAP_CHECKPOINT_RESTORE (or root).
// It fails with a clierror.NoProcess if p is gone.
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
	return nil, fmt.Errorf("opening %q of pid %d: by its path: %w; by its mapping: %w",
		m.Path, p.PID, byPath, byMapping)
}

// OpenMaps opens /proc/PID/maps of p. The file stays that of p's memory, also where the pid is used again. It fails
// with a clierror.NoProcess if p is gone.
func OpenMaps(p *Process) (io.ReadCloser, error) {
	fs := newProcfs(procRoot)
	f, err := os.Open(fs.path(p.PID, "maps"))
	if err != nil {
		return nil, err
	}
	if !p.Alive() {
		return nil, errors.Join(fs.explainDead(p.PID), f.Close())
	}
	return f, nil
}

// openPath opens the mapping's path inside p's root. Dev is not compared: on
// overlayfs and btrfs maps prints another device than stat.
func (fs *procfs) openPath(p *Process, m Mapping) (*os.File, error) {
	root, err := procfile.OpenRoot(fs.root, p.PID)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	if !p.Alive() {
		return nil, unix.ESRCH
	}
	var last error
	for _, path := range spellings(m) {
		f, err := openIn(root, path, m.Inode)
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

// openIn opens the file at a path if it has the inode number; 0 is any.
func openIn(root int, path string, inode uint64) (*os.File, error) {
	f, err := procfile.OpenIn(root, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Regular(); err != nil {
		return nil, err
	}
	if inode != 0 && f.Inode() != inode {
		return nil, procfile.ErrReplaced
	}
	return f.Read()
}

// openMapped opens the file through the mapping itself, wherever it lies. Its
// inode is not compared, for the reason that openPath may have failed is that
// stat and maps disagree about it; instead the mapping must still be the one we know.
func (fs *procfs) openMapped(p *Process, m Mapping) (*os.File, error) {
	f, err := procfile.Open(fs.path(p.PID, fmt.Sprintf("map_files/%x-%x", m.Start, m.End)))
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%w (needs CAP_CHECKPOINT_RESTORE)", err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !fs.stillMapped(p, m) {
		return nil, procfile.ErrReplaced
	}
	return f.Read()
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
