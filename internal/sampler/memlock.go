package sampler

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The library raises RLIMIT_MEMLOCK before it loads a program, whether the kernel
// asks for it (before 5.11) or not, and gives up where CAP_SYS_RESOURCE is missing.
// There, and only there, a filter answers its call with "done" and changes nothing.

// memlockRefused says whether raising the limit would be refused. It changes nothing.
func memlockRefused() (bool, error) {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, nil, &limit); err != nil {
		return false, fmt.Errorf("read the limit of locked memory: %w", err)
	}
	if limit.Max == unix.RLIM_INFINITY {
		return false, nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return false, fmt.Errorf("read the own capabilities: %w", err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0, nil
}

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h), little-endian.
const (
	seccompNumber   = 0
	seccompArch     = 4
	seccompResource = 16 + 8*1 // prlimit64(pid, RESOURCE, new, old)
	seccompNewLow   = 16 + 8*2
	seccompNewHigh  = 16 + 8*2 + 4
)

// memlockFilter lets every system call through but a change of RLIMIT_MEMLOCK, which
// it answers with success without making it.
func memlockFilter(arch uint32) []unix.SockFilter {
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	// equal goes on where the value is k, else to the instruction past n others.
	equal := func(k uint32, t, f uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: t, Jf: f}
	}
	return []unix.SockFilter{
		load(seccompArch), equal(arch, 0, 9),
		load(seccompNumber), equal(uint32(unix.SYS_PRLIMIT64), 0, 7),
		load(seccompResource), equal(unix.RLIMIT_MEMLOCK, 0, 5),
		load(seccompNewLow), equal(0, 0, 2), // a null pointer only asks
		load(seccompNewHigh), equal(0, 1, 0),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

// filterMemlock puts the filter on every thread of this process, for its lifetime.
func filterMemlock() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no filter for %s", runtime.GOARCH)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := installFilter(memlockFilter(arch))
	if errors.Is(err, unix.EACCES) {
		// Without CAP_SYS_ADMIN the kernel wants a promise that no program with more
		// rights is started; none is.
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			err = installFilter(memlockFilter(arch))
		}
	}
	if err != nil {
		return fmt.Errorf("answer the change of RLIMIT_MEMLOCK (needs CAP_SYS_RESOURCE, or seccomp): %w", err)
	}
	return nil
}

// seccomp(2), include/uapi/linux/seccomp.h.
const (
	seccompSetModeFilter = 1
	seccompTsync         = 1 // for all threads
)

func installFilter(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompSetModeFilter, seccompTsync, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
