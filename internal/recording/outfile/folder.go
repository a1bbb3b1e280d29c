package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is a directory that is held open. Whatever becomes of its path, names are created in it and nowhere else.
type Dir struct {
	file *os.File // O_PATH
	as   *syscall.Credential
	name string // for messages
}

// OpenParent holds the directory in which path lies, and returns the name of path in it. Directories that are not
// there are made where mkdir is set.
func OpenParent(name string, as *syscall.Credential, mkdir bool) (dir *Dir, base string, err error) {
	return openParent(name, as, mkdir)
}

// Close lets go of the directory.
func (d *Dir) Close() error { return d.file.Close() }

func (d *Dir) fd() int     { return int(d.file.Fd()) }
func (d *Dir) uid() uint32 { return actor(d.as) }

// do does something to one name, with the rights of the directory's user.
func (d *Dir) do(op, name string, f func(dir int) error) error {
	err := act(d.as, func() error { return f(d.fd()) })
	if err != nil {
		return &fs.PathError{Op: op, Path: path.Join(d.name, name), Err: err}
	}
	return nil
}

// Rename puts what is called from into the place of to, whatever that is, but a folder.
func (d *Dir) Rename(from, to string) error {
	return d.do("write", to, func(dir int) error { return unix.Renameat(dir, from, dir, to) })
}

// Remove removes a file.
func (d *Dir) Remove(name string) error {
	return d.do("remove", name, func(dir int) error { return unix.Unlinkat(dir, name, 0) })
}

// Exists reports whether there is anything of a name, be it a link that leads nowhere.
func (d *Dir) Exists(name string) (bool, error) {
	err := d.do("look at", name, func(dir int) error {
		var stat unix.Stat_t
		return unix.Fstatat(dir, name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Mkdir makes a folder; the error wraps os.ErrExist where there is something of that name.
func (d *Dir) Mkdir(name string) error {
	return d.do("make folder", name, func(dir int) error { return unix.Mkdirat(dir, name, 0o777) })
}

// RemoveAll removes a folder with everything in it, and follows no link.
func (d *Dir) RemoveAll(name string) error {
	return d.do("remove", name, func(dir int) error {
		root, err := openRoot(dir)
		if err != nil {
			return err
		}
		return errors.Join(root.RemoveAll(name), root.Close())
	})
}

// Folder opens a folder in the directory, which must be one and no link to one.
func (d *Dir) Folder(name string) (*Folder, error) {
	var root *os.Root
	err := d.do("open folder", name, func(dir int) error {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		root, err = openRoot(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Folder{Root: root, as: d.as}, nil
}

// openRoot makes an os.Root of a directory's descriptor.
func openRoot(dir int) (*os.Root, error) { return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(dir)) }

// Folder is a folder that is held open, with folders in it. Nothing leads out of it: see os.Root, which is for reading
// here.
type Folder struct {
	Root *os.Root
	as   *syscall.Credential
}

// Close lets go of the folder.
func (f *Folder) Close() error { return f.Root.Close() }

// Create creates a file, which must not be there, and the folders that it lies in. A file of this name that somebody
// left is removed first.
func (f *Folder) Create(name string) (file *os.File, err error) {
	err = act(f.as, func() (err error) {
		if dir := path.Dir(name); dir != "." {
			if err := f.Root.MkdirAll(dir, 0o777); err != nil {
				return err
			}
		}
		if err := f.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		file, err = f.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	return file, err
}

// Rename gives a file another name, below the same folder.
func (f *Folder) Rename(from, to string) error {
	return act(f.as, func() error { return f.Root.Rename(from, to) })
}

// Remove removes a file.
func (f *Folder) Remove(name string) error {
	return act(f.as, func() error { return f.Root.Remove(name) })
}

// Sync makes sure that a file, or the names in a folder, are on the disk.
func (f *Folder) Sync(name string) error {
	return act(f.as, func() error {
		file, err := f.Root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("write to the disk: %w", err)
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("write %s to the disk: %w", name, err)
		}
		return nil
	})
}
