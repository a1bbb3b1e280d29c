package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrLink is wrapped by the error about a symbolic link that is not followed.
var ErrLink = errors.New("symbolic link that is not followed")

// maxLinks is how many symbolic links one path may have, as path_resolution(7) has it.
const maxLinks = 40

// mayFollow reports whether a user may follow a link in a directory, or write to a pipe there. Root follows links of
// root where only root can put them. For others this is the rule of fs.protected_symlinks (proc(5)), in force here
// whatever that is set to: others' links in a sticky directory that everybody may write to are not followed.
func mayFollow(dir, link *unix.Stat_t, uid uint32) bool {
	const sticky = unix.S_ISVTX | unix.S_IWOTH
	if uid == 0 {
		return link.Uid == 0 && dir.Uid == 0 && dir.Mode&unix.S_IWOTH == 0 &&
			(dir.Mode&unix.S_IWGRP == 0 || dir.Gid == 0)
	}
	return link.Uid == uid || dir.Mode&sticky != sticky || dir.Uid == link.Uid
}

// walk is a path on its way to a directory. It opens one name at a time and lets the kernel follow no link.
type walk struct {
	uid   uint32 // who walks
	path  string // for messages
	at    *os.File
	rest  []string // names that are left; none of them is empty
	links int      // that were followed
	make  bool     // folders that are not there are made
}

func openPath(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// begin goes to where a path begins, and adds its names to those that are left.
func (w *walk) begin(name string) error {
	start := "."
	if strings.HasPrefix(name, "/") {
		start = "/"
	}
	if start == "/" || w.at == nil {
		at, err := openPath(unix.AT_FDCWD, start)
		if err != nil {
			return fmt.Errorf("open %s: %w", start, err)
		}
		w.move(at)
	}
	var names []string
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			names = append(names, part)
		}
	}
	w.rest = append(names, w.rest...)
	return nil
}

func (w *walk) move(to *os.File) {
	if w.at != nil {
		_ = w.at.Close()
	}
	w.at = to
}

// step goes on by one name: into a directory, or to where a link leads. last says that the name is not to be entered
// unless it is a link that may be followed; over is set where it is reached.
func (w *walk) step(last bool) (over bool, err error) {
	name := w.rest[0]
	next, err := w.open(name, last)
	if next == nil {
		return last && err == nil, err
	}
	var stat, dir unix.Stat_t
	if err := errors.Join(unix.Fstat(int(next.Fd()), &stat), unix.Fstat(int(w.at.Fd()), &dir)); err != nil {
		_ = next.Close()
		return false, w.fault(name, err)
	}
	switch kind := stat.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		defer next.Close()
		if !mayFollow(&dir, &stat, w.uid) {
			if last {
				return true, nil
			}
			return false, w.fault(name, fmt.Errorf(
				"%w: it belongs to user %d, in a directory of user %d: name the directory that it leads to",
				ErrLink,
				stat.Uid,
				dir.Uid,
			))
		}
		return false, w.follow(next, name)
	case last:
		return true, next.Close()
	case kind != unix.S_IFDIR:
		_ = next.Close()
		return false, w.fault(name, unix.ENOTDIR)
	}
	w.rest = w.rest[1:]
	w.move(next)
	return false, nil
}

// open opens a name without following it; nil where it is the last one and is not there.
func (w *walk) open(name string, last bool) (*os.File, error) {
	next, err := openPath(int(w.at.Fd()), name)
	if errors.Is(err, unix.ENOENT) {
		if last {
			return nil, nil
		}
		if w.make {
			if err = unix.Mkdirat(int(w.at.Fd()), name, 0o777); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = openPath(int(w.at.Fd()), name)
			}
		}
	}
	if err != nil {
		return nil, w.fault(name, err)
	}
	return next, nil
}

// follow replaces a link by where it leads.
func (w *walk) follow(link *os.File, name string) error {
	if w.links++; w.links > maxLinks {
		return w.fault(name, unix.ELOOP)
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", text)
	if err != nil {
		return w.fault(name, err)
	}
	w.rest = w.rest[1:]
	if err := w.begin(string(text[:n])); err != nil {
		return err
	}
	if len(w.rest) == 0 {
		return w.fault(name, unix.EISDIR)
	}
	return nil
}

func (w *walk) fault(name string, err error) error {
	return &fs.PathError{Op: "reach", Path: fmt.Sprintf("%s (at %q)", w.path, name), Err: err}
}

// openParent walks to the directory in which the last name of a path is, following that where it is a link that may be
// followed. mkdir makes the directories that are not there.
func openParent(name string, as *syscall.Credential, mkdir bool) (dir *Dir, base string, err error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return nil, "", fmt.Errorf("%q is not a path: %w", name, fs.ErrInvalid)
	}
	err = act(as, func() error {
		w := &walk{uid: actor(as), path: name, make: mkdir}
		err := w.begin(name)
		if err == nil && len(w.rest) == 0 {
			err = w.fault(name, unix.EISDIR)
		}
		for over := false; err == nil && !over; {
			over, err = w.step(len(w.rest) == 1)
		}
		if err == nil && w.rest[0] == ".." {
			err = w.fault(name, unix.EISDIR)
		}
		if err != nil {
			w.move(nil)
			return err
		}
		dir, base = &Dir{file: w.at, as: as, name: path.Dir(name)}, w.rest[0]
		return nil
	})
	return dir, base, err
}

// actor is the user whose rights act uses.
func actor(as *syscall.Credential) uint32 {
	if as != nil {
		return as.Uid
	}
	return uint32(os.Geteuid())
}
