// Package proc finds and follows the processes that are watched: a process
// with its children, by identity and not by number, in whatever mount and pid
// namespace they live.
//
// The kernel says what happens to them: sched_process_fork, _exec and _exit
// (bpf/process.bpf.c) and the mmap2 records of perf events, so that nothing
// short-lived is missed and a quiet target costs 0.1% of a core. What is read from a
// process (/proc, its files) is checked afterwards against its pidfd, so that it
// is never another process's, and is treated as hostile: bounded, and no path is
// opened outside the process's own root.
package proc

import (
	"math"
	"os"
	"slices"
)

// Process is one process of a target: identified by pid and start time, held by
// a pidfd, so that a pid that is used again is never mistaken for it. A Process
// that a Watcher hands out never changes; the next Change carries a new one.
type Process struct {
	PID       uint32   // in the initial pid namespace
	NSPID     uint32   // in its own pid namespace; 0 where it was gone before it could be read
	Parent    uint32   // pid of the watched process that made it; 0 for the root of a target
	Root      uint32   // pid of the process that was asked for
	Payer     Payer    // who it is charged to
	StartTime uint64   // clock ticks (10 ms) since boot, /proc/PID/stat field 22
	Born      uint64   // ns, CLOCK_MONOTONIC; up to 10 ms early, and by any time asleep since, where no fork was seen
	UID       uint32   // real user id
	Owner     uint32   // user who alone it runs as, as CurrentOwner says, and who may see what it does; Root where there is none
	Owned     []Stay   // whose it has been since when, in this order; the last is Owner's
	Comm      string   //
	Cmdline   string   // arguments joined with spaces, at most 4,096 bytes
	Died      uint64   // ns, CLOCK_MONOTONIC; 0 while it runs
	ExitCode  int32    // as wait(2) gives it, once it died
	Execs     uint64   // how often it has replaced its program since it is watched: two that differ are two programs
	pidfd     *os.File // nil where it was gone before it could be opened
}

// ID tells processes apart for as long as the machine runs, which a pid does
// not. Two of one pid are told apart if they started 10 ms apart: sooner, a pid
// is used again only if someone with CAP_CHECKPOINT_RESTORE asks for it. Alive
// tells even these apart.
type ID struct {
	PID       uint32
	StartTime uint64 // clock ticks since boot
}

// ID returns what tells p apart from every other process.
func (p *Process) ID() ID { return ID{p.PID, p.StartTime} }

// Lives reports whether the process with this ID is there still; a zombie is.
func Lives(id ID) bool {
	s, err := newProcfs(procRoot).stat(id.PID)
	return err == nil && s.start == id.StartTime
}

// Stay is a stretch of time in which a process was somebody's, until the next one.
type Stay struct {
	From  uint64 // ns, CLOCK_MONOTONIC
	Owner uint32 // Root: nobody's alone
}

// maxStays bounds what is remembered of a process. What it did before is root's.
const maxStays = 16

// own notes whose p is from a time on. Whatever was noted of later times was read before this was known.
func (p *Process) own(at uint64, owner uint32) {
	stays := slices.DeleteFunc(slices.Clone(p.Owned), func(s Stay) bool { return s.From >= at })
	if len(stays) == 0 || stays[len(stays)-1].Owner != owner {
		stays = append(stays, Stay{at, owner})
	}
	p.Owner, p.Owned = owner, stays[max(0, len(stays)-maxStays):]
}

// Spans returns when p was this user's alone, as pairs of begin and end in ns. A Process that no Watcher handed out has
// always been its owner's.
func (p *Process) Spans(uid uint32) [][2]uint64 {
	stays := p.Owned
	if len(stays) == 0 {
		stays = []Stay{{Owner: p.Owner}}
	}
	var out [][2]uint64
	for i, s := range stays {
		end := uint64(math.MaxUint64)
		if i+1 < len(stays) {
			end = stays[i+1].From
		}
		if s.Owner == uid {
			out = append(out, [2]uint64{s.From, end})
		}
	}
	return out
}

// Mapping is one file mapped executable into a process.
type Mapping struct {
	Start, End uint64 // addresses in the process
	Offset     uint64 // of Start in the file, bytes
	Dev        uint64 // as /proc/PID/maps prints it, major<<32 | minor
	Inode      uint64
	Path       string // as the process sees it, without " (deleted)"; may hold any byte but NUL
	Deleted    bool
}

// ChangeKind describes what happened to a process.
type ChangeKind uint8

// The changes.
const (
	Appeared ChangeKind = iota // a process joined the target: the root, or a child
	Mapped                     // it may have mapped another file executable
	Execed                     // it replaced its program: all mappings are new
	Exited                     // it is gone; Died and ExitCode are set
	Renewed                    // it gave itself another name or owner
)

// String returns the name of the change, for logs.
func (k ChangeKind) String() string {
	switch k {
	case Appeared:
		return "appeared"
	case Mapped:
		return "mapped"
	case Execed:
		return "execed"
	case Exited:
		return "exited"
	case Renewed:
		return "renewed"
	}
	return "unknown"
}

// Change is one thing that happened to a process, in the order in which it happened.
type Change struct {
	Kind    ChangeKind
	Process *Process
	At      uint64 // ns, CLOCK_MONOTONIC, when it happened (not when it was noticed)
}
