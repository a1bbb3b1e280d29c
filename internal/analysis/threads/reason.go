package threads

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Reason is why a thread was blocked.
type Reason uint8

// The reasons.
const (
	None        Reason = iota
	Futex              // a lock, condition, semaphore or join of user space
	Pipe               // read or write of a pipe
	Socket             // receive, send, accept or connect
	Poll               // poll, select or epoll: any of several descriptors
	Event              // eventfd, timerfd and the like
	Sleep              // nanosleep
	Disk               // a regular file
	MinorFault         // a page fault that did not wait for the disk: a lock of the address space, userfaultfd
	MajorFault         // a page fault that waited for the disk
	Nvidia             // ioctl on a device of the NVIDIA driver
	Device             // another character or block device, a terminal
	Child              // waitpid
	FileLock           // flock, fcntl
	Signal             // pause, sigwait
	Stop               // stopped by a signal or a tracer
	Call               // another system call
	Unexplained        // the recording does not say
	Reasons
)

// String returns the reason in a few words.
func (r Reason) String() string {
	return [...]string{
		"", "lock or condition", "pipe", "socket", "poll", "event", "sleep", "disk", "page fault (minor)",
		"page fault (major)", "NVIDIA driver", "device", "child process", "file lock", "signal", "stopped",
		"system call", "not recorded", "?",
	}[min(r, Reasons)]
}

// The types of files: S_IFMT >> 12 (include/uapi/linux/stat.h).
const (
	typePipe, typeCharacter, typeBlock, typeRegular, typeSocket = 1, 2, 6, 8, 12
)

// classifier finds reasons and the words for them.
type classifier struct {
	calls   calls
	kinds   []kind // of the calls, by number
	objects map[object]string
}

// kind is the class of a call by its name.
type kind struct {
	reason Reason // None: it depends on more
	onFile bool   // it reads or writes what its descriptor is
}

type object struct {
	pid   uint32
	inode uint64
}

func newClassifier(rec *recording.Recording) classifier {
	c := classifier{calls: callsOf(rec.Meta.Host.Arch), objects: map[object]string{}}
	for nr := range uint16(maxCall) {
		name := c.calls.name(nr)
		c.kinds = append(c.kinds, kind{byCall(name), ofFile(name)})
	}
	for _, o := range rec.Meta.Objects {
		c.objects[object{o.PID, o.Inode}] = o.Name
	}
	return c
}

// byCall are the calls whose name alone is the reason.
func byCall(name string) Reason {
	switch name {
	case "futex", "futex_wait", "futex_waitv":
		return Futex
	case "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2":
		return Poll
	case "nanosleep", "clock_nanosleep":
		return Sleep
	case "wait4", "waitid":
		return Child
	case "flock":
		return FileLock
	case "pause", "rt_sigtimedwait", "rt_sigsuspend":
		return Signal
	case "accept", "accept4", "connect", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg":
		return Socket
	case "fsync",
		"fdatasync", "sync", "syncfs", "sync_file_range", "msync", "open", "openat", "openat2", "unlink",
		"unlinkat", "rename", "renameat", "renameat2", "stat", "newfstatat", "statx", "mkdir", "mkdirat",
		"fallocate", "truncate",
		"ftruncate":
		return Disk
	}
	return None
}

// ofFile are the calls that read or write what the descriptor is.
func ofFile(name string) bool {
	switch name {
	case "read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "pwritev", "pwritev2",
		"ioctl", "fcntl", "lseek", "close", "getdents", "getdents64", "splice", "tee", "vmsplice", "sendfile",
		"copy_file_range", "readahead", "fadvise64":
		return true
	}
	return false
}

func (c *classifier) reason(e *event.Event) Reason {
	switch e.Func {
	case event.Stopped:
		return Stop
	case event.Unexplained:
		return Unexplained
	case event.NoSyscall:
		if e.Flags&event.MajorFault != 0 {
			return MajorFault
		}
		return MinorFault // nothing else blocks a thread that runs user code
	}
	switch k := c.kind(e.Func); {
	case k.reason != None:
		return k.reason
	case k.onFile:
		return c.file(e)
	}
	return Call
}

// maxCall is above every system call's number in the tables.
const maxCall = 512

func (c *classifier) kind(nr uint16) kind {
	if int(nr) < len(c.kinds) {
		return c.kinds[nr]
	}
	return kind{}
}

// file returns the reason for a call on a descriptor.
func (c *classifier) file(e *event.Event) Reason {
	target := c.objects[object{e.PID, inode(e)}]
	if strings.HasPrefix(target, "anon_inode:") && e.Flags&event.Uninterruptible == 0 {
		return Event // whatever type their common inode has (Linux 6.16 gave it one)
	}
	switch e.Args[3] >> 48 & 15 {
	case typePipe:
		return Pipe
	case typeSocket:
		return Socket
	case typeCharacter, typeBlock:
		if strings.HasPrefix(target, "/dev/nvidia") {
			return Nvidia
		}
		return Device
	case typeRegular:
		if c.calls.name(e.Func) == "fcntl" {
			return FileLock
		}
		return Disk
	}
	if e.Flags&event.Uninterruptible != 0 {
		return Disk
	}
	return Call
}

func inode(e *event.Event) uint64 { return e.Args[3] & (1<<48 - 1) }

// text returns what the thread was blocked in, for people.
func (c *classifier) text(e *event.Event, why Reason) string {
	name := c.calls.name(e.Func)
	switch why {
	case Futex:
		return fmt.Sprintf("a lock or condition (futex %#x)", e.Args[2])
	case MajorFault, MinorFault, Stop, Unexplained:
		return why.String()
	case Sleep, Child, Signal:
		return name
	}
	if target := c.objects[object{e.PID, inode(e)}]; target != "" && c.onFile(e.Func, why) {
		return name + " of " + target
	}
	if c.kind(e.Func).onFile || why == Socket {
		return fmt.Sprintf("%s of descriptor %d", name, uint32(e.Args[2]))
	}
	return name
}

// onFile reports whether the first argument of a call that a thread was blocked in is a descriptor.
func (c *classifier) onFile(nr uint16, why Reason) bool {
	return c.kind(nr).onFile || why == Socket || why == FileLock
}

// Describe names what a recording of at most one wait shows: what the frames of its last stack prove ("waiting for the
// GIL"), why the thread of its event waits ("lock or condition"), and in which system call. Each is "" where nothing is
// known.
func Describe(rec *recording.Recording) (activity, reason, doing string) {
	if a := NewClassifier(rec).Of(uint64(len(rec.Meta.Stacks))); a != Other {
		activity = a.String()
	}
	if len(rec.Events) == 0 {
		return activity, "", ""
	}
	if w, ok := NewWaits(rec).Of(Interval{Wait: 0}); ok {
		reason, doing = w.Reason.String(), w.Text
	}
	return activity, reason, doing
}
