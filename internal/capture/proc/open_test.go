package proc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// loaded returns a victim that has its library mapped, and the mapping.
func loaded(t *testing.T) (*victim, *Process, Mapping) {
	t.Helper()
	v := newVictim(t)
	v.must("dlopen %s", v.library)
	p := described(t, v.pid)
	found, err := Libraries(p, isOther)
	if err != nil || len(found) != 1 {
		t.Fatalf("libraries %v %v", found, err)
	}
	return v, p, found[0]
}

func sameContent(t *testing.T, f *os.File, path string) {
	t.Helper()
	got, err := io.ReadAll(f)
	must.NoError(t, err)
	want, err := os.ReadFile(path)
	must.NoError(t, err)
	if len(got) == 0 || !bytes.Equal(got, want) {
		t.Errorf("%d bytes that are not the %d of %s", len(got), len(want), path)
	}
}

// opened opens a mapping whose path no longer leads to it.
func opened(t *testing.T, p *Process, m Mapping, want string) {
	t.Helper()
	f, err := Open(p, m)
	must.NoError(t, err)
	defer f.Close()
	sameContent(t, f, want)
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

func TestOpenDeleted(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v, p, m := loaded(t)
	keep := keepCopy(t, v.library)
	must.NoError(t, os.Remove(v.library))
	opened(t, p, m, keep)
	again, err := Libraries(p, isOther)
	if err != nil || len(again) != 1 || !again[0].Deleted || again[0].Path != v.library {
		t.Fatalf("after the removal: %+v %v", again, err)
	}
	opened(t, p, again[0], keep)
}

func TestOpenReplaced(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v, p, m := loaded(t)
	keep := keepCopy(t, v.library)
	other := filepath.Join(t.TempDir(), "new.so")
	must.NoError(t, os.WriteFile(other, []byte("an upgrade"), 0o600))
	must.NoError(t, os.Rename(other, v.library))
	if _, err := newProcfs(procRoot).openPath(p, m); !errors.Is(err, procfile.ErrReplaced) {
		t.Errorf("by its path: %v, want %v", err, procfile.ErrReplaced)
	}
	opened(t, p, m, keep)
}

func TestOpenUnmapped(t *testing.T) {
	v, p, m := loaded(t)
	m.Inode++ // neither the file at the path nor the mapping is this one
	_, err := Open(p, m)
	if !errors.Is(err, procfile.ErrReplaced) || !strings.Contains(err.Error(), v.library) {
		t.Errorf("%v, want %v naming %s", err, procfile.ErrReplaced, v.library)
	}
	v.stop()
	if _, err := Open(p, m); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("after its end: %v", err)
	}
}

// Where the path leads, the target decides; what is there is looked at before it is opened.
func TestOpenHostilePaths(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	dir := t.TempDir()
	v := newVictim(t)
	v.must("chroot %s", dir)
	p := described(t, v.pid)
	secret := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(secret, []byte("the host's"), 0o600))
	links := map[string]string{
		"absolute": secret, "up": "../../../../../../.." + secret, "magic": "/proc/self/root" + secret, "loop": "loop",
	}
	for name, to := range links {
		must.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	must.NoError(t, errors.Join(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		os.Mkdir(filepath.Join(dir, "folder"), 0o700)))
	for path, want := range map[string]error{
		"/absolute": unix.ENOENT, "/up": unix.ENOENT, "/magic": unix.ENOENT, "/loop": unix.ELOOP,
		"/.." + secret: unix.ENOENT, "/fifo": procfile.ErrNotRegular, "/device": procfile.ErrNotRegular,
		"/folder": procfile.ErrNotRegular, "/" + strings.Repeat("x/", 3000): unix.ENAMETOOLONG,
		"/nul\x00byte": unix.EINVAL, "": unix.ENOENT,
	} {
		f, err := newProcfs(procRoot).openPath(p, Mapping{Path: path, Inode: inode(t, secret)})
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", path, err, want)
		}
	}
}

func TestOpenMagicLink(t *testing.T) {
	p := described(t, os.Getpid())
	_, err := newProcfs(procRoot).openPath(p, Mapping{Path: "/proc/self/exe"})
	if !errors.Is(err, unix.ELOOP) {
		t.Errorf("%v, want %v", err, unix.ELOOP)
	}
}

func TestOpenStrangeNames(t *testing.T) {
	v := newVictim(t)
	dir := t.TempDir()
	for _, name := range []string{
		"libother\nnewline.so", `libother\012literal.so`, "libother (deleted)", "libother\t\"\x7f\xff.so",
	} {
		path := filepath.Join(dir, name)
		must.NoError(t, os.Link(v.library, path))
		f, err := os.Open(path)
		must.NoError(t, err)
		memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		must.NoError(t, err)
		p := described(t, os.Getpid())
		found, err := Libraries(p, isOther)
		if err != nil || len(found) != 1 {
			t.Errorf("%q: %v %v", name, found, err)
		} else if f, err := newProcfs(procRoot).openPath(p, found[0]); err != nil {
			t.Errorf("%q, mapped as %q: %v", name, found[0].Path, err)
		} else {
			sameContent(t, f, path)
			f.Close()
		}
		f.Close()
		_ = unix.Munmap(memory)
	}
}

func keepCopy(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	to := filepath.Join(t.TempDir(), "copy")
	must.NoError(t, os.WriteFile(to, content, 0o600))
	return to
}
