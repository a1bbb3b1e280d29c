package inject

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// fileName is what the file is called in the target, with the number and
// the start time of who made it: memfd:inferscope-agent-4711-81524.
const fileName = "inferscope-agent"

// shortText bounds what is read of a file that has a line or a page, bytes.
const shortText = 16 << 10

var errThreadGone = errors.New("the thread has ended")

// gone says ErrGone where that is why err happened. A process that ends has lost its
// memory some time before its last thread has ended.
func gone(p *proc.Process, err error) error {
	if err == nil || errors.Is(err, ErrGone) {
		return err
	}
	_, noMemory := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if !p.Alive() || errors.Is(noMemory, os.ErrNotExist) || errors.Is(noMemory, unix.ESRCH) {
		return &Refusal{Reason: ErrGone, Cause: err}
	}
	return err
}

// prepare looks at everything that can be looked at without touching the process,
// and refuses what would not work.
func (in *Injector) prepare(p *proc.Process, image *Image) (*plan, error) {
	pl := &plan{
		process: p,
		image:   image,
		hook:    in.step,
		guard:   in.guard,
		steps:   make([]Step, 0, maxSteps),
		blocked: map[int]int{},
	}
	s, err := readStatus(int(p.PID), int(p.PID))
	if err != nil {
		return nil, gone(p, fmt.Errorf("read its status: %w", err))
	}
	for _, check := range []func(*proc.Process, status) error{notTraced, noShadow, ownMemory, pl.hasProc, signalLeft} {
		if err := check(p, s); err != nil {
			return nil, err
		}
	}
	if pl.flags, err = memfdFlags(); err != nil {
		return nil, err
	}
	if pl.entries, err = resolve(p); err != nil {
		return nil, err
	}
	procfs, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(procfs)
	pl.name = nameOf(procfs)
	return pl, pl.findImage(procfs)
}

func notTraced(_ *proc.Process, s status) error {
	if s.tracer == 0 {
		return nil
	}
	tracer := s.tracer // a thread of the one that is to be named
	if of, err := readStatus(int(tracer), int(tracer)); err == nil && of.tgid != 0 {
		tracer = of.tgid
	}
	return refuse(
		ErrTraced,
		fmt.Sprintf("by pid %d (%s)", tracer, comm(tracer)),
		"end the debugger or tracer, or start the program with `inferscope run`",
	)
}

// noShadow: a thread with a shadow stack could not return where we send it.
func noShadow(_ *proc.Process, s status) error {
	if !strings.Contains(s.features, "shstk") {
		return nil
	}
	return refuse(
		errShadow,
		"x86_Thread_features: "+s.features,
		"start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or with `inferscope run`",
	)
}

// ownMemory refuses a child of vfork, which runs in its parent's memory until it execs.
func ownMemory(p *proc.Process, _ status) error {
	parent, err := parentOf(p)
	if err != nil {
		return fmt.Errorf("find its parent: %w", err)
	}
	if parent <= 1 {
		return nil
	}
	const kcmpVM = 1
	same, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(p.PID), uintptr(parent), kcmpVM, 0, 0, 0)
	if errno == 0 && same == 0 {
		return refuse(
			ErrShared,
			fmt.Sprintf("with its parent, pid %d: it has not run exec yet", parent),
			"it is tried again when it has",
		)
	}
	return nil
}

func parentOf(p *proc.Process) (int, error) {
	text, err := procfile.Head(fmt.Sprintf("/proc/%d/stat", p.PID), shortText)
	if err != nil {
		return 0, err
	}
	fields := procfile.StatFields(text)
	if len(fields) < 2 {
		return 0, errors.New("stat is too short")
	}
	return strconv.Atoi(string(fields[1]))
}

// hasProc finds out whether the process can open /proc/self/fd: its root has a procfs
// at /proc, and in that it has a number.
func (pl *plan) hasProc(p *proc.Process, s status) error {
	const hint = "mount /proc in its root, or start the program with `inferscope run`"
	root, err := procfile.OpenRoot("/proc", p.PID)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	procfs, err := procfile.OpenIn(root, "/proc")
	if err != nil {
		return &Refusal{Reason: errProc, Hint: hint, Cause: err}
	}
	defer procfs.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(procfs.FD(), &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return refuse(errProc, "what lies at /proc in its root is no procfs", hint)
	}
	for level, pid := range s.nspids {
		if startTime(procfs.FD(), pid) == p.StartTime {
			pl.level = level
			return nil
		}
	}
	return refuse(errProc, "the procfs in its root is that of another pid namespace", hint)
}

// startTime returns when the process began that a procfs calls pid; 0: there is none.
func startTime(proc int, pid uint32) uint64 {
	_, start := readStat(proc, pid)
	return start
}

// readStat returns fields 3 and 22 of the stat of the process that a procfs calls pid (proc_pid_stat(5)): its
// state and its start time; 0: there is none.
func readStat(proc int, pid uint32) (state byte, start uint64) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(proc, fmt.Sprintf("%d/stat", pid), &how)
	if err != nil {
		return 0, 0
	}
	defer unix.Close(fd)
	b := make([]byte, 2048)
	n, err := unix.Read(fd, b)
	if err != nil {
		return 0, 0
	}
	text := string(b[:n])
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, 0
	}
	if start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return 0, 0
	}
	return fields[0][0], start
}

// signalLeft looks at what the process handles; what a thread blocks is looked at later.
func signalLeft(_ *proc.Process, s status) error {
	s.blocked = 0
	if signalFor(s) != 0 {
		return nil
	}
	return refuse(errSignal, "it handles SIGURG, SIGWINCH, SIGCHLD and SIGCONT", hintStart)
}

// memfdFlags asks for an executable file where the kernel distinguishes (Linux 6.3).
func memfdFlags() (uint64, error) {
	const mfdExec = 0x10
	flags := uint64(unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING)
	text, err := procfile.Head("/proc/sys/vm/memfd_noexec", shortText)
	if errors.Is(err, os.ErrNotExist) {
		return flags, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ask whether memory files may be executable: %w", err)
	}
	if strings.TrimSpace(string(text)) == "2" {
		return 0, refuse(
			errMemory,
			"the system forbids them (vm.memfd_noexec = 2)",
			"set the sysctl vm.memfd_noexec to 1, or start the program with `inferscope run`",
		)
	}
	return flags | mfdExec, nil
}

// denied explains why a thread could not be seized.
func denied(pid int, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return errThreadGone
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return err
	}
	if s, e := readStatus(pid, pid); e == nil && s.tracer != 0 {
		return notTraced(nil, s)
	}
	detail, hint := whyDenied(pid)
	return &Refusal{Reason: errDenied, Detail: detail, Hint: hint, Cause: err}
}

// whyDenied looks for who forbids ptrace.
func whyDenied(pid int) (detail, hint string) {
	own, err := readStatus(os.Getpid(), os.Getpid())
	yama, _ := procfile.Head("/proc/sys/kernel/yama/ptrace_scope", shortText) // there is none without Yama
	return whoDenies(string(yama), err == nil && own.seccomp == 2, lsmLabel(pid))
}

// whoDenies says who forbids ptrace, from the likeliest on: by Yama's setting, whether this daemon is under a seccomp
// filter, and what confines the process.
func whoDenies(yama string, filtered bool, label string) (detail, hint string) {
	switch {
	case strings.TrimSpace(yama) == "3":
		return "Yama forbids it to everybody (kernel.yama.ptrace_scope = 3)", "start the program with `inferscope " +
			"run`; the setting can only be changed by a reboot"
	case filtered:
		return "or a seccomp filter of this daemon's container forbids ptrace", "run the container with --cap-add " +
			"SYS_PTRACE or --security-opt seccomp=unconfined"
	case label != "":
		return "a security module may forbid it: the process is " + label, "allow this daemon to trace it in the policy"
	}
	return "", "run the daemon as root, or with CAP_SYS_PTRACE in the process's user namespace"
}

// lsmLabel returns the AppArmor profile or SELinux context of a process; "" where
// it has none that confines.
func lsmLabel(pid int) string {
	text, err := procfile.Head(fmt.Sprintf("/proc/%d/attr/current", pid), shortText)
	if err != nil {
		return ""
	}
	return confinement(string(text))
}

// confinement reads /proc/PID/attr/current: of AppArmor "PROFILE (MODE)", of SELinux "USER:ROLE:TYPE:LEVEL".
func confinement(text string) string {
	label := strings.TrimRight(text, "\x00\n ")
	if label == "unconfined" || label == "kernel" || strings.Contains(label, ":unconfined_t:") {
		return ""
	}
	return label
}
