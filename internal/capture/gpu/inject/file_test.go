//go:build amd64 || arm64

package inject

import (
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A file is nobody's once the process that made it has ended, also while its parent has not heard of that.
func TestAbandoned(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	maker := exec.Command("cat")
	in, err := maker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(maker.Process.Pid)
	name := fmt.Sprintf("%s-%d-%d", fileName, pid, startTime(proc, pid))
	if abandoned(proc, name) {
		t.Errorf("%s is said to be nobody's while its maker lives", name)
	}
	if !abandoned(proc, fmt.Sprintf("%s-%d-%d", fileName, pid, 1)) {
		t.Error("a process that has the number of the maker is taken for it")
	}
	in.Close()
	var ended unix.Siginfo
	// it stays a zombie
	if err := unix.Waitid(unix.P_PID, int(pid), &ended, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !abandoned(proc, name) {
		t.Errorf("%s is said to be used by a process that has ended", name)
	}
	_ = maker.Wait()
	if !abandoned(proc, name) {
		t.Errorf("%s is said to be used by a process that is gone", name)
	}
	if abandoned(proc, "other") {
		t.Error("a file that we did not name is said to be ours")
	}
}
