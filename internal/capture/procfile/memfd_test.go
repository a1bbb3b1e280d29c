package procfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func alive() bool { return true }

// memfd makes one for the time of the test.
func memfd(t *testing.T, name string, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func reopened(t *testing.T, fd, mode int) int {
	t.Helper()
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), mode|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(again) })
	return again
}

// What is behind a descriptor is proven, whatever it is called.
func TestOpenByDescriptor(t *testing.T) {
	self := uint32(os.Getpid())
	plain := memfd(t, "test-plain", unix.MFD_ALLOW_SEALING)
	sealed := memfd(t, "test-sealed", unix.MFD_ALLOW_SEALING)
	if _, err := unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "memfd:test-file (deleted)"))
	must.NoError(t, err)
	defer file.Close()
	for name, c := range map[string]struct {
		fd    int
		seals Seals
		want  error
	}{
		"as it was made":       {plain, Unsealed(), nil},
		"of fixed size":        {sealed, FixedSize(), nil},
		"not sealed":           {plain, FixedSize(), errSeals},
		"sealed":               {sealed, Unsealed(), errSeals},
		"that nobody can seal": {memfd(t, "test-never", 0), Unsealed(), errSeals},
		"open for reading":     {reopened(t, plain, unix.O_RDONLY), Unsealed(), errNotWritable},
		"open for nothing":     {reopened(t, plain, unix.O_PATH), Unsealed(), errNotWritable},
		"a file":               {int(file.Fd()), Unsealed(), errNotMemfd},
	} {
		m, err := Descriptor(self, c.fd)
		var opened *os.File
		if err == nil {
			opened, _, err = m.Open(alive, c.seals)
		}
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("a memfd %s: %v, want %v", name, err, c.want)
		}
		if err == nil {
			opened.Close()
		}
	}
}

// A mounted tmpfs has no memfds, although it is of the same kind.
func TestTmpfsIsNoMemfd(t *testing.T) {
	fd, err := unix.Open("/dev/shm", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Skip("needs a tmpfs at /dev/shm: ", err)
	}
	defer unix.Close(fd)
	if _, err := Descriptor(uint32(os.Getpid()), fd); !errors.Is(err, errNotMemfd) {
		t.Errorf("%v, want %v", err, errNotMemfd)
	}
}

func TestOpenOfAnotherFile(t *testing.T) {
	self := uint32(os.Getpid())
	number := memfd(t, "test-first", unix.MFD_ALLOW_SEALING)
	m, err := Descriptor(self, number)
	must.NoError(t, err)
	must.NoError(t, unix.Dup3(memfd(t, "test-first", unix.MFD_ALLOW_SEALING), number, unix.O_CLOEXEC))
	if _, _, err := m.Open(alive, Unsealed()); !errors.Is(err, ErrReplaced) {
		t.Errorf("%v, want %v", err, ErrReplaced)
	}
	if _, _, err := m.Open(func() bool { return false }, Unsealed()); !errors.Is(err, unix.ESRCH) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

// Only what is mapped shared and writable is found.
func TestMapped(t *testing.T) {
	self := uint32(os.Getpid())
	fd := memfd(t, "test-mapped", unix.MFD_ALLOW_SEALING)
	must.NoError(t, unix.Ftruncate(fd, 4096))
	for _, c := range []struct{ prot, flags, want int }{
		{unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED, 1},
		{unix.PROT_READ, unix.MAP_SHARED, 0},
		{unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE, 0},
	} {
		mem, err := unix.Mmap(fd, 0, 4096, c.prot, c.flags)
		must.NoError(t, err)
		found := Mapped(self, "test-mapped")
		if len(found) != c.want {
			t.Errorf("protection %#x, flags %#x: %d found, want %d", c.prot, c.flags, len(found), c.want)
		}
		for _, m := range found {
			if os.Getuid() != 0 {
				continue // map_files is for root
			}
			file, size, err := m.Open(alive, Unsealed())
			if err != nil || size != 4096 {
				t.Errorf("%d bytes, %v", size, err)
				continue
			}
			file.Close()
		}
		must.NoError(t, unix.Munmap(mem))
	}
}

func TestOpenDoesNotTouch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	must.NoError(t, unix.Mkfifo(path, 0o600))
	f, err := Open(path)
	must.NoError(t, err)
	defer f.Close()
	if _, err := f.Read(); !errors.Is(err, ErrNotRegular) {
		t.Errorf("%v, want %v", err, ErrNotRegular)
	}
}
