package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

const (
	hintForeign  = "run outside of any container; if that does not help, a security module may protect the process"
	hintPID      = "give the pid of the process that runs CUDA, as the host sees it; `inferscope ps` lists them"
	hintPtrace   = "run as root, or with CAP_SYS_PTRACE"
	hintHidepid  = "run as root, or mount /proc without hidepid"
	procRoot     = "/proc"
	maxTargetPID = 1 << 22 // PID_MAX_LIMIT of include/linux/threads.h
)

// Describe takes hold of the process that has the pid now and says what it is;
// it does not watch it. Parent is its parent, watched or not. The caller closes it. Errors are a clierror.NoProcess (no
// such process, a zombie, a thread, a kernel thread) or a clierror.Permission.
func Describe(pid int) (*Process, error) {
	return newProcfs(procRoot).target(pid)
}

// target describes a process that may be watched and read.
func (fs *procfs) target(pid int) (*Process, error) {
	if pid <= 0 || pid > maxTargetPID {
		return nil, noProcess(fmt.Errorf("pid %d: not a process id", pid))
	}
	p, err := fs.describe(uint32(pid))
	if err != nil {
		return nil, err
	}
	if err := fs.mayRead(p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// describe reads what /proc says about the process that has the pid now. The
// pidfd comes first and is asked last: as long as the process lives, nothing
// else can have its pid, so all that was read in between is about it.
func (fs *procfs) describe(pid uint32) (*Process, error) {
	pidfd, err := openPidfd(pid)
	if err != nil {
		return nil, fs.explainOpen(pid, err)
	}
	p, err := fs.read(pid)
	if err == nil && !alive(pidfd) {
		err = fs.explainDead(pid)
	}
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	p.pidfd = pidfd
	return p, nil
}

func (fs *procfs) read(pid uint32) (*Process, error) {
	s, err := fs.stat(pid)
	if err != nil {
		return nil, explainRead(pid, err)
	}
	if s.flags&pfKthread != 0 {
		return nil, noProcess(fmt.Errorf("pid %d is a kernel thread (%s)", pid, s.comm))
	}
	more, err := fs.status(pid)
	if err != nil {
		return nil, explainRead(pid, err)
	}
	owner, _ := fs.ownerOf(pid, more)
	p := &Process{
		PID: pid, NSPID: more.nspid, Parent: s.parent, UID: more.uid,
		StartTime: s.start, Born: born(s.start),
		Comm: s.comm, Cmdline: fs.cmdline(pid),
	}
	p.own(monotonic(), owner)
	return p, nil
}

// mayRead finds out before anything is attached whether the process's maps and
// files can be read: both want PTRACE_MODE_READ.
func (fs *procfs) mayRead(p *Process) error {
	f, err := os.Open(fs.path(p.PID, "maps"))
	if err != nil {
		return explainRead(p.PID, err)
	}
	return f.Close()
}

func noProcess(err error) error { return clierror.New(clierror.NoProcess, hintPID, err) }

// explainOpen reports why pidfd_open failed. For a thread that is not the first of
// its process that is EINVAL, from Linux 6.16 on ENOENT.
func (fs *procfs) explainOpen(pid uint32, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return noProcess(fmt.Errorf("pid %d: no such process", pid))
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		if s, err := fs.status(pid); err == nil && s.tgid != 0 && s.tgid != pid {
			return noProcess(fmt.Errorf("pid %d is a thread of process %d", pid, s.tgid))
		}
		return noProcess(fmt.Errorf("pid %d: no such process", pid))
	case errors.Is(err, unix.ENOSYS):
		return clierror.New(clierror.Unsupported, "use Linux 5.15 or newer",
			fmt.Errorf("opening a pidfd of %d: %w", pid, err))
	}
	return fmt.Errorf("opening a pidfd of %d: %w", pid, err)
}

// explainDead says in what way a process is no longer there.
func (fs *procfs) explainDead(pid uint32) error {
	if s, err := fs.stat(pid); err == nil && s.state == 'Z' {
		return noProcess(fmt.Errorf("pid %d is a zombie (%s): it has ended and waits for its parent", pid, s.comm))
	}
	return noProcess(fmt.Errorf("pid %d: no such process: it has just ended", pid))
}

// explainRead reports why a file of a process that existed a moment ago cannot be read.
func explainRead(pid uint32, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, os.ErrNotExist):
		if err := unix.Kill(int(pid), 0); err == nil || errors.Is(err, unix.EPERM) {
			return clierror.New(clierror.Permission, hintHidepid,
				fmt.Errorf("pid %d exists but cannot be seen in /proc", pid))
		}
		return noProcess(fmt.Errorf("pid %d: no such process", pid))
	case errors.Is(err, os.ErrPermission) && mayTrace():
		return clierror.New(clierror.Permission, hintForeign,
			fmt.Errorf("pid %d cannot be read even with CAP_SYS_PTRACE: %w", pid, err))
	case errors.Is(err, os.ErrPermission):
		return clierror.New(clierror.Permission, hintPtrace,
			fmt.Errorf("pid %d cannot be read without CAP_SYS_PTRACE: %w", pid, err))
	}
	return fmt.Errorf("reading pid %d: %w", pid, err)
}

// mayTrace reports whether the calling thread has CAP_SYS_PTRACE.
func mayTrace() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective>>unix.CAP_SYS_PTRACE&1 != 0
}
