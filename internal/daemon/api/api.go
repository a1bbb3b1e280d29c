// Package api is the way between the privileged daemon and whoever asks it:
// HTTP/1.1 with JSON over a unix socket, credentials checked by the kernel.
//
//	GET /v1/version                  Version; anybody may ask
//	GET /v1/status                   Status, cut down to what the caller may see
//	GET /v1/targets                  []Target, likewise
//	GET /v1/candidates               []Candidate: processes that use a GPU, of the caller, or, for root, of everybody
//	PUT /v1/targets?pid=N            process N, with its children, becomes a target
//	DELETE /v1/targets?pid=N         target N is released and runs on; nothing of ours runs in it
//	GET /v1/recording?pid=N          everything that is kept of target N, as recording.WriteStream writes it
//	GET /v1/recording?pid=N&last=30s the last 30 s of it
//	GET /v1/recording?pid=N&for=10s  the 10 s from now on; the answer begins when they have passed
//	GET /v1/recording?pid=N&for=10s&gpu=continuous  likewise, with GPU activity recorded all of that time
//	PUT /v1/flight[?pid=N]           Flight: what is remembered of target N, or of all, is written to the daemon's disk; root
//	GET /v1/dump?pid=N               dump.Dump: one stack of every thread of N now; &children=true: of its children too
//
// Durations are written as Go writes them ("30s", "1m30s", "250ms"). An error is an ErrorBody with a fitting HTTP
// status. Root and the daemon's own user see every target; the owner of a target (the user who alone it runs as) sees
// that target, but for children that run as somebody else or with more rights; anybody else is refused. A user whom
// Allow admits may have a process watched that runs as that user and as nobody else. A version of the interface is the
// first element of the path: within one, fields are only ever added.
package api

import (
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// DefaultSocket is where daemon and client meet unless they are told otherwise.
const DefaultSocket = "/run/inferscope/inferscoped.sock"

// SocketEnv is the environment variable that names another socket.
const SocketEnv = "INFERSCOPE_SOCKET"

// RecordingType is the content type of a recording.
const RecordingType = "application/vnd.inferscope.recording"

// level is the version of this interface: the 1 of /v1.
const level = 1

// The paths of the interface.
const (
	pathVersion    = "/v1/version"
	pathStatus     = "/v1/status"
	pathTargets    = "/v1/targets"
	PathCandidates = "/v1/candidates"
	PathRecording  = "/v1/recording"
	pathFlight     = "/v1/flight"
)

// Version is the answer to pathVersion.
type Version struct {
	API    int `json:"api"`    // Level
	Schema int `json:"schema"` // recording.SchemaVersion
	// Agents reports whether the daemon brings agents into programs. Everybody may know it: `inferscope run` asks
	// before there is a program.
	Agents bool `json:"agents"`
	version.Info
}

// Status is the answer to pathStatus.
type Status struct {
	Version   string                  `json:"version"`
	PID       int                     `json:"pid"`            // of the daemon
	Uptime    float64                 `json:"uptime_seconds"` //
	Targets   []Target                `json:"targets"`
	Sources   []recording.Source      `json:"sources"`
	Libraries []recording.Library     `json:"libraries"`
	Rings     Rings                   `json:"rings"`
	Recorder  Recorder                `json:"recorder"`
	Self      Self                    `json:"self"`
	Agents    []recording.AgentStatus `json:"agents,omitempty"` // that record GPU activity, ordered by PID
	// Sensors are the last samples of the machine's GPUs, and Xids the errors that the driver reported of them; empty
	// while no target uses a GPU.
	Sensors []recording.Sensor   `json:"sensors,omitempty"`
	Xids    []recording.XidCount `json:"xid_errors,omitempty"`
	// Overhead is what watching costs each target, and the levels of the sources in the last minute; empty where nobody
	// governs it.
	Overhead []recording.Overhead `json:"overhead,omitempty"`
	// Discovery is what became of the processes that use a GPU; nil where only those are watched that were asked for.
	Discovery *Discovery `json:"discovery,omitempty"`
	// Kept is what became of recordings on the disk; nil where none are kept.
	Kept   *Kept       `json:"kept,omitempty"`
	Losses []loss.Loss `json:"losses"` // since the start of the daemon, from everywhere
	// Warnings are the last warnings and errors of the daemon's log, the oldest first; for root and the daemon's own
	// user.
	Warnings        []Warning `json:"warnings,omitempty"`
	WarningsOmitted uint64    `json:"warnings_omitted,omitempty"` // older ones
}

// Warning is an entry of the daemon's log.
type Warning struct {
	Time     int64          `json:"time_ns"` // since 1970
	Level    string         `json:"level"`   // warn or error
	Message  string         `json:"message"`
	Fields   []WarningField `json:"fields,omitempty"`   // by name
	Reported bool           `json:"reported,omitempty"` // every report covers it by itself
}

// WarningField is a detail of a Warning.
type WarningField struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// String returns the warning in one line, without its time.
func (w *Warning) String() string {
	if len(w.Fields) == 0 {
		return w.Message
	}
	details := make([]string, len(w.Fields))
	for i, f := range w.Fields {
		details[i] = f.Name + ": " + f.Value
	}
	return w.Message + " (" + strings.Join(details, ", ") + ")"
}

// Kept is what became of recordings on the disk. Recordings, Deleted, Lost, Failed, Killed and Uploaded hold for the
// directory, whichever daemon it was; the others since the start of this one. Recordings is the sum of Uploaded,
// Deleted, Lost, and those on the disk that are not uploaded.
type Kept struct {
	Recordings uint64 `json:"recordings"`     // that were begun, and in which something happened
	Bytes      int64  `json:"bytes"`          // that recordings take on the disk now
	Kept       int    `json:"kept"`           // finished recordings on the disk now
	Deleted    uint64 `json:"deleted"`        // to make room, or because of their age, that were not in an object store
	Lost       uint64 `json:"lost,omitempty"` // nothing is left of them: they had just begun when the daemon was killed
	Failed     uint64 `json:"failed"`         // stretches that could not be fetched or written
	Error      string `json:"error,omitempty"`
	// Killed is how often the process that keeps them did not end as it should: each time, what it had not written yet
	// of each target is missing, 10 s at most.
	Killed uint64 `json:"killed,omitempty"`
	// Of a flight recorder: what triggers have saved, and what they have not because of the limit for a day.
	Flights        uint64 `json:"flights,omitempty"`
	FlightsOmitted uint64 `json:"flights_omitted,omitempty"`
	// With an object store:
	Uploaded     uint64 `json:"uploaded,omitempty"`      // recordings that the store has
	Pending      int    `json:"pending,omitempty"`       // that it does not have yet
	UploadFailed uint64 `json:"upload_failed,omitempty"` // attempts
	UploadError  string `json:"upload_error,omitempty"`
}

// TargetState describes what the daemon does about a target.
type TargetState string

// The states of a target.
const (
	Watching TargetState = "watching" // its CUDA calls are recorded
	// Attaching: it has just been asked for or found, and what it had at its beginning is not yet followed. A recording
	// of it begins later.
	Attaching TargetState = "attaching"
	Waiting   TargetState = "waiting"  // it runs, but no CUDA library of it is probed: Target.Detail says why
	Exited    TargetState = "exited"   // it and all its children are gone; what was recorded is still served
	Released  TargetState = "released" // somebody asked to release it; likewise
)

// Target is a process that was asked for, with its children.
type Target struct {
	PID       uint32              `json:"pid"`
	NSPID     uint32              `json:"ns_pid,omitempty"` // in its own pid namespace, where that differs
	UID       uint32              `json:"uid"`              // real user id of its owner
	Comm      string              `json:"comm"`
	Cmdline   string              `json:"cmdline"`
	State     TargetState         `json:"state"`
	Detail    string              `json:"detail,omitempty"`
	Watched   float64             `json:"watched_seconds"` // since it is followed; until its end, where it ended
	Processes []recording.Process `json:"processes"`       // itself and its children, the living and the dead
	// Withheld counts processes that run as somebody else than the target's owner, or with more rights: the owner is
	// not told of them.
	Withheld int         `json:"withheld_processes,omitempty"`
	Losses   []loss.Loss `json:"losses,omitempty"` // what was lost of this target alone, or because of it

	Found bool `json:"found,omitempty"` // by discovery: forgotten when it has ended and its recording has expired
	Place
	GPUs  []string          `json:"gpus,omitempty"`  // device files that its processes have open: nvidia0
	Roles map[uint32]string `json:"roles,omitempty"` // of its living processes, by pid, where known: API server, engine, worker

	Owner  uint32          `json:"-"` // user who alone it runs as, who may see it
	Others map[uint32]bool `json:"-"` // pids of Processes that Owner may not see
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

// Self is what the daemon costs.
type Self struct {
	CPU  float64 `json:"cpu_seconds"` // user and system
	RSS  int64   `json:"rss_bytes"`
	Heap int64   `json:"heap_bytes"` // live objects of the daemon itself at its last garbage collection
}

// Window describes which stretch of time a recording is about: For > 0 means from now
// on for so long, else Last > 0 means so far back from now, else everything kept.
type Window struct {
	Last time.Duration
	For  time.Duration
	GPU  string // GPUContinuous: record GPU activity all of For, at a price (docs/gpu-agent.md); "": as the daemon does
}

// GPUContinuous asks for GPU records of all the time.
const GPUContinuous = "continuous"

// Facts are what a stretch of ten seconds of a target says, by the analysis that reports rest on. Times are ns.
type Facts struct {
	PID        uint32            `json:"pid"`
	Iterations uint64            `json:"iterations"`
	P50        uint64            `json:"p50_ns"`              // of iterations
	Durations  []uint64          `json:"durations,omitempty"` // of iterations that were seen
	Watched    uint64            `json:"watched_ns"`          // in which GPU activity was seen, summed over GPUs
	Busy       uint64            `json:"busy_ns"`             // of Watched: a GPU ran something
	Idle       map[string]uint64 `json:"idle_ns,omitempty"`   // of Watched, by cause
	Hangs      uint64            `json:"hangs"`               // collectives that a rank had not come to at the end
	Calls      uint64            `json:"calls"`               // CUDA calls whose result is known
	Errors     uint64            `json:"errors"`              // of Calls
}
