package proc

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// maxAuxv is more than the auxiliary vector of any kernel, bytes.
const maxAuxv = 4 << 10

// Image returns what tells the programs that a process runs one after another apart: its
// auxiliary vector, with the addresses that execve(2) chose.
func Image(p *Process) (string, error) {
	b, err := procfile.Head(fmt.Sprintf("/proc/%d/auxv", p.PID), maxAuxv)
	if err == nil && !p.Alive() {
		err = unix.ESRCH
	}
	return string(b), err
}
