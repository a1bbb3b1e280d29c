package proc

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

func TestFind(t *testing.T) {
	v, other := newVictim(t), newVictim(t)
	driver := filepath.Join(t.TempDir(), "libcuda.so.1")
	runtimeCopy := filepath.Join(t.TempDir(), "libcudart-d0da41ae.so.11.0")
	for _, path := range []string{driver, runtimeCopy} {
		v.must("copy %s %s", v.library, path)
		v.must("dlopen %s", path)
	}
	found, err := find(t.Context())
	if err != nil && clierror.CodeOf(err) != clierror.Permission {
		t.Fatal(err)
	}
	is := func(pid int) func(candidate) bool { return func(c candidate) bool { return c.PID == uint32(pid) } }
	if slices.ContainsFunc(found, is(other.pid)) {
		t.Error("found a process without CUDA")
	}
	i := slices.IndexFunc(found, is(v.pid))
	if i < 0 {
		t.Fatalf("not found: %+v", found)
	}
	want := []string{driver, runtimeCopy}
	slices.Sort(want)
	if c := found[i]; !slices.Equal(c.Libraries, want) || c.Comm != "victim" || !strings.HasPrefix(c.Cmdline, v.path) {
		t.Errorf("%+v", c)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := find(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancel: %v", err)
	}
}

func TestIsCUDA(t *testing.T) {
	for base, want := range map[string]bool{
		"libcuda.so.1": true, "libcuda.so.580.159.03": true, "libcuda.so": true,
		"libcudart.so.13": true, "libcudart-d0da41ae.so.11.0": true,
		"libcudadebugger.so.1": false, "libcudnn.so.9": false, "libcudart.txt": false, "libcudart_static.a": false,
	} {
		if isCUDA(base) != want {
			t.Errorf("%s: %v", base, !want)
		}
	}
}

// asNobody runs f in a thread without root's rights, which then ends.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	needRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no more use
		// The system call itself: the wrapper would change every thread.
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		if errno == 0 {
			f()
			done <- nil
			return
		}
		done <- errno
	}()
	if err := <-done; err != nil {
		t.Skipf("cannot give up root: %v", err)
	}
}

func TestWithoutPermission(t *testing.T) {
	v := newVictim(t)
	asNobody(t, func() {
		if _, err := Describe(v.pid); clierror.CodeOf(err) != clierror.Permission ||
			!strings.Contains(err.Error(), "CAP_SYS_PTRACE") {
			t.Errorf("describing: %v", err)
		}
		_, err := New(Options{})
		if clierror.CodeOf(err) != clierror.Permission ||
			!strings.Contains(clierror.HintOf(err), "CAP_BPF and CAP_PERFMON") {
			t.Errorf("watching: %v (%s)", err, clierror.HintOf(err))
		}
		if m := newMapSource(newProcfs(procRoot), false); !strings.Contains(m.detail(), "CAP_PERFMON") {
			t.Errorf("mappings: %q", m.detail())
		}
		found, err := find(t.Context())
		if clierror.CodeOf(err) != clierror.Permission || !strings.Contains(err.Error(), "could not be looked into") ||
			len(found) != 0 {
			t.Errorf("finding: %v %v", found, err)
		}
	})
}

func BenchmarkFind(b *testing.B) {
	for b.Loop() {
		if _, err := find(b.Context()); err != nil && clierror.CodeOf(err) != clierror.Permission {
			b.Fatal(err)
		}
	}
}
