package api

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func TestListenMakesAnOpenSocketWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "s.sock")
	l, err := Listen(path)
	must.NoError(t, err)
	defer l.Close()
	for name, want := range map[string]os.FileMode{dir: os.ModeDir | 0o755, path: os.ModeSocket | 0o666} {
		info, err := os.Lstat(name)
		must.NoError(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestListenLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.sock")
	for range 2 { // the second time shows that the first one gave everything back
		l, err := Listen(path)
		must.NoError(t, err)
		must.NoError(t, l.Close())
		if err := l.Close(); err != nil {
			t.Errorf("second Close = %v", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestSecondDaemonIsToldThePidOfTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := Listen(path)
	must.NoError(t, err)
	defer l.Close()
	_, err = Listen(path)
	wantFault(t, err, clierror.Busy)
	if want := fmt.Sprintf("pid %d", os.Getpid()); !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not name the holder %q", err, want)
	}
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first daemon's socket is gone: %v", err)
	}
}

func TestOnlyOneOfManyGetsTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	var mu sync.Mutex
	var got []*Listener
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			l, err := Listen(path)
			if err != nil {
				if clierror.CodeOf(err) != clierror.Busy {
					t.Errorf("error %v, want busy", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, l)
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Fatalf("%d daemons hold the socket, want 1", len(got))
	}
	if err := got[0].Close(); err != nil {
		t.Error(err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must.NoError(t, err)
	dead.SetUnlinkOnClose(false) // as after kill -9
	_ = dead.Close()
	must.NoError(t, os.WriteFile(path+".lock", []byte("12345\n"), 0o600))
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	defer l.Close()
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("nobody answers on the new socket: %v", err)
	}
}

func TestWhatIsNoSocketStays(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	must.NoError(t, os.WriteFile(file, []byte("data"), 0o600))
	link := filepath.Join(dir, "link")
	must.NoError(t, os.Symlink(file, link))
	for _, path := range []string{file, link, dir} {
		_, err := Listen(path)
		wantFault(t, err, clierror.Usage)
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s was removed", path)
		}
		if _, err := os.Lstat(path + ".lock"); err == nil {
			t.Errorf("the lock of %s stays behind", path)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file changed: %v %v", info, err)
	}
}

func TestLockThatIsALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	must.NoError(t, os.WriteFile(victim, []byte("data"), 0o600))
	path := filepath.Join(dir, "s.sock")
	must.NoError(t, os.Symlink(victim, path+".lock"))
	if _, err := Listen(path); err == nil {
		t.Fatal("a lock was taken through a symbolic link")
	}
	if got, _ := os.ReadFile(victim); string(got) != "data" {
		t.Errorf("the link's goal now holds %q", got)
	}
}

func TestListenOnBadPaths(t *testing.T) {
	for _, path := range []string{"", "/" + strings.Repeat("a", maxSocketPath)} {
		_, err := Listen(path)
		wantFault(t, err, clierror.Usage)
	}
	_, err := Listen("/dev/null/s.sock")
	wantFault(t, err, clierror.General)
}

func TestOpenRefusesWhatTookTheSocketsPlace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "shadow")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(dir, "s.sock")
	must.NoError(t, os.Symlink(file, link))
	if err := open(link); err == nil {
		t.Error("a symbolic link was opened to everybody")
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the link's goal has mode %v, %v", info.Mode(), err)
	}
}

// flockAs opens a file for reading as another user, and locks it.
func flockAs(t *testing.T, name string, uid uintptr) error {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its user
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			result <- errno
			return
		}
		fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err == nil {
			err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		}
		result <- err // the descriptor stays open, and the lock with it
	}()
	return <-result
}

// TestNobodyElseCanLock: a user cannot keep the daemon from starting, neither by the lock of a daemon that runs nor by
// one that a daemon of before left open to all.
func TestNobodyElseCanLock(t *testing.T) {
	needs.Root(t, "it connects as other users")
	path := filepath.Join(publicDir(t), "s.sock")
	l, err := Listen(path)
	must.NoError(t, err)
	if err := flockAs(t, path+".lock", 65534); !errors.Is(err, syscall.EACCES) {
		t.Errorf("another user opens the lock: %v", err)
	}
	must.NoError(t, l.Close())
	if err := os.WriteFile(path+".lock", []byte("4194305\n"), 0o644); err != nil { //nolint:gosec // as a daemon of before left it
		t.Fatal(err)
	}
	must.NoError(t, flockAs(t, path+".lock", 65534))
	l, err = Listen(path)
	if err != nil {
		t.Fatalf("a user who holds an old lock keeps the daemon from starting: %v", err)
	}
	defer l.Close()
	if info, err := os.Stat(path + ".lock"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock has mode %v, %v", info.Mode(), err)
	}
	_, err = Listen(path)
	wantFault(t, err, clierror.Busy)
}
