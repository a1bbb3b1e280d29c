package sampler

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const memlockChild = "INFERSCOPE_TEST_MEMLOCK_CHILD"

// The filter stays for the life of a process, so it is tried in one of its own.
func TestMemlockFilter(t *testing.T) {
	if os.Getenv(memlockChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestMemlockFilter$")
		cmd.Env = append(os.Environ(), memlockChild+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := tryFilter(); err != nil {
		t.Fatal(err)
	}
}

func tryFilter() error {
	var before, after, other unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before), unix.Getrlimit(unix.RLIMIT_CORE, &other), filterMemlock()); err != nil {
		return err
	}
	// What nobody may do without CAP_SYS_RESOURCE, and what would do harm if it were done.
	more := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	for _, want := range []unix.Rlimit{more, {}} {
		if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &want, nil); err != nil {
			return fmt.Errorf("the library's call is refused: %w", err)
		}
	}
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, nil, &after); err != nil || after != before {
		return fmt.Errorf("the limit is %+v, was %+v: %w", after, before, err)
	}
	other.Cur = 0
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &other, nil); err != nil {
		return err
	}
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &after); err != nil || after.Cur != 0 {
		return fmt.Errorf("another limit cannot be changed any more: %+v: %w", after, err)
	}
	return nil
}
