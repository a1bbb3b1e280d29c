package profile_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// parentMode makes this program one that has a source with a helper, says the helper's
// pid, and then waits to be killed; its value is the pid to follow.
const parentMode = "INFERSCOPE_TEST_PARENT"

// TestMain lets this program be the helper of its own tests.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == profile.HelperArgument:
		if err := profile.RunHelper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(parentMode) != "":
		if err := parent(os.Getenv(parentMode)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func helper() []string { return []string{"/proc/self/exe"} }

func parent(pid string) error {
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		return err
	}
	p, err := proc.Describe(n)
	if err != nil {
		return err
	}
	s, err := profile.New(profile.Options{Helper: helper()})
	if err != nil {
		return err
	}
	if err := s.Follow(p); err != nil {
		return err
	}
	for len(s.Helpers()) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(s.Helpers()[0])
	select {}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
			return
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil &&
			strings.Contains(string(stat), ") Z ") {
			return // ended; whoever adopted it has not asked yet
		}
	}
	t.Fatalf("process %d is still there", pid)
}

// However the daemon ends, its helper ends.
func TestHelperEndsWithItsParent(t *testing.T) {
	needs.Root(t, "it samples other processes")
	v := start(t, buildBusy(t), "busy")
	v.tid(t, "main")
	t.Setenv(parentMode, fmt.Sprint(v.pid()))
	p := start(t, "/proc/self/exe")
	var pid int
	if _, err := fmt.Sscan(p.Line(), &pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatalf("there is no helper %d: %v", pid, err)
	}
	p.Kill()
	gone(t, pid)
}

func TestHelperEndsWithItsSource(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Helper: helper()})
	v := start(t, buildBusy(t), "busy")
	v.tid(t, "main")
	s.follow(v.pid())
	s.untilUnwinder()
	pid := s.Helpers()[0]
	must.NoError(t, s.Close())
	gone(t, pid)
}

// Where the helper dies, samples go on without native callers, and the state says why.
func TestHelperDies(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, Helper: helper()})
	v := start(t, buildBusy(t), "busy")
	tid := v.tid(t, "main")
	s.follow(v.pid())
	s.untilUnwinder()
	s.until("whole stacks", func(e []event.Event) bool { return countOrigin(clockOf(e, tid), event.Whole) > 0 })
	must.NoError(t, unix.Kill(s.Helpers()[0], unix.SIGKILL))
	s.until("the end to be noticed", func([]event.Event) bool {
		return strings.Contains(s.State().Detail, "stopped by itself") && len(s.Helpers()) == 0
	})
	n := countOrigin(clockOf(s.events, tid), event.Leaf)
	s.until("samples without it", func(e []event.Event) bool { return countOrigin(clockOf(e, tid), event.Leaf) > n+20 })
}

func TestHelperThatIsNone(t *testing.T) {
	needs.Root(t, "it samples other processes")
	for what, c := range map[string]struct {
		helper []string
		says   string
	}{
		"missing":     {[]string{"/nonexistent/helper"}, "no such file"},
		"ends":        {[]string{"/bin/false"}, "its helper process ended"},
		"complains":   {[]string{"/bin/sh", "-c", "echo no luck >&2"}, "no luck"},
		"refuses":     {[]string{os.Args[0], "-test.run=^$"}, "its helper process ended"},
		"says humbug": {[]string{"/bin/sh", "-c", "echo humbug >&3"}, "makes no sense"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSource(t, profile.Options{Hz: 199, Helper: c.helper})
			v := start(t, buildBusy(t), "busy")
			tid := v.tid(t, "main")
			s.follow(v.pid())
			s.until(
				"the reason",
				func([]event.Event) bool { return strings.Contains(s.State().Detail, "native unwinder: none: ") },
			)
			if d := s.State().Detail; !strings.Contains(d, c.says) {
				t.Errorf("the state is %q and does not say %q", d, c.says)
			}
			s.untilThread(tid, 5)
		})
	}
}

// The unwinder also works in the process itself, for programs that are no daemons.
func TestWithoutHelper(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199})
	v := start(t, buildBusy(t), "busy")
	tid := v.tid(t, "main")
	s.follow(v.pid())
	s.untilUnwinder()
	wholeNative(t, s, tid)
	if len(s.Helpers()) != 0 {
		t.Error("it has a helper")
	}
}

func TestRunHelperByHand(t *testing.T) {
	out, err := exec.Command("/proc/self/exe", profile.HelperArgument).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "inferscoped starts this itself") {
		t.Errorf("%v: %s", err, out)
	}
}
