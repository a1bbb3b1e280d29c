// Package confine gives up what a process does not need, for itself and for all programs that it starts.
package confine

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Capabilities gives up all capabilities but those of keep that this process has, on all threads. Where it has
// CAP_SETPCAP, as root has, programs that it starts cannot have them either; without, they have what this process may
// pass on.
func Capabilities(keep ...cap.Value) error {
	had := cap.GetProc()
	var drop []cap.Value
	left := cap.NewSet()
	for c := range cap.MaxBits() {
		if !contains(keep, c) {
			drop = append(drop, c)
			continue
		}
		for _, flag := range []cap.Flag{cap.Effective, cap.Permitted, cap.Inheritable} {
			has, err := had.GetFlag(flag, c)
			if err == nil && has {
				err = left.SetFlag(flag, true, c)
			}
			if err != nil {
				return fmt.Errorf("capability %v: %w", c, err)
			}
		}
	}
	if may, _ := had.GetFlag(cap.Effective, cap.SETPCAP); may {
		if err := cap.DropBound(drop...); err != nil {
			return fmt.Errorf("taking capabilities out of the bounding set: %w", err)
		}
	}
	if err := left.SetProc(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

func contains(all []cap.Value, one cap.Value) bool {
	for _, c := range all {
		if c == one {
			return true
		}
	}
	return false
}

// refused are system calls that change the machine, its clock, its mounts or namespaces, or that are a way around the
// rest of the list. Nothing here makes them, nor does nvidia-smi.
var refused = []string{
	"acct", "add_key", "adjtimex", "chroot", "clock_adjtime", "clock_settime", "delete_module", "finit_module",
	"fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register",
	"io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl", "mount", "mount_setattr",
	"move_mount", "open_by_handle_at", "open_tree", "pivot_root", "quotactl", "quotactl_fd", "reboot",
	"request_key", "setdomainname", "setns", "sethostname", "settimeofday", "swapoff", "swapon", "umount2",
	"unshare", "userfaultfd", "vhangup",
}

// Syscalls has the kernel refuse, with EPERM, what no part of InferScope calls, on all threads and in all programs that
// this one starts. It also sets no_new_privs: no program that it starts has more rights than it.
func Syscalls() error {
	table, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("system calls of this architecture: %w", err)
	}
	var names []string
	for _, name := range refused {
		if _, known := table.SyscallNames[name]; known {
			names = append(names, name)
		}
	}
	runtime.LockOSThread() // no_new_privs is a thread's own until the filter is every thread's
	defer runtime.UnlockOSThread()
	err = seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true, Flag: seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionErrno, Names: names}},
		},
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("this kernel has no filters of system calls: %w", err)
	}
	return err
}

// Files lets this process write in these folders alone, with Landlock of Linux 5.19: before, it lets no file be moved
// from one folder to another, so that nothing is confined there. It must not be used in a process that looks into
// others: Landlock keeps a confined process from tracing processes outside (Documentation/userspace-api/landlock.rst,
// "Ptrace restrictions").
func Files(writable ...string) error {
	err := landlock.V5.BestEffort().RestrictPaths(landlock.RODirs("/"),
		landlock.RWFiles("/dev/null").IgnoreIfMissing(), landlock.RWDirs(writable...).WithRefer())
	if err != nil {
		return fmt.Errorf("allowing writes in %v alone: %w", writable, err)
	}
	return nil
}
