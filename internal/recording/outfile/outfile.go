// Package outfile creates files and folders for people, where other users may write too.
//
// A directory is walked to once, before a program of somebody else runs, and held by a descriptor from then on: names
// are only ever created, renamed and removed inside it, so that nobody can redirect them afterwards. No symbolic link
// is followed that its owner could use against the one who follows it (see mayFollow): root follows links of root
// alone. A link at the last name of a path that may not be followed is replaced by the file, as rename(2) does it.
//
// With a credential, every step is done with that user's rights and no other (see act).
package outfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Place is where a file is to appear: a directory that is held, and a name in it; or a stream that is open already.
type Place struct {
	dir    *Dir
	name   string
	stream *os.File // a pipe or a device: it is written as it is
}

// Open finds the place of a file. What is at path already and can only be written as it is (a device, a pipe,
// /dev/stdout) is opened; a regular file or a link is left alone until Commit. as is nil for the rights of this
// process.
func Open(name string, as *syscall.Credential) (*Place, error) {
	if fd, ok := ownDescriptor(name); ok {
		return openDescriptor(name, fd)
	}
	dir, base, err := openParent(name, as, false)
	if err != nil {
		return nil, err
	}
	p := &Place{dir: dir, name: base}
	if err := act(as, p.openStream); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", name, err), dir.Close())
	}
	return p, nil
}

// ownDescriptor returns the descriptor that a name stands for. Such names are magic links, which no walk follows.
func ownDescriptor(name string) (fd int, ok bool) {
	clean := path.Clean(name)
	switch clean {
	case "/dev/stdin":
		return 0, true
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	for _, prefix := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if text, below := strings.CutPrefix(clean, prefix); below {
			fd, err := strconv.ParseUint(text, 10, 20)
			return int(fd), err == nil
		}
	}
	return 0, false
}

func openDescriptor(name string, fd int) (*Place, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return &Place{stream: os.NewFile(uintptr(own), name)}, nil
}

// openStream opens what is at the place and is neither a file nor a folder, unless another user put it there to be
// written to: that is replaced, as a link is.
func (p *Place) openStream() error {
	var there unix.Stat_t
	err := unix.Fstatat(p.dir.fd(), p.name, &there, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	switch kind := there.Mode & unix.S_IFMT; kind {
	case unix.S_IFREG, unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	case unix.S_IFIFO, unix.S_IFSOCK:
		var dir unix.Stat_t
		if err := unix.Fstat(p.dir.fd(), &dir); err != nil {
			return err
		}
		if !mayFollow(&dir, &there, p.dir.uid()) {
			return nil
		}
	}
	fd, err := unix.Openat(p.dir.fd(), p.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), p.name)
	var opened unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil || opened.Dev != there.Dev || opened.Ino != there.Ino {
		return errors.Join(err, errors.New("it was exchanged meanwhile"), file.Close())
	}
	p.stream = file
	return nil
}

// IsStream reports whether the place is written as it is, and nothing is renamed to it.
func (p *Place) IsStream() bool { return p.stream != nil }

// Exists reports whether there is anything at the place.
func (p *Place) Exists() (bool, error) {
	if p.stream != nil {
		return false, nil
	}
	return p.dir.Exists(p.name)
}

// Close lets go of the directory.
func (p *Place) Close() error {
	if p.stream != nil {
		return p.stream.Close()
	}
	return p.dir.Close()
}

// Create begins the file, under a temporary name. The umask decides who may read it, as with any new file.
func (p *Place) Create() (*File, error) {
	if p.stream != nil {
		return &File{File: p.stream, place: p}, nil
	}
	file, temp, err := p.dir.createTemp(p.name)
	if err != nil {
		return nil, err
	}
	f := &File{File: file, place: p, temp: temp}
	unfinished.Store(f, true)
	return f, nil
}

// unfinished are the files that were neither committed nor discarded.
var unfinished sync.Map //nolint:gochecknoglobals // it is about this process, which is about to end where it is used

// DiscardAll removes all files that are not finished, for a process that is about to end.
func DiscardAll() {
	for f := range unfinished.Range {
		_ = f.(*File).place.dir.Remove(f.(*File).temp)
	}
}

// File is a file that appears at its place whole, or not at all.
type File struct {
	*os.File
	place *Place
	temp  string // its name until Commit; "" for a stream, and afterwards
}

// Commit makes sure that the file is on the disk, closes it and puts it into its place.
func (f *File) Commit() error {
	if f.temp == "" {
		if f.place.stream != nil {
			return nil // whoever opened the place closes it
		}
		return fs.ErrClosed
	}
	// Errors of the disk show up here at the latest, while the old file is still there.
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := f.place.dir.Rename(f.temp, f.place.name); err != nil {
		return err
	}
	unfinished.Delete(f)
	f.temp = ""
	return nil
}

// Discard removes what was not committed. It does nothing after Commit.
func (f *File) Discard() {
	if f.temp == "" {
		return
	}
	_ = f.Close()
	_ = f.place.dir.Remove(f.temp)
	unfinished.Delete(f)
	f.temp = ""
}

// maxName is NAME_MAX of Linux's file systems, in bytes.
const maxName = 255

// createTemp creates a file for what will be called name. Its name cannot be foreseen, so that nobody can take it
// before.
func (d *Dir) createTemp(name string) (file *os.File, temp string, err error) {
	suffix := "." + rand.Text()[:12] + ".tmp"
	temp = name[:min(len(name), maxName-len(suffix))] + suffix
	err = act(d.as, func() error {
		fd, err := unix.Openat(d.fd(), temp,
			unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return &fs.PathError{Op: "create", Path: path.Join(d.name, name), Err: err}
		}
		file = os.NewFile(uintptr(fd), temp)
		return nil
	})
	return file, temp, err
}
