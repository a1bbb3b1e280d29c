//go:build amd64 || arm64

package inject

import (
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
		during, _ = unix.SchedGetAttr(0, 0)
		err = cat.Start()
		setNormalPriority()
		after, _ = unix.SchedGetAttr(0, 0)
	})
	<-done
	if during == nil {
		t.Skip("needs real-time scheduling")
	}
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.SchedGetAttr(cat.Process.Pid, 0)
	_ = in.Close()
	if err != nil || cat.Wait() != nil {
		t.Fatal(err)
	}
	if during.Policy != unix.SCHED_FIFO || child.Policy != unix.SCHED_NORMAL || after.Policy != unix.SCHED_NORMAL {
		t.Errorf("policies: %d with priority, %d of a child, %d afterwards", during.Policy, child.Policy, after.Policy)
	}
}
