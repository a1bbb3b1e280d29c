//go:build amd64 || arm64

package inject

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is the uid that attackers run as.
const nobody = 65534

// attacker starts an injectee without any privilege.
func attacker(t *testing.T, extra []*os.File, args ...string) *victim {
	t.Helper()
	needRoot(t)
	// It cannot go where the sources are: it gets a copy.
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"injectee", "libcuda.so.1"} {
		content, err := os.ReadFile(filepath.Join(injectees(t), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "injectee"), args...)
	cmd.Dir, cmd.ExtraFiles = "/", extra
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return startCmd(t, cmd)
}

// secret makes a file that only root may read and write.
func secret(t *testing.T) (path string, unchanged func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "file")
	content := bytes.Repeat([]byte("root's own\n"), 1000)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		t.Helper()
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
			t.Fatalf("a file of root's was written for somebody else: it has %d bytes now, %d before (%v)",
				len(now), len(content), err)
		}
	}
}

// attacked brings an image into an attacker, which may have made that impossible.
func attacked(t *testing.T, in *Injector, v *victim, im Image) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := in.Load(ctx, v.process, im)
	if err != nil {
		t.Log(err)
		return
	}
	r.FD.Close()
}

// A file that is mounted where a memfd would be said to lie is not taken for one.
func TestMountedFileIsNoMemfd(t *testing.T) {
	in, im := newInjector(t), testImage(t)
	path, unchanged := secret(t)
	v := attacker(t, nil, "--attack", "mount:"+path)
	links, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(int(v.process.PID)), "fd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	deceives := false
	for _, link := range links {
		text, _ := os.Readlink(link)
		deceives = deceives || text == "/memfd:"+fileName+"-1-1"
	}
	if !deceives {
		t.Fatal("the attacker has no file that is called like a memfd")
	}
	for range 3 {
		attacked(t, in, v, im)
		unchanged()
	}
	v.unharmed()
}

// A descriptor that becomes another file at any moment does not lead anywhere else.
func TestDescriptorThatChanges(t *testing.T) {
	in, im := newInjector(t), testImage(t)
	path, unchanged := secret(t)
	v := attacker(t, nil, "--attack", "race:"+path)
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	used := 0
	for range 3000 {
		pl := &plan{process: v.process, image: &im, hook: func(string) {}, guard: func() error { return nil }}
		if err := pl.findFiles(proc, nil); err != nil {
			t.Fatal(err)
		}
		if pl.reuse(); pl.made != nil {
			used++
		}
		unchanged()
		if err := pl.give(); err != nil {
			t.Fatal(err)
		}
	}
	if used == 0 {
		t.Error("no memfd of the attacker's was ever used")
	}
	for range 3 {
		attacked(t, in, v, im)
		unchanged()
	}
	v.unharmed()
}

// A memfd of root's that a process was passed, and may only read, is not written.
func TestPassedMemfd(t *testing.T) {
	in, im := newInjector(t), testImage(t)
	fd, err := unix.MemfdCreate(fileName+"-1-1", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memfd")
	defer file.Close()
	content := []byte(strings.Repeat("root's own\n", 1000))
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := file.Chmod(0o400); err != nil {
		t.Fatal(err)
	}
	passed, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	v := attacker(t, []*os.File{passed})
	for range 3 {
		attacked(t, in, v, im)
		now := make([]byte, len(content)+1)
		if n, _ := file.ReadAt(now, 0); !bytes.Equal(now[:n], content) {
			t.Fatalf("a memfd of root's was written for somebody else: it has %d bytes now, %d before", n, len(content))
		}
	}
	v.unharmed()
}
