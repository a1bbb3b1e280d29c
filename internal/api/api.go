// Package api is the way between the privileged daemon and whoever asks it:
// HTTP/1.1 with JSON over a unix socket, credentials checked by the kernel.
//
//	GET /v1/version                  Version; anybody may ask
//	GET /v1/status                   Status, cut down to what the caller may see
//	GET /v1/targets                  []Target, likewise
//	PUT /v1/targets?pid=N            process N, with its children, becomes a target
//	DELETE /v1/targets?pid=N         target N is let go of, and runs on; nothing of ours runs in it
//	GET /v1/recording?pid=N          everything that is kept of target N, as record.WriteStream writes it
//	GET /v1/recording?pid=N&last=30s the last 30 s of it
//	GET /v1/recording?pid=N&for=10s  the 10 s from now on; the answer begins when they have passed
//	GET /v1/recording?pid=N&for=10s&gpu=continuous  likewise, with GPU activity recorded all of that time
//	GET /v1/dump?pid=N               dump.Dump: one stack of every thread of N now; &children=true: of its children too
//
// Durations are written as Go writes them ("30s", "1m30s", "250ms"). An error is an
// ErrorBody with a fitting HTTP status. Root and the daemon's own user see every
// target; the owner of a target (its real uid) sees that target; anybody else is
// refused. A user may have a process watched that runs as that user and as nobody else. A version of the interface is the first element of the path: within
// one, fields are only ever added.
package api

import (
	"time"

	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/version"
)

// DefaultSocket is where daemon and client meet unless they are told otherwise.
const DefaultSocket = "/run/inferscope/inferscoped.sock"

// SocketEnv is the environment variable that names another socket.
const SocketEnv = "INFERSCOPE_SOCKET"

// RecordingType is the content type of a recording.
const RecordingType = "application/vnd.inferscope.recording"

// Level is the version of this interface: the 1 of /v1.
const Level = 1

// The paths of the interface.
const (
	PathVersion   = "/v1/version"
	PathStatus    = "/v1/status"
	PathTargets   = "/v1/targets"
	PathRecording = "/v1/recording"
)

// Version is the answer to PathVersion.
type Version struct {
	API    int `json:"api"`    // Level
	Schema int `json:"schema"` // record.SchemaVersion
	// Agents says whether the daemon brings agents into programs. Everybody may know it: `inferscope run` asks before there is a program.
	Agents bool `json:"agents"`
	version.Info
}

// Status is the answer to PathStatus.
type Status struct {
	Version   string           `json:"version"`
	PID       int              `json:"pid"`            // of the daemon
	Uptime    float64          `json:"uptime_seconds"` //
	Targets   []Target         `json:"targets"`
	Sources   []record.Source  `json:"sources"`
	Libraries []record.Library `json:"libraries"`
	Rings     Rings            `json:"rings"`
	Recorder  Recorder         `json:"recorder"`
	Self      Self             `json:"self"`
	Agents    []Agent          `json:"agents,omitempty"` // that record GPU activity, ordered by PID
	Losses    []loss.Loss      `json:"losses"`           // since the start of the daemon, from everywhere
}

// GPUSource is what the source that brings agents into programs is called in Status.Sources. Where it is not
// there, or its state is SourceOff, no agent is used.
const (
	GPUSource = "gpu activity"
	SourceOff = "off"
)

// TargetState says what the daemon does about a target.
type TargetState string

// The states of a target.
const (
	Watching TargetState = "watching" // its CUDA calls are recorded
	Waiting  TargetState = "waiting"  // it runs, but no CUDA library of it is probed: Target.Detail says why
	Exited   TargetState = "exited"   // it and all its children are gone; what was recorded is still served
	Released TargetState = "released" // somebody asked to let go of it; likewise
)

// Target is a process that was asked for, with its children.
type Target struct {
	PID       uint32           `json:"pid"`
	NSPID     uint32           `json:"ns_pid,omitempty"` // in its own pid namespace, where that differs
	UID       uint32           `json:"uid"`              // real user id of its owner
	Comm      string           `json:"comm"`
	Cmdline   string           `json:"cmdline"`
	State     TargetState      `json:"state"`
	Detail    string           `json:"detail,omitempty"`
	Watched   float64          `json:"watched_seconds"` // since it is followed; until its end, where it ended
	Processes []record.Process `json:"processes"`       // itself and its children, the living and the dead
}

// Rings is the state of the kernel's ring buffers.
type Rings struct {
	Bytes  int64       `json:"bytes"`  // of kernel memory
	Events uint64      `json:"events"` // taken out of them so far, and samples
	Calls  uint64      `json:"calls"`  // of these, calls of probed functions
	Losses []loss.Loss `json:"losses"`
}

// Recorder is the state of the daemon's memory of the last seconds.
type Recorder struct {
	Budget      int64   `json:"budget_bytes"`
	Used        int64   `json:"used_bytes"`
	Keep        float64 `json:"keep_seconds"`
	Events      uint64  `json:"events"`      // kept now
	Overwritten uint64  `json:"overwritten"` // events that made room for newer ones
	Since       uint64  `json:"since_ns"`    // CLOCK_MONOTONIC from which on it is complete
	Reach       float64 `json:"reach_seconds"`
}

// Agent is what records the GPU activity of one process, with what it has recorded so far.
type Agent struct {
	record.Agent        // Dropped counts from the start
	Kernels      uint64 `json:"kernels"`  // seen
	Events       uint64 `json:"events"`   // kernels, copies, launches and so on
	Windows      uint64 `json:"windows"`  // that ended
	Disabled     uint64 `json:"disabled"` // of these, without leaving CUPTI
	Kept         uint64 `json:"kept"`     // of these, without giving CUPTI's subscription up: in between nothing is on

	Steps []WindowSteps `json:"window_steps,omitempty"` // of the last windows, 64 at most, the latest last
}

// WindowSteps says when a window began and what each step of it took, as the agent measured them: all in ns. What runs in
// the agent's own thread can still hold up calls into the driver. From Disable on it ran in a thread of the process itself
// where the window ended as finalized and not Own: what that thread had to do lay still meanwhile.
type WindowSteps struct {
	Began  uint64 `json:"began_ns"`  // of the first step, CLOCK_MONOTONIC
	Opened uint64 `json:"opened_ns"` // when everything was on, CLOCK_MONOTONIC
	Off    uint64 `json:"off_ns"`    // when it began to go off, CLOCK_MONOTONIC

	Subscribe uint64 `json:"subscribe"` // cuptiSubscribe
	SetUp     uint64 `json:"set_up"`    // buffers, clock, ids of threads
	Callbacks uint64 `json:"callbacks"` // enabling those of launches, copies and graphs
	Kinds     uint64 `json:"kinds"`     // enabling kinds of records
	Ending    uint64 `json:"ending"`    // enabling the callbacks that end it, before Off
	Disable   uint64 `json:"disable"`   // of the kinds
	Flush     uint64 `json:"flush"`     // the last one
	Leave     uint64 `json:"leave"`     // clock back, unsubscribe
	Finalize  uint64 `json:"finalize"`  // cuptiFinalize
	Own       bool   `json:"own"`       // the agent's own thread finalized CUPTI

	LongestFlush   uint64 `json:"longest_flush"`      // of those while it was open
	LongestFlushAt uint64 `json:"longest_flush_from"` // since Opened
}

// Self is what the daemon costs.
type Self struct {
	CPU float64 `json:"cpu_seconds"` // user and system
	RSS int64   `json:"rss_bytes"`
}

// Window says which stretch of time a recording is about: For > 0 means from now
// on for so long, else Last > 0 means so far back from now, else everything kept.
type Window struct {
	Last time.Duration
	For  time.Duration
	GPU  string // GPUContinuous: record GPU activity all of For, at a price (docs/gpu-activity.md); "": as the daemon does
}

// GPUContinuous asks for GPU records of all the time.
const GPUContinuous = "continuous"
