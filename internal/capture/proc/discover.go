package proc

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/cuda"
)

// maxCandidates bounds the answer of Users.
const maxCandidates = 4096

// maxFound bounds the processes that wait to be taken from Watcher.Found. Beyond it all processes are looked at.
const maxFound = 1024

// isDriver knows the libraries by which programs reach a GPU's driver: libcuda.so.1 (NVIDIA) and libamdhip64.so.6
// (AMD).
func isDriver(base string) bool {
	return cuda.IsDriverFile(base) || strings.HasPrefix(base, "libamdhip64.so")
}

// tellFound passes a pid on. Where nobody takes them in time, a 0 follows when there is room again.
func (w *Watcher) tellFound(pid uint32) {
	if w.found == nil || pid != 0 && pid == uint32(os.Getpid()) {
		return
	}
	if w.foundLost || pid == 0 {
		select {
		case w.found <- 0:
			w.foundLost = false
		default:
			w.foundLost = true
			return
		}
	}
	if pid == 0 {
		return
	}
	select {
	case w.found <- pid:
	default:
		w.foundLost = true
	}
}

// User is a process that uses a GPU, with what the rules of discovery ask about it.
type User struct {
	PID       uint32 // in the initial pid namespace
	StartTime uint64 // clock ticks since boot
	UID       uint32 // real user id
	Comm      string
	Cmdline   string   // at most 4,096 bytes
	Library   string   // of the driver, as the process sees it; "" where it has only device files open
	Devices   []string // device files of GPUs that it has open, without /dev/, sorted: nvidia0, kfd
}

// ID returns what tells the process apart from every other one.
func (u *User) ID() ID { return ID{u.PID, u.StartTime} }

// UserOf looks whether a process uses a GPU: it maps the library of a driver, or has the device file of a GPU open.
// Another process may have the pid by the time that it returns, which whoever watches it finds out.
func UserOf(pid uint32) (u User, uses bool, err error) { return newProcfs(procRoot).user(pid) }

func (fs *procfs) user(pid uint32) (u User, uses bool, err error) {
	s, err := fs.stat(pid)
	if err != nil || s.flags&pfKthread != 0 {
		return u, false, err
	}
	u.PID, u.StartTime, u.Comm = pid, s.start, s.comm
	if u.Library, err = fs.driver(pid); err != nil {
		return u, false, err
	}
	u.Devices = fs.devices(pid)
	if u.Library == "" && len(u.Devices) == 0 {
		return u, false, nil
	}
	more, err := fs.status(pid)
	if err != nil {
		return u, false, err
	}
	u.UID, u.Cmdline = more.uid, fs.cmdline(pid)
	return u, true, nil
}

// driver returns the path of the first driver library that a process maps; "" where it maps none.
func (fs *procfs) driver(pid uint32) (string, error) {
	f, err := os.Open(fs.path(pid, "maps"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	path := ""
	err = scanMaps(f, func(line mapsLine) error {
		if path == "" && isDriver(line.base()) {
			path = line.mapping(fs.rootOf(pid)).Path
		}
		return nil
	})
	return path, err
}

// Devices returns the device files of GPUs that a process has open, as User.Devices.
func Devices(pid uint32) []string { return newProcfs(procRoot).devices(pid) }

// maxOpenFiles bounds the open files of one process that are looked at.
const maxOpenFiles = 4096

// devices returns the device files of GPUs that a process has open: those through which work reaches a GPU. What
// nvidia-smi and monitors open (nvidiactl) is none of them.
func (fs *procfs) devices(pid uint32) []string {
	dir, err := os.Open(fs.path(pid, "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxOpenFiles)
	var found []string
	buf := make([]byte, 64)
	for _, name := range names {
		n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
		if err != nil {
			continue
		}
		if device, ok := strings.CutPrefix(string(buf[:n]), "/dev/"); ok && isGPU(device) &&
			!slices.Contains(found, device) {
			found = append(found, device)
		}
	}
	slices.Sort(found)
	return found
}

// isGPU knows nvidia0 (a GPU), nvidia-uvm (CUDA's memory) and kfd (AMD's compute).
func isGPU(device string) bool {
	if device == "kfd" || device == "nvidia-uvm" {
		return true
	}
	number, ok := strings.CutPrefix(device, "nvidia")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// Users returns the processes that use a GPU now, ordered by pid, and how many could not be looked into. It costs a
// read of maps and of the open files of each process.
func Users(ctx context.Context) (users []User, hidden int, err error) {
	fs := newProcfs(procRoot)
	var pids []uint32
	if err := fs.pids(func(pid uint32) { pids = append(pids, pid) }); err != nil {
		return nil, 0, fmt.Errorf("looking for processes: %w", err)
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, 0, fmt.Errorf("looking for processes that use a GPU: %w", err)
		}
		u, uses, err := fs.user(pid)
		switch {
		case uses && len(users) < maxCandidates:
			users = append(users, u)
		case os.IsPermission(err):
			hidden++
		}
	}
	slices.SortFunc(users, func(a, b User) int { return cmp.Compare(a.PID, b.PID) })
	return users, hidden, nil
}

// maxAncestors bounds the way up a tree of processes.
const maxAncestors = 64

// Top returns the process under which a program's processes gather: the farthest ancestor that runs the same
// executable, as the same user, in the same control group. A server's Python workers lead to the server; a shell, a
// launcher of another program or an init of the container ends the way up.
func Top(pid uint32) uint32 { return newProcfs(procRoot).top(pid) }

func (fs *procfs) top(pid uint32) uint32 {
	self, ok := fs.program(pid)
	for range maxAncestors {
		if !ok {
			return pid
		}
		s, err := fs.stat(pid)
		if err != nil || s.parent <= 1 {
			return pid
		}
		parent, known := fs.program(s.parent)
		if !known || parent != self {
			return pid
		}
		pid = s.parent
	}
	return pid
}

// program is what processes of one program have in common.
type program struct {
	dev, inode uint64 // of the executable
	uid        uint32
	cgroup     string
}

func (fs *procfs) program(pid uint32) (p program, ok bool) {
	var st unix.Stat_t
	if unix.Stat(fs.path(pid, "exe"), &st) != nil {
		return p, false
	}
	more, err := fs.status(pid)
	if err != nil {
		return p, false
	}
	return program{st.Dev, st.Ino, more.uid, fs.cgroup(pid)}, true
}

// maxCgroup bounds what is read of /proc/PID/cgroup, in bytes: a line for each hierarchy.
const maxCgroup = 64 << 10

// Cgroup returns the control group of a process, as the host sees it; "" where it cannot be read. On hosts with
// several hierarchies it is that of the unified one, or else the longest.
func Cgroup(pid uint32) string { return newProcfs(procRoot).cgroup(pid) }

func (fs *procfs) cgroup(pid uint32) string {
	text, err := fs.head(pid, "cgroup", maxCgroup)
	if err != nil {
		return ""
	}
	longest := ""
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if fields[0] == "0" && fields[2] != "/" {
			return strings.ToValidUTF8(fields[2], "?")
		}
		if len(fields[2]) > len(longest) {
			longest = fields[2]
		}
	}
	return strings.ToValidUTF8(longest, "?")
}
