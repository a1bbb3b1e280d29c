package proc

import (
	"fmt"
	"os"
	"path"
	"strings"
)

// Mappings returns the files that are mapped executable into p, ordered by
// address. It fails with a clierror.NoProcess if p is gone, so that the mappings of
// a process that has taken its pid are never returned, and where a bound is
// exceeded (64 MiB of text, 16,384 such mappings).
func Mappings(p *Process) ([]Mapping, error) {
	return newProcfs(procRoot).mappings(p, nil)
}

// Libraries returns for each file mapped executable into p whose base name is
// wanted its first mapping. Two files are two even if they have one name, and a
// file mapped in several parts, or under two names, is one. Errors as Mappings.
func Libraries(p *Process, want func(base string) bool) ([]Mapping, error) {
	all, err := newProcfs(procRoot).mappings(p, want)
	if err != nil {
		return nil, err
	}
	type file struct{ dev, inode uint64 }
	seen := make(map[file]bool, len(all))
	files := all[:0]
	for _, m := range all {
		if id := (file{m.Dev, m.Inode}); !seen[id] {
			seen[id] = true
			files = append(files, m)
		}
	}
	return files, nil
}

// mappings returns the mappings whose base name is wanted (nil: all). The open
// file is bound to the process's memory, not to its number, so that it is enough
// to ask once, after the open, whether that process was p.
func (fs *procfs) mappings(p *Process, want func(base string) bool) ([]Mapping, error) {
	f, err := os.Open(fs.path(p.PID, "maps"))
	if err != nil {
		return nil, explainRead(p.PID, err)
	}
	defer f.Close()
	root := fs.rootOf(p.PID)
	if !p.Alive() {
		return nil, fs.explainDead(p.PID)
	}
	var found []Mapping
	err = scanMaps(f, func(line mapsLine) error {
		if want != nil && !want(line.base()) {
			return nil
		}
		if len(found) == maxMappings {
			return errManyFiles
		}
		found = append(found, line.mapping(root))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	return found, nil
}

// rootOf returns the process's root directory as a path from ours: "/" but for a chroot.
func (fs *procfs) rootOf(pid uint32) string {
	root, err := os.Readlink(fs.path(pid, "root"))
	if err != nil {
		return "/"
	}
	return root
}

func (m mapsLine) base() string {
	return strings.TrimSuffix(path.Base(unescape(string(m.Name))), deletedSuffix)
}
