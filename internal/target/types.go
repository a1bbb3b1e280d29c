// Package target finds and follows the processes that are watched: a process
// with its children, by identity and not by number, in whatever mount and pid
// namespace they live.
package target

import "os"

// Process is one process of a target: identified by pid and start time, held by
// a pidfd, so that a pid that is used again is never mistaken for it.
type Process struct {
	PID       uint32   // in the initial pid namespace
	NSPID     uint32   // in its own pid namespace
	Parent    uint32   // pid of the watched process that made it; 0 for the root of a target
	Root      uint32   // pid of the process that was asked for
	StartTime uint64   // clock ticks since boot, /proc/PID/stat field 22
	Born      uint64   // ns, CLOCK_MONOTONIC, from StartTime
	UID       uint32   // real user id of the owner
	Comm      string   //
	Cmdline   string   // arguments joined with spaces, at most 4,096 bytes
	Died      uint64   // ns, CLOCK_MONOTONIC; 0 while it runs
	ExitCode  int32    // as wait(2) gives it, once it died
	pidfd     *os.File // nil once closed
}

// Mapping is one file mapped executable into a process.
type Mapping struct {
	Start, End uint64 // addresses in the process
	Offset     uint64 // of Start in the file, bytes
	Dev        uint64 // as /proc/PID/maps prints it, major<<32 | minor
	Inode      uint64
	Path       string // as the process sees it, without " (deleted)"
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

// Change is one thing that happened to a process, in the order in which it happened.
type Change struct {
	Kind    ChangeKind
	Process *Process
	At      uint64 // ns, CLOCK_MONOTONIC, when it happened (not when it was noticed)
}
