package proc

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// asNobody runs f in a thread without root's rights, which then ends.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	needs.Root(t, "it loads BPF programs and looks into other processes")
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
	})
}

// TestRootIsNotToldToBeRoot: where the capability is there and does not help, other advice is given.
func TestRootIsNotToldToBeRoot(t *testing.T) {
	needs.Root(t, "it has CAP_SYS_PTRACE")
	if err := explainRead(1, os.ErrPermission); clierror.CodeOf(err) != clierror.Permission ||
		strings.Contains(clierror.HintOf(err), "root") || strings.Contains(err.Error(), "without") {
		t.Errorf("%v (%s)", err, clierror.HintOf(err))
	}
}
