package uprobe

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// errShadowStack means that the returns of functions are not probed: to do so would kill the process.
var errShadowStack = errors.New("the process has shadow stacks, which Linux before 6.11 does not keep right where a " +
	"return is probed: start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off")

// returnsKill returns errShadowStack where a return probe would kill the process pid. The kernel puts the address of
// its trampoline in place of the return address, and only since 6.11 on the shadow stack too ("x86/shstk: Make return
// uprobe work with shadow stack"): before, the thread gets SIGSEGV when the function returns.
func returnsKill(pid uint32) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel's version: %w", err)
	}
	if keepsShadowStacks(unix.ByteSliceToString(u.Release[:])) {
		return nil
	}
	status, err := procfile.ReadStatus(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil //nolint:nilerr // it has gone: the attachment says so
	}
	if hasShadowStack(status) {
		return errShadowStack
	}
	return nil
}

// keepsShadowStacks reports whether a kernel of that release puts return probes on shadow stacks. One whose release
// cannot be read counts as old.
func keepsShadowStacks(release string) bool {
	var major, minor int
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || n != 2 {
		return false
	}
	return major > 6 || major == 6 && minor >= 11
}

// hasShadowStack reads the text of /proc/PID/status (x86_Thread_features: since Linux 6.6).
func hasShadowStack(status procfile.Status) bool {
	return strings.Contains(status.Field("x86_Thread_features"), "shstk")
}
