package threaddump

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Task states: include/linux/sched.h, the same since Linux 4.14.
const (
	taskUninterruptible = 0x02
	taskStopped         = 0x0c // stopped or traced
	taskSleeping        = 0x03
)

func stateOf(t *raw) dump.State {
	switch {
	case t.ExitState != 0:
		return dump.Exited
	case t.OnCpu != 0:
		return dump.Active
	case t.State&taskStopped != 0:
		return dump.Stopped
	case t.State&taskSleeping == 0:
		return dump.Runnable
	}
	return dump.Idle
}

// describe names what a recording of one wait shows, as reports do: what the frames of its last stack prove, why the
// thread of its event waits, and in which system call. Each is "" where nothing is known. The daemon's main function
// passes the one of the analysis.
type describe func(rec *recording.Recording) (activity, reason, doing string)

// label fills in what t waits for and what its frames prove.
func (d describe) label(pid uint32, t *raw, out *dump.Thread) {
	rec := &recording.Recording{Meta: recording.Meta{Host: recording.Host{Arch: runtime.GOARCH}, To: 1}}
	for i := len(out.Frames) - 1; i >= 0; i-- {
		parent := int32(len(rec.Meta.Stacks)) - 1
		rec.Meta.Frames = append(rec.Meta.Frames, out.Frames[i].Frame)
		rec.Meta.Stacks = append(rec.Meta.Stacks,
			recording.Node{Parent: parent, Frame: uint32(len(rec.Meta.Frames) - 1)})
	}
	if out.State == dump.Idle {
		rec.Events = []event.Event{waitOf(rec, pid, t)}
	}
	out.Activity, out.Reason, out.Doing = d(rec)
}

// waitOf is the wait of t as an event, and adds the file that it is about to rec.
func waitOf(rec *recording.Recording, pid uint32, t *raw) event.Event {
	e := event.Event{
		Kind: event.OffCPU, PID: pid, TID: t.Tid, Dur: 1, Flags: event.Timed | event.Open,
		Func: event.NoSyscall, Args: [4]uint64{2: t.Arguments[0], 3: t.Arguments[1]},
	}
	if t.State&taskUninterruptible != 0 {
		e.Flags |= event.Uninterruptible
	}
	if t.Syscall >= 0 && t.Syscall < event.Stopped {
		e.Func = uint16(t.Syscall)
		describeFile(rec, pid, &e)
	}
	return e
}

// maxDescriptor is the highest number that is taken for a file descriptor (fs.nr_open's default).
const maxDescriptor = 1 << 20

// describeFile records which file the call's first argument stands for, if it is a
// descriptor; package threads knows which calls have one. The kernel gives the name
// without asking the file's file system.
func describeFile(rec *recording.Recording, pid uint32, e *event.Event) {
	if e.Args[2] >= maxDescriptor {
		return
	}
	name, err := os.Readlink("/proc/" + strconv.Itoa(int(pid)) + "/fd/" + strconv.FormatUint(e.Args[2], 10))
	if err != nil {
		return
	}
	const anyInode = 1 // there is one object only
	e.Args[3] = anyInode | fileType(name)<<48
	rec.Meta.Objects = []recording.Object{{PID: pid, Inode: anyInode, Name: strings.ToValidUTF8(name, "?")}}
}

// fileType is S_IFMT >> 12, as far as the name tells it.
func fileType(name string) uint64 {
	switch {
	case strings.HasPrefix(name, "pipe:"):
		return 1
	case strings.HasPrefix(name, "socket:"):
		return 12
	case strings.HasPrefix(name, "anon_inode:"):
		return 0
	case strings.HasPrefix(name, "/dev/") && !strings.HasPrefix(name, "/dev/shm/"):
		return 2
	}
	return 8
}
