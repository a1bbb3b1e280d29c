// Package target finds and follows the processes that are watched: a process
// with its children, by identity and not by number, in whatever mount and pid
// namespace they live.
//
// The kernel says what happens to them: sched_process_fork, _exec and _exit
// (bpf/process.bpf.c) and the mmap2 records of perf events, so that nothing
// short-lived is missed and a quiet target costs 0.1% of a core. What is read from a
// process (/proc, its files) is checked afterwards against its pidfd, so that it
// is never another process's, and is treated as hostile: bounded, and no path is
// opened outside the process's own root.
package target

import "os"

// Process is one process of a target: identified by pid and start time, held by
// a pidfd, so that a pid that is used again is never mistaken for it. A Process
// that a Watcher hands out never changes; the next Change carries a new one.
type Process struct {
	PID       uint32   // in the initial pid namespace
	NSPID     uint32   // in its own pid namespace; 0 where it was gone before it could be read
	Parent    uint32   // pid of the watched process that made it; 0 for the root of a target
	Root      uint32   // pid of the process that was asked for
	StartTime uint64   // clock ticks (10 ms) since boot, /proc/PID/stat field 22
	Born      uint64   // ns, CLOCK_MONOTONIC; up to 10 ms early, and by any time asleep since, where no fork was seen
	UID       uint32   // real user id of the owner
	Comm      string   //
	Cmdline   string   // arguments joined with spaces, at most 4,096 bytes
	Died      uint64   // ns, CLOCK_MONOTONIC; 0 while it runs
	ExitCode  int32    // as wait(2) gives it, once it died
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

// Mapping is one file mapped executable into a process.
type Mapping struct {
	Start, End uint64 // addresses in the process
	Offset     uint64 // of Start in the file, bytes
	Dev        uint64 // as /proc/PID/maps prints it, major<<32 | minor
	Inode      uint64
	Path       string // as the process sees it, without " (deleted)"; may hold any byte but NUL
	Deleted    bool
}

// ChangeKind says what happened to a process.
type ChangeKind uint8

// The changes.
const (
	Appeared ChangeKind = iota // a process joined the target: the root, or a child
	Mapped                     // it may have mapped another file executable
	Execed                     // it replaced its program: all mappings are new
	Exited                     // it is gone; Died and ExitCode are set
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
	}
	return "unknown"
}

// Change is one thing that happened to a process, in the order in which it happened.
type Change struct {
	Kind    ChangeKind
	Process *Process
	At      uint64 // ns, CLOCK_MONOTONIC, when it happened (not when it was noticed)
}
