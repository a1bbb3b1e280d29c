// Package summary turns a timeline into numbers: what the CUDA calls of a target
// did in a window, counted once each. It is a pure function of the timeline, and
// it knows the CPU's side only: how long calls took, never how long the GPU worked.
//
// Everything here is about outermost calls: a driver call that a runtime call
// made is part of that operation (see package timeline). An operation is counted where it
// began; its time counts as far as it lies in the window. Times of a call are
// known where the table of package cuda says that it is timed: launches and cheap
// queries are counted only.
package summary

import "github.com/inferscope/inferscope/internal/cuda"

// Summary is everything that is said about a window. Times are ns, sizes are
// bytes, shares are fractions (0.5 is half).
type Summary struct {
	Window     Window   `json:"window"`
	Windows    *Windows `json:"launch_windows,omitempty"` // absent: launches were recorded all the time
	Operations uint64   `json:"operations"`
	Inner      uint64   `json:"inner_calls"`           // calls inside other calls; not among Operations
	PerSecond  float64  `json:"operations_per_second"` // launches while they were recorded, the others of Window.Observed
	CallTime   uint64   `json:"call_time_ns"`          // inside timed calls, summed over threads; without launches that were recorded in windows
	// of Window.Observed: of one thread's time, so that several threads can exceed 1
	CallShare   float64     `json:"call_time_share"`
	Waiting     waiting     `json:"waiting"`
	Launches    Launches    `json:"launches"`
	Copies      []Copy      `json:"copies"`      // by bytes, the most first
	Memory      Memory      `json:"memory"`      //
	Functions   []Function  `json:"functions"`   // by time, then count, the most first
	Inside      []inside    `json:"inside"`      // functions that other calls called
	Threads     []thread    `json:"threads"`     // by operations, the most first
	Streams     []Stream    `json:"streams"`     // by launches and copies, the most first
	Errors      []ErrorCode `json:"errors"`      // by count, the most first
	Processes   []Process   `json:"processes"`   // as in the recording
	Libraries   []Library   `json:"libraries"`   // one row for each file
	Unreadable  uint64      `json:"unreadable"`  // operations with an argument that could not be read
	Unlisted    int         `json:"unlisted"`    // calls of processes that the recording does not describe
	Overlapping int         `json:"overlapping"` // timed calls of a thread that overlap without nesting
	Stray       int         `json:"stray"`       // calls of functions that the recording does not name; left out
}

// Window is the stretch of time that a summary is about.
type Window struct {
	From     uint64 `json:"from_ns"`      // CLOCK_MONOTONIC
	To       uint64 `json:"to_ns"`        // CLOCK_MONOTONIC
	WallFrom int64  `json:"wall_from_ns"` // From, ns since 1970
	Length   uint64 `json:"length_ns"`
	// Observed is the part of it in which calls could be seen: from when the first
	// process was probed to when the last one died. Rates and shares refer to it.
	ObservedFrom uint64 `json:"observed_from_ns"`
	ObservedTo   uint64 `json:"observed_to_ns"`
	Observed     uint64 `json:"observed_ns"`
}

// Windows are the stretches of time in which launches were recorded, where that is not all the time.
type Windows struct {
	Time     uint64  `json:"ns"`    // of all processes together: a union
	Count    int     `json:"count"` //
	Share    float64 `json:"share"` // Time of Window.Observed
	Launches uint64  `json:"launches"`
	// PerSecond is the rate of launches while they were recorded, summed over processes.
	PerSecond float64 `json:"launches_per_second"`
}

// waiting is the time in which threads were in calls that wait for the device, or can.
type waiting struct {
	Sync        Blocked `json:"sync"`         // synchronisation calls
	Copies      Blocked `json:"copies"`       // copies whose name does not say Async
	AsyncCopies Blocked `json:"async_copies"` // the others: they return at once unless they must wait, as with pageable memory
	All         Blocked `json:"all"`          // these together
}

// Blocked is the time in calls of one kind.
type Blocked struct {
	Calls   uint64  `json:"calls"`  // that began in the window
	Time    uint64  `json:"ns"`     // in them, summed over threads
	Any     uint64  `json:"any_ns"` // in which at least one thread was in one
	Share   float64 `json:"share"`  // Any of Window.Observed
	Longest uint64  `json:"longest_ns"`
}

// Function is what is said of one function, all its version suffixes together.
type Function struct {
	Name    string   `json:"name"`
	Names   []string `json:"names,omitempty"` // as exported, where that is not just Name
	Library string   `json:"library"`         // driver or runtime
	Group   string   `json:"group"`
	Timed   bool     `json:"timed"` // times are known: of the calls without one, Untimed says how many
	Count   uint64   `json:"count"`
	Untimed uint64   `json:"untimed,omitempty"` // calls of a timed function whose duration was lost
	Skipped uint64   `json:"skipped,omitempty"` // of Count: calls so frequent that they were only counted; Time has the mean of the others for each
	Errors  uint64   `json:"errors"`            // timed calls only: others have no result
	Time    uint64   `json:"time_ns"`           // in the window, summed over threads
	Share   float64  `json:"share"`             // Time of Window.Observed: of one thread's time
	P50     uint64   `json:"p50_ns"`            // of the whole durations of the calls that began in the window
	P99     uint64   `json:"p99_ns"`
	Max     uint64   `json:"max_ns"`
	Bytes   uint64   `json:"bytes"`
	Early   uint64   `json:"early,omitempty"` // calls that began before the window: only their time counts
	// Seen is for how long such calls were recorded, where that was in windows only, ns: Count and
	// Time are of these windows, and Share is of this time.
	Seen uint64 `json:"seen_ns,omitempty"`
}

// inside describes how often a function was called by other calls.
type inside struct {
	Name    string `json:"name"`
	Library string `json:"library"`
	Count   uint64 `json:"count"`
	In      string `json:"in"` // the outermost function that most of these calls were inside of
}

// thread is what one thread did.
type thread struct {
	PID      uint32  `json:"pid"`
	TID      uint32  `json:"tid"`
	Name     string  `json:"name"`
	Count    uint64  `json:"operations"`
	Launches uint64  `json:"launches"` // of kernels and graphs
	Time     uint64  `json:"call_time_ns"`
	Share    float64 `json:"share"` // Time of Window.Observed
	Sync     uint64  `json:"sync_ns"`
	SyncPart float64 `json:"sync_share"` // Sync of Window.Observed
}

// Stream is what calls that name it asked of a stream; copies and sets that name
// none are on the default stream.
type Stream struct {
	PID     uint32 `json:"pid"`
	Handle  uint64 `json:"handle"`
	Name    string `json:"name"` // of the two default streams
	Count   uint64 `json:"operations"`
	Kernels uint64 `json:"kernels"`
	Graphs  uint64 `json:"graphs"`
	Copies  uint64 `json:"copies"`
	Bytes   uint64 `json:"copy_bytes"`
	Syncs   uint64 `json:"syncs"`
	Sync    uint64 `json:"sync_ns"`
}

// Copy is the copies of one direction, those that say Async apart from those that do not.
type Copy struct {
	Direction cuda.Direction `json:"direction"`
	Async     bool           `json:"async"`
	Count     uint64         `json:"count"`
	Failed    uint64         `json:"failed"` // they count, their bytes do not
	Bytes     uint64         `json:"bytes"`
	Unsized   uint64         `json:"unsized,omitempty"` // copies whose size is not known
	Time      uint64         `json:"time_ns"`           // whole durations of the calls that began in the window
	Longest   uint64         `json:"longest_ns"`
	// Bandwidth is bytes per second of call time, where the calls return when the
	// copy is done: from or to host memory and not Async. 0 elsewhere.
	Bandwidth float64 `json:"bandwidth_bytes_per_second,omitempty"`
}

// Memory is what was allocated and freed.
type Memory struct {
	Kinds     []allocation `json:"kinds"`
	FreeTime  uint64       `json:"free_ns"`
	Frees     uint64       `json:"frees"`
	Freed     uint64       `json:"freed_bytes"`     // of allocations seen in the window
	Unmatched uint64       `json:"unmatched_frees"` // of memory allocated before the window, or elsewhere
	Net       int64        `json:"net_bytes"`       // allocated less Freed
	// Skipped is how many of the allocations and frees were so frequent that they were only counted:
	// then Net, Unmatched and what each kind kept are not known, and are 0.
	Skipped uint64 `json:"skipped,omitempty"`
}

// allocation is one kind of memory.
type allocation struct {
	Kind   string `json:"kind"` // device, host (pinned, also by registering it), managed
	Count  uint64 `json:"count"`
	Failed uint64 `json:"failed"`
	Bytes  uint64 `json:"bytes"` // of those that succeeded, as asked for
	Time   uint64 `json:"time_ns"`
	Kept   uint64 `json:"kept_bytes"` // not freed before the end of the window
}

// Launches is what was started on the device.
type Launches struct {
	Kernels   uint64  `json:"kernels"`
	Graphs    uint64  `json:"graphs"`
	PerSecond float64 `json:"per_second"` // kernels and graphs
	Handles   int     `json:"handles"`    // distinct kernels, by handle and process
	Shapes    []shape `json:"shapes"`     // the most frequent ones, the most first
	AllShapes int     `json:"all_shapes"` // how many there are
}

// shape is one size of launch.
type shape struct {
	Grid    [3]uint32 `json:"grid"`
	Block   [3]uint32 `json:"block"`
	Shared  uint32    `json:"dynamic_shared_bytes"`
	Count   uint64    `json:"count"`
	Share   float64   `json:"share"`   // of kernel launches
	Handles int       `json:"handles"` // distinct kernels launched so
}

// ErrorCode is one error that CUDA returned to the program.
type ErrorCode struct {
	Function string `json:"function"`
	Code     int32  `json:"code"`
	Name     string `json:"name"`
	Count    uint64 `json:"count"`
}

// Process is one process of the target.
type Process struct {
	PID      uint32 `json:"pid"`
	NSPID    uint32 `json:"ns_pid,omitempty"`
	Parent   uint32 `json:"parent,omitempty"`
	Comm     string `json:"comm"`
	Cmdline  string `json:"cmdline"`
	Born     uint64 `json:"born_ns"`
	Probed   uint64 `json:"probed_ns,omitempty"`
	Died     uint64 `json:"died_ns,omitempty"`
	ExitCode int32  `json:"exit_code,omitempty"` // as wait(2) gives it
	Count    uint64 `json:"operations"`
}

// Library is one file that was probed, in whichever processes map it.
type Library struct {
	Path    string   `json:"path"`
	Inode   uint64   `json:"inode"`
	BuildID string   `json:"build_id,omitempty"`
	Kind    string   `json:"kind"`
	PIDs    []uint32 `json:"pids"`
	Found   int      `json:"found"`
	Points  int      `json:"points"`
	Cheap   int      `json:"cheap"`
	Mode    string   `json:"mode"`
	Error   string   `json:"error,omitempty"`
}
