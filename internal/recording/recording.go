// Package recording holds what was seen of a target: the Recorder keeps the last
// seconds within a byte budget, a Recording is an immutable stretch of it, and
// a Stream carries a Recording from the daemon to whoever thinks about it.
package recording

import (
	"strings"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// SchemaVersion is the version of Meta and of the stream's framing. A reader
// refuses a newer major schema and ignores fields that it does not know.
const SchemaVersion = 1

// Recording is a bounded, immutable stretch of events plus the tables that name
// things. Everything downstream of it is a pure function of it.
//
// It holds the events that overlap the window [Meta.From, Meta.To]: also calls
// that began before the window and ended inside it, because their rest took time
// there. Whoever counts calls counts those that began in the window.
type Recording struct {
	Meta   Meta
	Events []event.Event // ordered by TS; events of equal TS keep the order in which they ended
}

// Meta is everything about a recording but its events.
type Meta struct {
	Schema         int             `json:"schema"`
	Version        string          `json:"version"`                   // of the daemon that made it
	Host           Host            `json:"host"`                      //
	Target         uint32          `json:"target"`                    // pid of the process that was asked for
	From           uint64          `json:"from_ns"`                   // CLOCK_MONOTONIC, start of the window
	To             uint64          `json:"to_ns"`                     // CLOCK_MONOTONIC, end of the window
	WallFrom       int64           `json:"wall_from_ns"`              // From on the wall clock, ns since 1970, for people
	Processes      []Process       `json:"processes"`                 // ordered by Born, then PID
	Threads        []Thread        `json:"threads"`                   // ordered by PID, then TID
	Functions      []Function      `json:"functions"`                 // event.Func indexes it
	Libraries      []Library       `json:"libraries"`                 //
	Sources        []Source        `json:"sources"`                   //
	Losses         []loss.Loss     `json:"losses"`                    // within the window where that is known, else since the attach
	Frames         []Frame         `json:"frames,omitempty"`          // Node.Frame indexes it
	Stacks         []Node          `json:"stacks,omitempty"`          // a tree; Args[0] of a Sample is an index + 1 into it
	Objects        []Object        `json:"objects,omitempty"`         // files that threads waited for
	OtherThreads   []Thread        `json:"other_threads,omitempty"`   // of other processes, that woke or displaced the target's
	Pressure       []Pressure      `json:"pressure,omitempty"`        // of the host and the cgroup, ordered by TS
	Sensors        []Sensor        `json:"sensors,omitempty"`         // of the machine's GPUs, ordered by TS, then GPU
	Driver         *Driver         `json:"driver,omitempty"`          // nil: the driver says nothing beside the sensors
	GPU            *GPU            `json:"gpu,omitempty"`             // nil: no agent was asked for
	Overhead       *Overhead       `json:"overhead,omitempty"`        // nil: nothing governs what watching costs
	Communicators  []Communicator  `json:"communicators,omitempty"`   // of NCCL
	RAS            *RAS            `json:"ras,omitempty"`             // nil: NCCL's RAS did not answer, or was not asked
	Requests       []Request       `json:"requests,omitempty"`        // that overlap the window, ordered by Received
	Steps          []Step          `json:"steps,omitempty"`           // of inference engines, ordered by TS
	EngineRequests []EngineRequest `json:"engine_requests,omitempty"` // that they worked on in the window
}

// importMark begins the Version of a recording that was made from another tool's file.
const importMark = "import of "

// ImportVersion is the Version of a recording that is made from a tool's file.
func ImportVersion(tool string) string { return importMark + tool }

// ImportedFrom names what a recording was made from, where another tool recorded it: such a recording is of all that
// the tool was asked for, and no daemon can be asked for more.
func (m *Meta) ImportedFrom() (tool string, ok bool) {
	if tool, ok = strings.CutPrefix(m.Version, importMark); !ok {
		return "", false
	}
	return tool, true
}

// FrameKind is the kind of code that a frame is of.
type FrameKind string

// The kinds of frames.
const (
	KernelFrame FrameKind = "kernel"
	NativeFrame FrameKind = "native"
	PythonFrame FrameKind = "python"
	ErrorFrame  FrameKind = "error" // the stack is cut off here; Name says why
)

// Frame is one place in code, named.
type Frame struct {
	Kind FrameKind `json:"kind"`
	Name string    `json:"name"`           // function, demangled; module+0x123 where there is no symbol
	File string    `json:"file,omitempty"` // Python: source file; native: the mapped file's base name
	Line uint32    `json:"line,omitempty"` // Python: line being executed
}

// Node is one frame of a stack and its caller: a stack is a path from a leaf to a root.
type Node struct {
	Parent int32  `json:"p"` // index of the caller's node, -1 at the thread's start
	Frame  uint32 `json:"f"` // index into Frames
}

// Object is a file that a thread waited for, or a socket that it can have waited for.
type Object struct {
	PID   uint32 `json:"pid"`
	Inode uint64 `json:"inode"`
	// as /proc/PID/fd shows it: a path, pipe:[123], socket:[123], anon_inode:[eventpoll]
	Name string `json:"name"`
	Role Role   `json:"role,omitempty"` // of a socket, when the recording was made; "": not known, or none
}

// Role is on which side of a connection a process is.
type Role string

// The roles of sockets.
const (
	Listening Role = "listening" // others connect to it
	Accepted  Role = "accepted"  // another process opened the connection
	Connected Role = "connected" // this process opened it
	// a connection of which the kernel does not say any more who opened it, or not to the daemon
	Unclear Role = "unclear"
)

// Pressure is the state of the host and of the target's cgroup at one time.
type Pressure struct {
	TS          uint64            `json:"ts_ns"`                       // CLOCK_MONOTONIC
	Throttled   uint64            `json:"throttled_ns,omitempty"`      // cpu.stat throttled_usec so far, in ns
	Periods     uint64            `json:"throttled_periods,omitempty"` // nr_throttled so far
	MemoryStall uint64            `json:"memory_stall_ns,omitempty"`   // memory.pressure some total so far, in ns
	MajorFaults uint64            `json:"major_faults,omitempty"`      // of the target's processes so far
	RemotePages map[string]uint64 `json:"numa_pages,omitempty"`        // pages by NUMA node, as numa_maps counts them
	// FreeCPU is the time of the host's CPUs so far that nobody took, or only programs of lower priority, in ns; 0: not
	// known.
	FreeCPU uint64 `json:"free_cpu_ns,omitempty"`
	GPUNode int    `json:"gpu_node"` // NUMA node of the GPU; -1: not known
}

// Sensor is what one GPU's sensors said at one time. Values that the driver does not give are 0.
type Sensor struct {
	TS                uint64 `json:"ts_ns"` // CLOCK_MONOTONIC
	GPU               int    `json:"gpu"`   // index, as nvidia-smi counts, or among AMD's cards
	UUID              string `json:"uuid"`
	Name              string `json:"name"`
	Power             uint64 `json:"power_mw"`
	PowerLimit        uint64 `json:"power_limit_mw"`
	Temperature       int    `json:"temperature_c"`
	SMClock           uint64 `json:"sm_clock_mhz"`
	SMClockMax        uint64 `json:"sm_clock_max_mhz"`
	MemoryClock       uint64 `json:"memory_clock_mhz"`
	Reasons           uint64 `json:"clock_reasons"`          // nvmlClocksEventReasons: bits
	Utilization       int    `json:"utilization_pct"`        // of the time in which a kernel ran
	MemoryUtilization int    `json:"memory_utilization_pct"` // of the time in which memory was read or written
	MemoryUsed        uint64 `json:"memory_used_bytes"`      // by all processes
	MemoryTotal       uint64 `json:"memory_total_bytes"`     //
	Uncorrected       uint64 `json:"ecc_uncorrected_errors"` // since the driver was loaded
	// MIG says that the GPU is divided into parts: the sensors are those of the whole, and the driver gives no
	// utilization.
	MIG bool `json:"mig"`
	// What the GPU's links carried, bytes a second, as it was read last: received by the GPU and sent. NVIDIA's driver
	// counts PCIe for 20 ms once a second, AMD's for a second; NVLink, all links together, is the average of 10 s.
	Links    Links  `json:"links_known"`
	PCIeRx   uint64 `json:"pcie_rx_bytes_per_s"`
	PCIeTx   uint64 `json:"pcie_tx_bytes_per_s"`
	NVLinkRx uint64 `json:"nvlink_rx_bytes_per_s"`
	NVLinkTx uint64 `json:"nvlink_tx_bytes_per_s"`
}

// Links are kinds of links whose traffic a sample knows, as bits.
type Links uint8

// The kinds of links.
const (
	PCIeLink Links = 1 << iota
	NVLink
	PCIeAtMost // what PCIe carried is an upper bound
)

// ClockReason is why a GPU's clocks are low.
type ClockReason struct {
	Bit  uint64 // of Sensor.Reasons
	Name string
}

// PowerLimit is the reason of a GPU that works as hard as its power limit allows.
const PowerLimit = "power limit"

// ClockReasons returns the reasons that take performance (nvmlClocksEventReasons of nvml.h): idle, application settings
// and sync boost are not among them.
func ClockReasons() []ClockReason {
	return []ClockReason{
		{0x4, PowerLimit},
		{0x8, "hardware slowdown"},
		{0x20, "too hot (software)"},
		{0x40, "too hot (hardware)"},
		{0x80, "power brake"},
	}
}

// Driver is what NVIDIA's driver says beside the sensors.
type Driver struct {
	Processes []GPUProcess `json:"processes,omitempty"`  // the latest of each process of the target and GPU
	Xids      []Xid        `json:"xid_errors,omitempty"` // of the machine's GPUs, ordered by TS
	Parts     []GPUPart    `json:"parts,omitempty"`      // the latest of each part of the machine's divided GPUs (MIG)
	Links     []GPULink    `json:"links,omitempty"`      // of the machine's GPUs to each other
}

// GPULink is how two GPUs are connected.
type GPULink struct {
	A    string `json:"a"`    // UUID
	B    string `json:"b"`    // UUID
	Kind string `json:"kind"` // as nvidia-smi topo -m calls it: NV18, PIX, PXB, PHB, NODE, SYS, C2C
}

// GPUPart is a part of a divided GPU (MIG). It has memory of its own, and no other sensors.
type GPUPart struct {
	TS          uint64 `json:"ts_ns"`    // CLOCK_MONOTONIC
	GPU         int    `json:"gpu"`      // index, as nvidia-smi counts
	GPUUUID     string `json:"gpu_uuid"` // of the whole
	Index       int    `json:"index"`    // among the parts of the GPU
	Instance    int    `json:"gpu_instance"`
	UUID        string `json:"uuid"`
	Profile     string `json:"profile"` // e.g. 1g.10gb
	MemoryUsed  uint64 `json:"memory_used_bytes"`
	MemoryTotal uint64 `json:"memory_total_bytes"` // 0: the driver does not say
}

// GPUProcess is the memory that a process of the target holds on a GPU, as its driver counts it (NVML, or AMD's
// kfd): what frameworks allocate, and what the driver needs for contexts, code and streams.
type GPUProcess struct {
	TS   uint64 `json:"ts_ns"` // CLOCK_MONOTONIC
	PID  uint32 `json:"pid"`
	UUID string `json:"gpu_uuid"`
	Used uint64 `json:"used_bytes"`
}

// Xid is an error that the driver reported of a GPU in the kernel's log (docs.nvidia.com/deploy/xid-errors).
type Xid struct {
	TS   uint64 `json:"ts_ns"`          // CLOCK_MONOTONIC, when the daemon read it
	GPU  int    `json:"gpu"`            // index, as nvidia-smi counts; -1: not known
	UUID string `json:"uuid,omitempty"` // of that GPU
	Bus  string `json:"pci"`            // domain, bus and device, e.g. 0000:65:00
	Code int    `json:"code"`           //
	PID  uint32 `json:"pid,omitempty"`  // whose work it was; 0: the driver does not say
	Text string `json:"text"`           // what else the driver says
}

// XidCount is how often the driver has reported an error of a GPU.
type XidCount struct {
	GPU   int    `json:"gpu"` // as in Xid
	Bus   string `json:"pci"`
	Code  int    `json:"code"`
	Count uint64 `json:"count"` // since the daemon first watched a program that uses a GPU
}

// Host is the machine that a recording was made on.
type Host struct {
	Kernel string `json:"kernel"` // uname -r
	Arch   string `json:"arch"`   // GOARCH
	CPUs   int    `json:"cpus"`   // online
	// NodeOf is the NUMA node of each CPU, by the CPU's number; -1: it has none. Empty where
	// the host has one node, or none.
	NodeOf []int     `json:"node_of,omitempty"`
	GPUs   []HostGPU `json:"gpus,omitempty"` // ordered by Bus; empty where the driver does not list them
}

// HostGPU is where a GPU is attached.
type HostGPU struct {
	UUID string `json:"uuid"` // as CUDA gives it: GPU-...
	Bus  string `json:"bus"`  // PCI address: 0000:1b:00.0
	Node int    `json:"node"` // NUMA node; -1: not known
}

// Process is one process of the target. A pid that is used again is another Process.
type Process struct {
	PID      uint32 `json:"pid"`
	NSPID    uint32 `json:"ns_pid,omitempty"` // in its own pid namespace, where that differs
	Parent   uint32 `json:"parent,omitempty"` // 0 for the root of the target
	UID      uint32 `json:"uid"`
	Comm     string `json:"comm"`
	Cmdline  string `json:"cmdline"`
	Born     uint64 `json:"born_ns"`             // CLOCK_MONOTONIC, from its start time, 10 ms resolution
	Probed   uint64 `json:"probed_ns,omitempty"` // when the first probe was on; 0: no CUDA library seen yet
	Died     uint64 `json:"died_ns,omitempty"`   // 0: still running at the end of the window
	ExitCode int32  `json:"exit_code,omitempty"` // as wait(2) gives it, where Died is set
	// OutOfMemory reports whether the kernel killed processes because memory was exhausted when this one was killed;
	// only `inferscope run` sets it.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// Thread names a thread of a process.
type Thread struct {
	PID  uint32 `json:"pid"`
	TID  uint32 `json:"tid"`
	Name string `json:"name"`
	Own  bool   `json:"own,omitempty"` // of the daemon and its helpers, among Meta.OtherThreads
}

// Function is one probed function. Rows that describe the same row of the CUDA
// table differ in Name only (version suffixes, per-thread default stream).
type Function struct {
	Name    string `json:"name"`    // as exported, e.g. cuMemcpyHtoDAsync_v2
	Base    string `json:"base"`    // its row in the table, e.g. cuMemcpyHtoDAsync
	Library string `json:"library"` // driver or runtime
	Group   string `json:"group"`   // launch, copy, set, alloc, free, sync, stream, event, module, graph, context, device, init
	Timed   bool   `json:"timed"`   // calls carry a duration
}

// Library is one mapped copy of libcuda or libcudart.
type Library struct {
	PID     uint32 `json:"pid"`
	Path    string `json:"path"` // as the target sees it
	Inode   uint64 `json:"inode"`
	BuildID string `json:"build_id,omitempty"`
	Kind    string `json:"kind"`                // driver or runtime
	Found   int    `json:"found"`               // functions of the table that it exports
	Points  int    `json:"points"`              // distinct addresses probed
	Cheap   int    `json:"cheap"`               // of these, at an instruction that the kernel emulates
	Mode    string `json:"mode"`                // session, multi or perf: how the probes are attached
	Mapped  uint64 `json:"mapped_ns,omitempty"` // when the mapping was noticed
	Probed  uint64 `json:"probed_ns,omitempty"` // when all probes were on
	Error   string `json:"error,omitempty"`     // why it is not probed
	Release int    `json:"release,omitempty"`   // of NCCL, as ncclGetVersion gives it: 22809; 0: not known
}

// Source is the state of one source of events.
type Source struct {
	Name   string `json:"name"`
	State  string `json:"state"`            // running, waiting, unavailable, off
	Detail string `json:"detail,omitempty"` // why it is not running, or what it waits for
	// Optional: no verdict rests on it. Without it its own sections are missing, and no more.
	Optional bool `json:"optional,omitempty"`
	// Content describes what is kept of prompts and answers; "": nothing.
	Content string `json:"content,omitempty"`
}
