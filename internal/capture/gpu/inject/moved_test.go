package inject

import (
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestRegistersOnAStackThatGrows: what the kernel reads and writes does not lie on a stack that the runtime moves when
// it grows. Each level of the recursion takes less of it than the calls below, so that these are where it grows.
func TestRegistersOnAStackThatGrows(t *testing.T) {
	needRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sleeper := exec.CommandContext(t.Context(), "sleep", "1000")
	must.NoError(t, sleeper.Start())
	defer func() { _ = sleeper.Wait() }()
	defer func() { _ = sleeper.Process.Kill() }()
	th, err := seize(sleeper.Process.Pid)
	must.NoError(t, err)
	must.NoError(t, ptrace(unix.PTRACE_INTERRUPT, th.tid, 0, 0))
	_, err = th.wait()
	must.NoError(t, err)
	want, err := th.registers()
	must.NoError(t, err)
	r := reading{th: th, want: want}
	r.deeper(20_000)
	if r.wrong != 0 {
		t.Errorf("other registers were read %d times", r.wrong)
	}
}

// reading counts how often other registers were read than those of a thread that stands.
type reading struct {
	th    *thread
	want  registers
	wrong int
}

//go:noinline
func (r *reading) again() {
	if got, err := r.th.registers(); err != nil || got != r.want {
		r.wrong++
	}
}

func (r *reading) deeper(depth int) {
	if depth > 0 {
		r.again()
		r.deeper(depth - 1)
	}
}
