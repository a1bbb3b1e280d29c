//go:build amd64 || arm64

package inject

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRealTimePriorityIsNotInherited: what a thread of real-time priority starts may run for as long as it likes.
func TestRealTimePriorityIsNotInherited(t *testing.T) {
	cat := exec.Command("cat")
	in, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var during, after *unix.SchedAttr
	done := make(chan struct{})
	go onOwnThread(func() {
		defer close(done)
		if !setRealTimePriority() {
			return
		}
		if during, err = unix.SchedGetAttr(0, 0); err != nil {
			return
		}
		err = cat.Start()
		setNormalPriority()
		after, _ = unix.SchedGetAttr(0, 0)
	})
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if during == nil {
		t.Skip("needs real-time scheduling")
	}
	child, err := unix.SchedGetAttr(cat.Process.Pid, 0)
	_ = in.Close()
	if err = errors.Join(err, cat.Wait()); err != nil {
		t.Fatal(err)
	}
	if during.Policy != unix.SCHED_FIFO || child.Policy != unix.SCHED_NORMAL || after.Policy != unix.SCHED_NORMAL {
		t.Errorf("policies: %d with priority, %d of a child, %d afterwards", during.Policy, child.Policy, after.Policy)
	}
}
