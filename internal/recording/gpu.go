package recording

// GPU is what the agents said beside their events: what GPU activity of the window
// was recorded, and the tables that name it. Ranges and Attributes may come from the program
// without any agent: then Mode may be off.
type GPU struct {
	Mode    string      `json:"mode"`              // continuous, windows or off: what the daemon was asked for
	Agents  []Agent     `json:"agents"`            // one of each process that has or should have one, ordered by PID
	Windows []GPUWindow `json:"windows"`           // the stretches of time in which GPU activity was recorded, ordered by From
	Devices []Device    `json:"devices,omitempty"` //
	Streams []Stream    `json:"streams,omitempty"` //
	Kernels []Kernel    `json:"kernels,omitempty"` // Ret of a Kernel event is an index + 1
	Ranges  []string    `json:"ranges,omitempty"`  // Ret of a Range event is an index + 1
	// Attributes are JSON objects that scopes of the Python package carry; Args[3] of such a Range is an index + 1.
	Attributes []string `json:"attributes,omitempty"`
}

// Agent is the state of the agent in one process.
type Agent struct {
	PID     uint32 `json:"pid"`
	State   string `json:"state"`                     // waiting, running, dormant, refused, gone
	Detail  string `json:"detail,omitempty"`          // why it is not running, or what it waits for; what to do next
	CUPTI   string `json:"cupti,omitempty"`           // path of the libcupti it uses, as the target sees it
	Version uint32 `json:"cupti_version,omitempty"`   // as cuptiGetVersion gives it, e.g. 130001
	Stopped uint64 `json:"stopped_ns,omitempty"`      // for how long one thread was stopped to load it
	Joined  uint64 `json:"joined_ns,omitempty"`       // CLOCK_MONOTONIC: when it reported for the first time
	Slower  string `json:"slower,omitempty"`          // what it costs although it is off, after a way out without finalize; "" nothing
	Dropped uint64 `json:"dropped_records,omitempty"` // by CUPTI and by a full ring, in the recording's window
}

// GPUWindow is a stretch of time in which GPU activity (Activity), launches (Calls)
// or both of one process were recorded whole, but for what Dropped says. Without an
// agent launches are seen by probes, in windows too: then Activity is false.
type GPUWindow struct {
	PID      uint32 `json:"pid"`
	From     uint64 `json:"from_ns"`           // CLOCK_MONOTONIC
	To       uint64 `json:"to_ns"`             //
	Activity bool   `json:"activity"`          // what the GPU did was seen
	Calls    bool   `json:"calls"`             // launches were seen: with correlation ids where Activity is set
	Dropped  uint64 `json:"dropped,omitempty"` // records lost in it, by CUPTI or by a full ring
	// open, finalized, disabled, kept (subscribed still), detached (probes): how it ended
	End string `json:"end"`
}

// Device is one GPU that the target uses.
type Device struct {
	PID      uint32 `json:"pid"`
	ID       uint32 `json:"id"`             // as the process counts; low byte of Func of its events
	Name     string `json:"name"`           // e.g. NVIDIA H200
	UUID     string `json:"uuid,omitempty"` //
	SMs      uint32 `json:"sms,omitempty"`
	Memory   uint64 `json:"memory_bytes,omitempty"`
	PeakRate uint64 `json:"memory_bytes_per_s,omitempty"` // of its memory
	Major    uint32 `json:"major,omitempty"`              // compute capability
	Minor    uint32 `json:"minor,omitempty"`
}

// Stream is one CUDA stream.
type Stream struct {
	PID      uint32 `json:"pid"`
	ID       uint32 `json:"id"`      // TID of its events
	Context  uint32 `json:"context"` // CUPTI context id
	Priority int32  `json:"priority,omitempty"`
	Kind     string `json:"kind,omitempty"` // default, non-blocking, null: CUpti_ActivityStreamFlag
}

// Kernel is a kernel function as CUPTI describes it.
type Kernel struct {
	Name         string `json:"name"`                    // demangled, whole
	Registers    uint32 `json:"registers,omitempty"`     // of each thread
	StaticShared uint32 `json:"static_shared,omitempty"` // bytes
	Local        uint32 `json:"local,omitempty"`         // bytes of each thread
}

// Communicator is what a communicator of NCCL said of itself when it was first seen.
type Communicator struct {
	PID     uint32 `json:"pid"`
	Address uint64 `json:"address"`        // what its process calls it
	Hash    string `json:"hash,omitempty"` // commHash, the same for all ranks, as RAS gives it; "": not known
	Rank    int    `json:"rank"`
	Ranks   int    `json:"ranks"`
	GPU     int    `json:"gpu"` // as its process counts
}

// RAS is what NCCL's RAS subsystem said of the communicators in which a target has ranks, when the recording was made.
// The ranks say it of themselves to each other: also those of other hosts.
type RAS struct {
	At            uint64            `json:"at_ns"`             // CLOCK_MONOTONIC
	Version       string            `json:"version,omitempty"` // of NCCL
	Communicators []RASCommunicator `json:"communicators"`
}

// RASCommunicator is one communicator. NCCL before 2.28.7 tells only of ranks that differ from most.
type RASCommunicator struct {
	Hash  string    `json:"hash"`           // commHash, 16 digits
	Size  int       `json:"size,omitempty"` // ranks; 0: not told
	Ranks []RASRank `json:"ranks,omitempty"`
	// Missing are ranks that did not answer.
	Missing []RASRank `json:"missing,omitempty"`
	// Most is how many operations of a kind ranks launched that are not told of one by one.
	Most map[string]uint64 `json:"most,omitempty"`
}

// RASRank is one rank.
type RASRank struct {
	Rank   int               `json:"rank"`
	Host   string            `json:"host,omitempty"`        // its address
	PID    uint32            `json:"pid,omitempty"`         // as its own pid namespace counts
	GPU    int               `json:"gpu"`                   // as its process counts
	Counts map[string]uint64 `json:"counts,omitempty"`      // operations that it launched, by kind: AllReduce
	Error  int               `json:"async_error,omitempty"` // ncclResult_t of ncclCommGetAsyncError
	Dead   bool              `json:"dead,omitempty"`        // it has not answered for a minute
}
