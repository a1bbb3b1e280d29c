package inject

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// A memory file of the sign's name refuses the way in, unless it was known before; one of another name does not.
func TestPreceded(t *testing.T) {
	self, err := proc.Describe(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	pl := &plan{process: self, image: &Image{Sign: "test-sign"}}
	if _, err := memfd(t, "test-signal"); err != nil {
		t.Fatal(err)
	}
	if err := pl.preceded(); err != nil {
		t.Errorf("nothing of that name is open: %v", err)
	}
	inode, err := memfd(t, "test-sign")
	if err != nil {
		t.Fatal(err)
	}
	if err := pl.preceded(); !errors.Is(err, ErrPreceded) {
		t.Errorf("%v, want %v", err, ErrPreceded)
	}
	pl.image.Known = []uint64{inode}
	if err := pl.preceded(); err != nil {
		t.Errorf("it was known before: %v", err)
	}
}

// memfd makes a memory file for the time of the test, and returns its inode number.
func memfd(t *testing.T, name string) (uint64, error) {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { unix.Close(fd) })
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, err
}
