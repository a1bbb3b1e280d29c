package request_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestOlderHooks: what older kernels offer in place of the tracepoints of sockets shows the same.
func TestOlderHooks(t *testing.T) {
	for i, hooks := range request.Hooks()[1:] {
		undo := request.UseHooks(i + 1)
		t.Run(hooks, func(t *testing.T) { sameThroughOtherHooks(t, hooks) })
		undo()
	}
}

func sameThroughOtherHooks(t *testing.T, hooks string) {
	source, err := request.New(request.Options{Mode: mode(t)})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
		t.Skip("needs a kernel with these hooks: ", err)
	}
	must.NoError(t, err)
	detail := source.State().Detail
	if !strings.Contains(detail, "sockets are observed by "+hooks) ||
		!strings.Contains(detail, "splice") {
		t.Errorf("the state does not tell of the hooks: %s", detail)
	}
	_ = source.Close()
	for name, test := range map[string]func(*testing.T){
		"times": TestTimes, "streams": TestStreams, "client leaves": TestClientLeaves, "others": TestOthersAreNotSeen,
		"upload": TestLongUpload, "lost": TestLostTransfers, "HTTP/2": TestStreamsOfHTTP2, "TLS": TestTLS,
		"engine": TestEngine,
	} {
		if testing.Short() && (name == "lost" || name == "upload" || name == "client leaves") {
			continue // takes long, and depends least on the hooks
		}
		t.Run(name, test)
	}
}

// TestFirstHooksAreNotNamed: the state has no more to say where nothing is missed.
func TestFirstHooksAreNotNamed(t *testing.T) {
	source := newSource(t, 0)
	if detail := source.State().Detail; strings.Contains(detail, "sockets are observed by") {
		t.Error(detail)
	}
}

// newSource returns a source with the hooks of this index.
func newSource(t *testing.T, hooks int) *request.Source {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	t.Cleanup(request.UseHooks(hooks))
	source, err := request.New(request.Options{Mode: mode(t)})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
		t.Skip("needs a kernel with these hooks: ", err)
	}
	must.NoError(t, err)
	t.Cleanup(func() { _ = source.Close() })
	return source
}

// TestSyscallsAreHookedOnDemand: the hook that every system call of the machine pays for is there only while requests
// of a process are recorded.
func TestSyscallsAreHookedOnDemand(t *testing.T) {
	source := newSource(t, len(request.Hooks())-1)
	self, err := proc.Describe(os.Getpid())
	must.NoError(t, err)
	other, err := proc.Describe(os.Getppid())
	must.NoError(t, err)
	follow := func(p *proc.Process) func() error { return func() error { return source.Follow(p) } }
	forget := func(p *proc.Process) func() error { return func() error { source.Forget(p); return nil } }
	level := func(n int) func() error { return func() error { return source.SetLevel(n) } }
	off := len(source.Levels()) - 1
	for _, step := range []struct {
		name  string
		do    func() error
		links int
	}{
		{"before the first process", func() error { return nil }, 0},
		{"first process", follow(self), 1},
		{"the same again", follow(self), 1},
		{"second process", follow(other), 1},
		{"off", level(off), 0},
		{"on", level(0), 1},
		{"one is left", forget(other), 1},
		{"none is left", forget(self), 0},
		{"off without a process", level(off), 0},
		{"a process while off", follow(self), 0},
		{"on with it", level(0), 1},
		{"closed without it", forget(self), 0},
		{"on without a process", level(1), 0},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if n, err := source.SyscallLinks(); err != nil || n != step.links {
			t.Errorf("%s: %d links instead of %d, %v", step.name, n, step.links, err)
		}
	}
}

// TestSystemCallsAreCounted: calls that transfer nothing cost their process, too, also those that fail.
func TestSystemCallsAreCounted(t *testing.T) {
	source := newSource(t, len(request.Hooks())-1)
	self, err := proc.Describe(os.Getpid())
	must.NoError(t, err)
	must.NoError(t, source.Follow(self))
	const calls = 1000
	before, runs := source.Syscalls(self.PID), source.Runs(self.PID)
	for range calls {
		_, _ = unix.Getpgid(-1) // it fails
	}
	after, ran := source.Syscalls(self.PID), source.Runs(self.PID)
	if after < before+calls {
		t.Errorf("%d of %d calls were counted", after-before, calls)
	}
	if ran.Count < runs.Count+calls || ran.NS < runs.NS+300*calls {
		t.Errorf("the account of %d calls went from %+v to %+v", calls, runs, ran)
	}
	source.Forget(self)
	if all := source.Runs(0); all.Count < after || all.NS < 300*after {
		t.Errorf("%d calls of a process that is gone are accounted as %+v", after, all)
	}
}

// TestLacksHooks: only a kernel without hooks makes load try the next.
func TestLacksHooks(t *testing.T) {
	for _, err := range []error{
		ebpf.ErrNotSupported, btf.ErrNotFound, unix.ENOENT, unix.EPERM, unix.EOPNOTSUPP, unix.Errno(524),
	} {
		if !request.LacksHooks(fmt.Errorf("attach: %w", err)) {
			t.Errorf("%v ends the search", err)
		}
	}
	for _, err := range []error{
		unix.EACCES, unix.EINVAL, unix.ENOMEM, unix.E2BIG, unix.EMFILE, errors.New("other"),
		fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: unix.EACCES}),
	} {
		if request.LacksHooks(fmt.Errorf("attach: %w", err)) {
			t.Errorf("%v is passed over", err)
		}
	}
}
