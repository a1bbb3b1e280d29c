// Package helper starts this program again as a helper process, connected by a socket over which descriptors go, and
// gives it a name of its own, for people who look at a host: a program that starts itself again by /proc/self/exe is
// "exe" to all tools otherwise.
package helper

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Of helper processes: what stands before their arguments, and what the kernel calls their threads (15 bytes at most).
var (
	Probes = procName{"inferscope-probes", "iscope-probes"}
	Inject = procName{"inferscope-inject", "iscope-inject"}
	Unwind = procName{"inferscope-unwind", "iscope-unwind"}
	Record = procName{"inferscope-record", "iscope-record"}
)

// procName is what a process is called.
type procName struct{ args, comm string }

// Give makes cmd start under the name.
func (n procName) Give(cmd *exec.Cmd) { cmd.Args[0] = n.args }

// Take names the threads that this process has; those that they start inherit it. A process that may not write
// to its own /proc keeps its old name.
func (n procName) Take() {
	files, _ := filepath.Glob("/proc/self/task/*/comm") // the pattern is well formed
	for _, f := range files {
		_ = os.WriteFile(f, []byte(n.comm), 0)
	}
}
