//go:build amd64 || arm64

package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Everything that makes a process awkward, and is no obstacle.
func TestLoadDespite(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	for name, args := range map[string][]string{
		"handlers of the usual signals": {"--handle", "23,28", "--alt"},
		"handlers of all but SIGCONT":   {"--handle", "23,28,17"},
		"children all the time":         {"--children", "--handle", "23", "--threads", "4"},
		"profiling timer":               {"--profile", "--alt", "--threads", "2"},
		"a seccomp filter that logs":    {"--seccomp", "log"},
		"128 kB of stack":               {"--stack", "131072"},
		"stacks guarded without a hole": {"--guard"},
		"two threads that pause":        {"--threads", "2", "--pause", "100"},
		"a thread that blocks signals":  {"--threads", "2", "--one-blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			if slices.Contains(args, "--guard") && !haveGuards(t) {
				t.Skip("this kernel has no MADV_GUARD_INSTALL (6.13)")
			}
			v := start(t, args...)
			_, _, before := v.count()
			for range 3 {
				load(t, in, v, im)
				v.unharmed()
			}
			if _, _, after := v.count(); after != before && len(args) == 2 {
				t.Errorf("a handler of the victim's ran %d times", after-before)
			}
			v.finish()
		})
	}
}

func haveGuards(t *testing.T) bool {
	t.Helper()
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(page) }()
	const install = 102 // MADV_GUARD_INSTALL
	return unix.Madvise(page, install) == nil
}

// Every reason to leave a process alone; it goes on as if nothing had happened.
func TestRefused(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	for name, tt := range map[string]struct {
		args []string
		want error
	}{
		"every signal handled":        {[]string{"--handle", "23,28,17,18"}, errSignal},
		"every signal blocked":        {[]string{"--blocks"}, errSignal},
		"seccomp kills memfd_create":  {[]string{"--seccomp", "kill"}, errSeccomp},
		"seccomp denies memfd_create": {[]string{"--seccomp", "errno"}, errSeccomp},
		"seccomp sends SIGSYS":        {[]string{"--seccomp", "trap"}, errSeccomp},
		"seccomp denies threads":      {[]string{"--seccomp", "thread"}, errSeccomp},
		"64 kB of stack":              {[]string{"--stack", "65536"}, ErrStack},
		"fibers":                      {[]string{"--fiber"}, ErrStack},
		"it makes no call":            {[]string{"--idle"}, ErrIdle},
	} {
		t.Run(name, func(t *testing.T) {
			if slices.Contains(tt.args, "65536") && runtime.GOARCH == "arm64" {
				t.Skip("libc makes no stacks below 128 kB there")
			}
			v := start(t, tt.args...)
			limit := 20 * time.Second
			if errors.Is(tt.want, ErrIdle) || errors.Is(tt.want, ErrStack) ||
				slices.Contains(
					tt.args,
					"--blocks",
				) { // only the end of the time says that there is no thread that would do
				limit = 3 * time.Second
			}
			_, err := in.Load(within(t, limit), v.process, im)
			t.Logf("%v (%s)", err, HintOf(err))
			if !errors.Is(err, tt.want) || HintOf(err) == "" {
				t.Fatalf("%v (hint %q), want %v with a hint", err, HintOf(err), tt.want)
			}
			fmt.Fprintln(v.in, "work")
			v.unharmed()
			if v.copies() != 0 {
				t.Error("an image is mapped")
			}
			v.finish()
		})
	}
}

// Where no thread that calls CUDA can be used, its calls do not pay for a probe all of the time.
func TestRefusedAreLeftAlone(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("libc makes no stacks below 128 kB there")
	}
	in := newInjector(t)
	var lock sync.Mutex
	var steps []string
	in.step = func(name string) {
		lock.Lock()
		defer lock.Unlock()
		if name == "armed" || name == "coming off" {
			steps = append(steps, name)
		}
	}
	v, im := start(t, "--stack", "65536"), testImage(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := in.Load(ctx, v.process, im)
		over <- err
	}()
	seen := func() []string {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(steps)
	}
	for end := time.Now().Add(20 * time.Second); len(seen()) < 4 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("a thread with too small a stack was used")
	}
	if got := seen(); len(got) < 4 || !slices.Equal(got[:4], []string{"armed", "coming off", "armed", "coming off"}) {
		t.Errorf("the probes went on and off as %v", got)
	}
	v.unharmed()
	v.finish()
}

func TestRefusedStatic(t *testing.T) {
	in := newInjector(t)
	v := startCmd(t, exec.Command(filepath.Join(injectees(t), "injectee-static")))
	_, err := in.Load(within(t, time.Second), v.process, testImage(t))
	if !errors.Is(err, errLibc) {
		t.Fatalf("%v, want %v", err, errLibc)
	}
	v.unharmed()
	v.finish()
}

func TestRefuseEndedProcess(t *testing.T) {
	in := newInjector(t)
	v := start(t)
	v.finish()
	if _, err := in.Load(within(t, time.Second), v.process, testImage(t)); !errors.Is(err, ErrGone) {
		t.Fatalf("%v, want %v", err, ErrGone)
	}
}

// A stopped process stays stopped, and goes on when it is told to.
func TestRefusedStopped(t *testing.T) {
	in := newInjector(t)
	v := start(t)
	if err := unix.Kill(int(v.process.PID), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := in.Load(within(t, time.Second), v.process, testImage(t))
	if !errors.Is(err, ErrIdle) && !errors.Is(err, ErrStopped) {
		t.Errorf("%v, want %v", err, ErrIdle)
	}
	if s, err := readStatus(int(v.process.PID), int(v.process.PID)); err != nil || s.state != 'T' {
		t.Errorf("state %c, %v: it was not left stopped", s.state, err)
	}
	if err := unix.Kill(int(v.process.PID), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	load(t, in, v, testImage(t))
	v.unharmed()
	v.finish()
}

// Stops and continuations from outside, all the time, are neither lost nor harmful.
func TestStoppedAllTheTime(t *testing.T) {
	in := newInjector(t)
	v := start(t, "--threads", "2")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				_ = unix.Kill(int(v.process.PID), unix.SIGCONT)
				return
			default:
				_ = unix.Kill(int(v.process.PID), unix.SIGSTOP)
				time.Sleep(time.Millisecond)
				_ = unix.Kill(int(v.process.PID), unix.SIGCONT)
				time.Sleep(2 * time.Millisecond)
			}
		}
	}()
	for range 30 {
		r, err := in.Load(within(t, 5*time.Second), v.process, testImage(t))
		if err == nil {
			_, err = greet(within(t, 5*time.Second), v, testImage(t), &r)
			r.FD.Close()
		}
		if err != nil {
			t.Log(err)
		}
	}
	close(stop)
	<-done
	v.unharmed()
	v.finish()
}

func TestOtherNamespaces(t *testing.T) {
	in := newInjector(t)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(injectees(t), "injectee")
	for name, tt := range map[string]struct {
		args []string
		want error
	}{
		"mount":                       {[]string{"--mount", program}, nil},
		"pid and mount":               {[]string{"--pid", "--fork", "--mount-proc", "--kill-child", program}, nil},
		"pid, with the outer's /proc": {[]string{"--pid", "--fork", "--kill-child", program}, nil},
		"user":                        {[]string{"--user", "--map-root-user", program}, nil},
		"chroot without a /proc":      {[]string{"--mount", program, "--chroot", t.TempDir()}, errProc},
	} {
		t.Run(name, func(t *testing.T) {
			v := startCmd(t, exec.Command(unshare, tt.args...))
			if child := childOf(t, v.cmd.Process.Pid); child != 0 {
				v.describe(child)
			}
			if tt.want != nil {
				if _, err := in.Load(within(t, time.Second), v.process, testImage(t)); !errors.Is(err, tt.want) {
					t.Fatalf("%v, want %v", err, tt.want)
				}
			} else {
				_, h := load(t, in, v, testImage(t))
				t.Logf("it calls itself %d", h.PID)
			}
			v.unharmed()
			v.finish()
		})
	}
}

// childOf returns the only child of a process; 0: it has none.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Skip("the kernel does not list children: ", err)
	}
	return int(number(string(text[:max(0, len(text)-1)])))
}

// meanwhileStep returns how far apart the moments are that are tried of an injection, in ms.
func meanwhileStep() int {
	if testing.Short() {
		return 18
	}
	return 6
}

// A process that ends, or becomes another program, while an image is injected.
func TestEndsMeanwhile(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	for ms := 20; ms < 200; ms += meanwhileStep() {
		v := start(t, "--end", fmt.Sprint(ms), "--threads", "4")
		_, err := in.Load(within(t, 3*time.Second), v.process, im)
		if err != nil && !errors.Is(err, ErrGone) {
			t.Errorf("%d ms: %v", ms, err)
		}
		if err := v.cmd.Wait(); err != nil {
			t.Fatalf("%d ms: the victim: %v; stderr: %s", ms, err, v.stderr.String())
		}
	}
}

func TestExecsMeanwhile(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	loaded := 0
	for ms := 20; ms < 200; ms += meanwhileStep() {
		v := start(t, "--exec", fmt.Sprint(ms), "--threads", "4")
		r, err := in.Load(within(t, 500*time.Millisecond), v.process, im)
		if err == nil {
			loaded++
			r.FD.Close()
		} else {
			t.Log(err)
		}
		v.readLine("ready")
		v.unharmed()
		v.finish()
	}
	t.Logf("loaded %d times", loaded)
}

// A child of vfork runs in its parent's memory.
func TestRefusedShared(t *testing.T) {
	in := newInjector(t)
	v := start(t, "--vfork")
	child := 0
	for child == 0 {
		for _, tid := range v.tids() {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", v.process.PID, tid)); err == nil &&
				len(text) > 1 {
				child = int(number(string(text[:len(text)-1])))
			}
		}
		time.Sleep(time.Millisecond)
	}
	parent := v.process
	v.describe(child)
	_, err := in.Load(within(t, time.Second), v.process, testImage(t))
	if !errors.Is(err, ErrShared) {
		t.Errorf("%v, want %v", err, ErrShared)
	}
	t.Log(err)
	_ = unix.Kill(child, unix.SIGKILL) // so that the parent may end
	v.process = parent
	v.unharmed()
}

// Who is under a filter itself, as a daemon in a container is, may not ask ptrace for the target's: the thread's own
// copy says what they forbid, and what they allow is injected.
func TestFiltersThatPtraceDoesNotTell(t *testing.T) {
	for _, tt := range []struct {
		name, filter string
		refused      bool
	}{
		{"allowed", "log", false},
		{"forbidden", "errno", true},
		{"killing", "kill", true},
		{"threads forbidden", "thread", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, asked := newInjector(t), false
			in.step = func(name string) {
				if name != "seized" {
					return
				}
				allow := program{{Op: opReturnK, K: verdictAllow}}
				if err := installFilter(allow); err != nil {
					t.Error(err)
				}
				asked = true
			}
			v := start(t, "--seccomp", tt.filter)
			result, err := in.Load(within(t, 5*time.Second), v.process, testImage(t))
			t.Log(err)
			if !asked {
				t.Error("this thread was not put under a filter")
			}
			if got := errors.Is(err, errSeccomp); got != tt.refused || !tt.refused && err != nil {
				t.Errorf("%v", err)
			}
			if result.FD != nil {
				_ = result.FD.Close()
			}
			v.unharmed()
			v.finish()
		})
	}
}

func TestStatus(t *testing.T) {
	s := parseStatus([]byte(
		"Name:\tx\\nTracerPid:\t7\nState:\tt (tracing stop)\nTgid:\t12\nNStgid:\t12\t3\nTracerPid:\t5\n" +
			"Seccomp:\t2\nSigBlk:\t0000000000010000\nSigCgt:\tnonsense\nx86_Thread_features:\tshstk wrss \n",
	))
	if s.state != 't' || s.tgid != 12 || len(s.nspids) != 2 || s.nspids[1] != 3 || s.tracer != 5 || s.seccomp != 2 ||
		s.blocked != 1<<16 ||
		s.caught != ^uint64(0) {
		t.Errorf("%+v", s)
	}
	if err := noShadow(nil, s); !errors.Is(err, errShadow) || HintOf(err) == "" {
		t.Errorf("a shadow stack: %v", err)
	}
	if err := noShadow(nil, status{features: "wrss"}); err != nil {
		t.Errorf("no shadow stack: %v", err)
	}
}

func TestDenied(t *testing.T) {
	for _, err := range []error{unix.EPERM, unix.EACCES} {
		got := denied(os.Getpid(), err)
		if !errors.Is(got, errDenied) || !errors.Is(got, err) || HintOf(got) == "" {
			t.Errorf("%v: %v (%s)", err, got, HintOf(got))
		}
	}
	if got := denied(os.Getpid(), unix.ESRCH); !errors.Is(got, errThreadGone) {
		t.Error(got)
	}
}
