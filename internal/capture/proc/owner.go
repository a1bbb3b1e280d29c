package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Root is who may see a process that is nobody's alone.
const Root = 0

var (
	errMixed      = errors.New("it runs as several users or groups, or with more rights than its user")
	errHidden     = errors.New("it hides its memory from its user")
	errNewProgram = errors.New("it has replaced its program")
	errOtherUser  = errors.New("it runs as another user")
)

// CurrentOwner returns the user who alone p runs as now: its user ids are all this user's, it is no setgid program, has
// no capabilities, and does not hide its memory (PR_SET_DUMPABLE). It is who may trace p without any right (ptrace(2),
// "Ptrace access mode checking"). The error says why there is none; p.Owner is what is noted of it.
func (p *Process) CurrentOwner() (uint32, error) {
	uid, err := newProcfs(procRoot).owner(p.PID)
	if !p.Alive() { // what was read may be another's
		return Root, noProcess(fmt.Errorf("pid %d has ended", p.PID))
	}
	return uid, err
}

// owner returns who alone a process runs as. A pid says nothing about which process that is.
func (fs *procfs) owner(pid uint32) (uint32, error) {
	s, err := fs.status(pid)
	if err != nil {
		return Root, explainRead(pid, err)
	}
	return fs.ownerOf(pid, s)
}

func (fs *procfs) ownerOf(pid uint32, s status) (uint32, error) {
	if s.mixed || s.caps && s.uid != Root && !fs.inNamespaceOf(pid, s.uid) {
		return Root, errMixed
	}
	var st unix.Stat_t
	// Of what stands in /proc/PID the directory itself, and what is open to all, belongs to the effective user; the
	// rest belongs to root where the memory is hidden (task_dump_owner of fs/proc/base.c).
	if err := unix.Stat(fs.path(pid, "environ"), &st); err != nil {
		return Root, explainRead(pid, err)
	}
	if st.Uid != s.uid {
		if s, err := fs.status(pid); err == nil && !s.alive && !s.mixed {
			return s.uid, nil // it is ending, and has nothing to hide any more
		}
		return Root, errHidden
	}
	return s.uid, nil
}

// inNamespaceOf reports whether a process is in a user namespace that this user has made.
func (fs *procfs) inNamespaceOf(pid, uid uint32) bool {
	f, err := os.Open(fs.path(pid, "ns/user"))
	if err != nil {
		return false
	}
	defer f.Close()
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false
	}
	there, err := f.Stat()
	if err != nil || os.SameFile(own, there) {
		return false
	}
	maker, err := unix.IoctlGetInt(int(f.Fd()), unix.NS_GET_OWNER_UID)
	return err == nil && uint32(maker) == uid
}

// Guard watches over a process while something is read of it for a user.
type Guard struct {
	process *Process
	uid     uint32
	memory  *os.File // its mappings: they end with the program that it runs
}

// Guard returns a Guard where p runs as uid alone. It must be closed.
func (p *Process) Guard(uid uint32) (*Guard, error) {
	memory, err := os.Open(newProcfs(procRoot).path(p.PID, "maps"))
	if err != nil {
		return nil, explainRead(p.PID, err)
	}
	g := &Guard{process: p, uid: uid, memory: memory}
	if err := g.Check(); err != nil {
		_ = memory.Close()
		return nil, err
	}
	return g, nil
}

// Check returns an error where the process does not run as the user any more, or another program than at first: in
// between it may have been anybody's.
func (g *Guard) Check() error {
	owner, err := g.process.CurrentOwner()
	if err == nil && owner != g.uid {
		err = errOtherUser
	}
	if err == nil && !g.same() {
		err = errNewProgram
	}
	if err != nil {
		return fmt.Errorf("pid %d does not belong to user %d alone: %w", g.process.PID, g.uid, err)
	}
	return nil
}

// same reports whether the process still has the memory that it had at first: the mappings of one that is gone read
// empty.
func (g *Guard) same() bool {
	n, err := g.memory.ReadAt(make([]byte, 1), 0)
	return err == nil && n == 1
}

// Close lets the process go.
func (g *Guard) Close() error { return g.memory.Close() }
