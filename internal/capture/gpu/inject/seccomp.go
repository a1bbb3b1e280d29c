package inject

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// program is one seccomp filter, of classic BPF; an instruction is laid out as struct sock_filter.
type program []bpf.RawInstruction

const maxFilters = 256

var errFilter = errors.New("not a seccomp filter that this program understands")

// call is a system call for a filter to judge: struct seccomp_data without the architecture.
type call struct {
	name   string
	number uint32
	ip     uint64
	args   [6]uint64
	spared bool // who makes it does without where it fails
}

// data is struct seccomp_data as package bpf reads it: a packet, with each word in network byte order. Filters load no
// other unit than aligned words (seccomp_check_filter, kernel/seccomp.c).
func (c *call) data() []byte {
	b := make([]byte, 0, seccompBytes)
	b = binary.BigEndian.AppendUint32(b, c.number)
	b = binary.BigEndian.AppendUint32(b, auditArch)
	for _, v := range append([]uint64{c.ip}, c.args[:]...) {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
		b = binary.BigEndian.AppendUint32(b, uint32(v>>32))
	}
	return b
}

// seccompBytes is the size of struct seccomp_data.
const seccompBytes = 64

// run evaluates p on data as the kernel does, and returns its verdict. Jumps go forward only, so it ends.
func (p program) run(data []byte) (uint32, error) {
	instructions, ok := bpf.Disassemble(p)
	if !ok {
		return 0, errFilter
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errFilter, err)
	}
	verdict, err := vm.Run(data)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errFilter, err)
	}
	return uint32(verdict), nil
}

// What a filter can decide (include/uapi/linux/seccomp.h); of several filters the
// verdict that is lowest as a signed number counts.
const (
	verdictKillProcess = 0x80000000
	verdictKillThread  = 0x00000000
	verdictTrap        = 0x00030000
	verdictErrno       = 0x00050000
	verdictNotify      = 0x7fc00000
	verdictTrace       = 0x7ff00000
	verdictLog         = 0x7ffc0000
	verdictAllow       = 0x7fff0000
	verdictAction      = 0xffff0000
)

// judge returns the verdict of all filters on c.
func judge(filters []program, c *call) (uint32, error) {
	verdict := uint32(verdictAllow)
	data := c.data()
	for _, p := range filters {
		v, err := p.run(data)
		if err != nil {
			return 0, err
		}
		if int32(v&verdictAction) < int32(verdict&verdictAction) {
			verdict = v
		}
	}
	return verdict, nil
}

// allowed returns nil where the filters let every call through, and else says which not.
func allowed(filters []program, calls []call) error {
	for i := range calls {
		c := &calls[i]
		v, err := judge(filters, c)
		if err != nil {
			return err
		}
		action := v & verdictAction
		if action == verdictAllow || action == verdictLog {
			continue
		}
		if action == verdictErrno &&
			(c.spared || v&0xffff == uint32(unix.ENOSYS) && c.number == unix.SYS_CLONE3) { // libc takes clone instead
			continue
		}
		return fmt.Errorf("it answers %s with %s", c.name, actionName(v))
	}
	return nil
}

func actionName(v uint32) string {
	switch v & verdictAction {
	case verdictKillProcess, verdictKillThread:
		return "killing the process"
	case verdictTrap:
		return "SIGSYS"
	case verdictErrno:
		return fmt.Sprintf("error %d (%v)", v&0xffff, unix.Errno(v&0xffff))
	case verdictNotify, verdictTrace:
		return "asking a supervisor"
	}
	return fmt.Sprintf("verdict %#x", v)
}

// calls are what loading an image and what it does later come to. A filter may kill for one that is not among them: the
// tests hold the agent's sources against it, and let an agent run under a filter of these alone.
func calls() []call { return append(loaderCalls(), agentCalls()...) }

// loaderCalls are those of the way in, of libc's loader, and of a thread's beginning and end.
func loaderCalls() []call {
	const (
		readExec = unix.PROT_READ | unix.PROT_EXEC
		threads  = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
			unix.CLONE_SYSVSEM |
			unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	)
	return []call{
		{
			name:   "memfd_create",
			number: unix.SYS_MEMFD_CREATE,
			args:   [6]uint64{1: unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING},
		},
		{name: "rt_sigreturn", number: unix.SYS_RT_SIGRETURN},
		{name: "openat", number: unix.SYS_OPENAT, args: [6]uint64{1: unix.O_RDONLY | unix.O_CLOEXEC}},
		{name: "read", number: unix.SYS_READ},
		{name: "pread64", number: unix.SYS_PREAD64},
		{name: "pwrite64", number: unix.SYS_PWRITE64},
		{name: "fstat", number: unix.SYS_FSTAT},
		{name: "newfstatat", number: unix.SYS_NEWFSTATAT}, // what fstat is in glibc 2.33 and later
		{name: "brk", number: unix.SYS_BRK},
		{name: "getrandom", number: unix.SYS_GETRANDOM, spared: true},
		{name: "close", number: unix.SYS_CLOSE},
		{name: "mmap of code", number: unix.SYS_MMAP, args: [6]uint64{2: readExec, 3: unix.MAP_PRIVATE}},
		{
			name:   "mmap of memory",
			number: unix.SYS_MMAP,
			args:   [6]uint64{2: unix.PROT_READ | unix.PROT_WRITE, 3: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS},
		},
		{name: "mprotect", number: unix.SYS_MPROTECT, args: [6]uint64{2: unix.PROT_READ}},
		{name: "munmap", number: unix.SYS_MUNMAP},
		{name: "madvise", number: unix.SYS_MADVISE},
		{name: "rt_sigprocmask", number: unix.SYS_RT_SIGPROCMASK},
		{name: "clone3", number: unix.SYS_CLONE3},
		{name: "clone of a thread", number: unix.SYS_CLONE, args: [6]uint64{0: threads}},
		{name: "set_robust_list", number: unix.SYS_SET_ROBUST_LIST},
		{name: "rseq", number: unix.SYS_RSEQ, spared: true},
		{name: "futex", number: unix.SYS_FUTEX},
		{name: "exit", number: unix.SYS_EXIT},
	}
}

// agentCalls are those that the agent makes beside them (agent/src/sys.h). What it asks for its own thread alone - a
// name, any CPU, no priority - it does without.
func agentCalls() []call {
	return []call{
		{name: "rt_sigaction", number: unix.SYS_RT_SIGACTION},
		{
			name:   "mmap of a shared ring",
			number: unix.SYS_MMAP,
			args:   [6]uint64{2: unix.PROT_READ | unix.PROT_WRITE, 3: unix.MAP_SHARED},
		},
		{name: "ftruncate", number: unix.SYS_FTRUNCATE},
		{name: "fcntl(F_ADD_SEALS)", number: unix.SYS_FCNTL, args: [6]uint64{1: unix.F_ADD_SEALS}},
		{name: "statx", number: unix.SYS_STATX},
		{name: "getpid", number: unix.SYS_GETPID},
		{name: "gettid", number: unix.SYS_GETTID},
		{name: "tgkill", number: unix.SYS_TGKILL},
		{name: "getdents64", number: unix.SYS_GETDENTS64},
		{
			name:   "process_vm_readv",
			number: unix.SYS_PROCESS_VM_READV,
			spared: true,
		}, // /proc/self/mem, in its place
		{
			name:   "clock_gettime",
			number: unix.SYS_CLOCK_GETTIME,
			args:   [6]uint64{0: unix.CLOCK_MONOTONIC},
		}, // where the vDSO cannot tell
		{name: "prctl(PR_SET_NAME)", number: unix.SYS_PRCTL, args: [6]uint64{0: unix.PR_SET_NAME}, spared: true},
		{name: "sched_getaffinity", number: unix.SYS_SCHED_GETAFFINITY, spared: true},
		{name: "sched_setaffinity", number: unix.SYS_SCHED_SETAFFINITY, spared: true},
		{name: "sched_setscheduler", number: unix.SYS_SCHED_SETSCHEDULER, spared: true},
	}
}
