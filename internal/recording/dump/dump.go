// Package dump is one stack of every thread of a process at one moment: what it holds,
// and how it is laid out for people. Package live makes one.
package dump

import "github.com/inferscope/inferscope/internal/recording"

// schema is the version of the JSON form. Within one, fields are only ever added.
const schema = 1

// Kind identifies the JSON format.
const Kind = "inferscope.dump"

// Dump is the threads of a target at one moment. Nothing was stopped for it: each
// thread's stack is of one moment of its own, and Thread.Torn says where not even that.
type Dump struct {
	Kind      string    `json:"kind"`
	Schema    int       `json:"schema"`
	Version   string    `json:"version"` // of the daemon
	At        int64     `json:"at_ns"`   // on the wall clock, ns since 1970
	Took      uint64    `json:"took_ns"`
	Target    uint32    `json:"target"` // pid that was asked for
	Processes []Process `json:"processes"`
	// Withheld counts processes that are left out because they run as somebody else than who asked, or with more
	// rights.
	Withheld int `json:"withheld_processes,omitempty"`
}

// Process is one process with its threads.
type Process struct {
	PID     uint32   `json:"pid"`
	NSPID   uint32   `json:"ns_pid,omitempty"` // in its own pid namespace, where that differs
	Parent  uint32   `json:"parent,omitempty"`
	Comm    string   `json:"comm"`
	Cmdline string   `json:"cmdline"`
	Runtime string   `json:"runtime,omitempty"` // "Python 3.11"
	Path    string   `json:"runtime_path,omitempty"`
	Threads []Thread `json:"threads"`
	Notes   []string `json:"notes,omitempty"` // what could not be read, and why
}

// State is the state of a thread.
type State string

// The states.
const (
	Active   State = "active"   // on a CPU
	Runnable State = "runnable" // it could run, and waited for a CPU
	Idle     State = "idle"     // it waited: Thread.Doing says in what
	Stopped  State = "stopped"  // by a signal or a tracer
	Exited   State = "exited"
)

// Thread is one thread.
type Thread struct {
	TID      uint32  `json:"tid"`
	Name     string  `json:"name"`
	State    State   `json:"state"`
	Reason   string  `json:"reason,omitempty"`   // of an idle one, as package threads calls it: "lock or condition"
	Doing    string  `json:"doing,omitempty"`    // of an idle one: the system call and what it is about
	Activity string  `json:"activity,omitempty"` // what its frames prove: "waiting for the GIL"
	Frames   []Frame `json:"frames"`             // leaf first
	Whole    bool    `json:"whole"`              // the native frames reach the thread's start
	Cut      string  `json:"cut,omitempty"`      // why they do not
	Torn     bool    `json:"torn,omitempty"`     // it ran meanwhile: frames of several moments may be mixed
}

// Frame is one frame. An internal one is the interpreter's own code between two
// Python frames, which a text leaves out unless it is asked for.
type Frame struct {
	recording.Frame
	Internal bool `json:"internal,omitempty"`
}

// New returns an empty Dump.
func New(version string, target uint32) *Dump {
	return &Dump{Kind: Kind, Schema: schema, Version: version, Target: target, Processes: []Process{}}
}
