package isc

import (
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
)

// The rows of the tables that name things. Those that are converted from a type of package record have its
// fields in its order, so that a field that is added there does not compile here until it is written.

type processRow struct {
	PID      uint32 `isc:"pid" doc:"in the initial pid namespace"`
	NSPID    uint32 `isc:"ns_pid" doc:"in its own pid namespace; 0: the same"`
	Parent   uint32 `isc:"parent_pid" doc:"0: the root of the target"`
	UID      uint32 `isc:"uid" doc:"its user"`
	Comm     string `isc:"comm" doc:"its short name"`
	Cmdline  string `isc:"cmdline" doc:"its arguments, with spaces between"`
	Born     uint64 `isc:"born_ns" doc:"ns, CLOCK_MONOTONIC, to 10 ms"`
	Probed   uint64 `isc:"probed_ns" doc:"ns: when the first probe was on; 0: no CUDA library seen"`
	Died     uint64 `isc:"died_ns" doc:"ns; 0: it runs on"`
	ExitCode int32  `isc:"exit_code" doc:"as wait(2) gives it"`

	OutOfMemory bool `isc:"out_of_memory" doc:"it was killed while the kernel killed for want of memory; inferscope run alone knows"`
}

type threadRow struct {
	PID  uint32 `isc:"pid" doc:"its process"`
	TID  uint32 `isc:"tid" doc:"in the initial pid namespace"`
	Name string `isc:"name" doc:"its name"`
}

type functionRow struct {
	Function uint32 `isc:"function" doc:"calls.function and launches.function"`
	Name     string `isc:"name" doc:"as exported, e.g. cuMemcpyHtoDAsync_v2"`
	Base     string `isc:"base" doc:"without version and default-stream suffixes"`
	Library  string `isc:"library" doc:"driver or runtime"`
	Group    string `isc:"group" doc:"launch, copy, set, alloc, free, sync, stream, event, module, graph, context, device, init"`
	Timed    bool   `isc:"timed" doc:"its calls carry a duration"`
}

type libraryRow struct {
	PID     uint32 `isc:"pid" doc:"process that maps it"`
	Path    string `isc:"path" doc:"as the process sees it"`
	Inode   uint64 `isc:"inode" doc:"of the file"`
	BuildID string `isc:"build_id" doc:"GNU build id, hexadecimal"`
	Kind    string `isc:"kind" doc:"driver or runtime"`
	Found   int    `isc:"functions_found" doc:"functions of the table that it exports"`
	Points  int    `isc:"probe_points" doc:"distinct addresses probed"`
	Cheap   int    `isc:"cheap_points" doc:"of these, at an instruction that the kernel emulates"`
	Mode    string `isc:"mode" doc:"session, multi or perf"`
	Mapped  uint64 `isc:"mapped_ns" doc:"ns: when the mapping was noticed"`
	Probed  uint64 `isc:"probed_ns" doc:"ns: when all probes were on"`
	Error   string `isc:"error" doc:"why it is not probed"`
}

type sourceRow struct {
	Name   string `isc:"name" doc:"of the source of events"`
	State  string `isc:"state" doc:"running, waiting, unavailable, off"`
	Detail string `isc:"detail" doc:"why it is not running"`
}

type lossRow struct {
	Reason loss.Reason `isc:"reason" doc:"name of the way to lose something"`
	Count  uint64      `isc:"count" doc:"of events, calls, libraries, as the reason has it"`
	Where  string      `isc:"where" doc:"CPU, file or process"`
	Detail string      `isc:"detail" doc:"for people"`
}

type frameRow struct {
	Frame uint32           `isc:"frame" doc:"stacks.frame"`
	Kind  record.FrameKind `isc:"kind" doc:"kernel, native, python, error"`
	Name  string           `isc:"name" doc:"function; module+0x123 where there is no symbol"`
	File  string           `isc:"file" doc:"source file, or mapped file"`
	Line  uint32           `isc:"line" doc:"of Python: line being executed"`
}

type stackRow struct {
	Stack  uint64 `isc:"stack" doc:"samples.stack"`
	Parent uint64 `isc:"parent" doc:"stacks.stack of the caller; 0: the thread's start"`
	Frame  uint32 `isc:"frame" doc:"frames.frame"`
}

type objectRow struct {
	PID   uint32      `isc:"pid" doc:"process that has it open"`
	Inode uint64      `isc:"inode" doc:"thread_states.inode"`
	Name  string      `isc:"name" doc:"as /proc/PID/fd shows it"`
	Role  record.Role `isc:"role" doc:"of a socket: listening, accepted, connected, unclear"`
}

type pressureRow struct {
	TS          uint64 `isc:"time_ns" doc:"ns, CLOCK_MONOTONIC"`
	Throttled   uint64 `isc:"throttled_ns" doc:"ns so far: cpu.stat throttled_usec"`
	Periods     uint64 `isc:"throttled_periods" doc:"so far: cpu.stat nr_throttled"`
	MemoryStall uint64 `isc:"memory_stall_ns" doc:"ns so far: memory.pressure, some"`
	MajorFaults uint64 `isc:"major_faults" doc:"so far, of the target's processes"`
	GPUNode     int    `isc:"gpu_node" doc:"NUMA node of the GPU; -1: not known"`
}

type pagesRow struct {
	Pressure uint32 `isc:"pressure" doc:"row of the table pressure, from 0"`
	Node     string `isc:"node" doc:"NUMA node, as numa_maps names it"`
	Pages    uint64 `isc:"pages" doc:"pages of the target on it"`
}

type agentRow struct {
	PID     uint32 `isc:"pid" doc:"its process"`
	State   string `isc:"state" doc:"waiting, running, dormant, refused, gone"`
	Detail  string `isc:"detail" doc:"why, and what to do"`
	CUPTI   string `isc:"cupti" doc:"path of the libcupti, as the process sees it"`
	Version uint32 `isc:"cupti_version" doc:"as cuptiGetVersion gives it"`
	Stopped uint64 `isc:"stopped_ns" doc:"ns for which one thread was stopped to bring it in"`
	Joined  uint64 `isc:"joined_ns" doc:"ns, CLOCK_MONOTONIC: when it reported first"`
	Slower  string `isc:"slower" doc:"what it costs although it is off"`
	Dropped uint64 `isc:"dropped_records" doc:"by CUPTI and by a full ring"`
}

type windowRow struct {
	PID      uint32 `isc:"pid" doc:"its process"`
	From     uint64 `isc:"from_ns" doc:"ns, CLOCK_MONOTONIC"`
	To       uint64 `isc:"to_ns" doc:"ns, CLOCK_MONOTONIC"`
	Activity bool   `isc:"activity" doc:"what the GPU did was seen"`
	Calls    bool   `isc:"calls" doc:"launches were seen"`
	Dropped  uint64 `isc:"dropped_records" doc:"lost in it"`
	End      string `isc:"end" doc:"open, finalized, disabled, kept, detached"`
}

type deviceRow struct {
	PID      uint32 `isc:"pid" doc:"process that counts so"`
	ID       uint32 `isc:"device" doc:"kernels.device"`
	Name     string `isc:"name" doc:"e.g. NVIDIA H200"`
	UUID     string `isc:"uuid" doc:"of the GPU"`
	SMs      uint32 `isc:"multiprocessors" doc:"count"`
	Memory   uint64 `isc:"memory_bytes" doc:"bytes"`
	PeakRate uint64 `isc:"memory_bytes_per_second" doc:"bytes/s at most"`
	Major    uint32 `isc:"compute_major" doc:"compute capability"`
	Minor    uint32 `isc:"compute_minor" doc:"compute capability"`
}

type streamRow struct {
	PID      uint32 `isc:"pid" doc:"its process"`
	ID       uint32 `isc:"stream" doc:"kernels.stream"`
	Context  uint32 `isc:"context" doc:"CUPTI context id"`
	Priority int32  `isc:"priority" doc:"as CUDA has it: lower goes first"`
	Kind     string `isc:"kind" doc:"default, non-blocking, null"`
}

type kernelNameRow struct {
	Kernel       uint32 `isc:"kernel" doc:"kernels.kernel"`
	Name         string `isc:"name" doc:"demangled, whole"`
	Registers    uint32 `isc:"registers" doc:"of each thread"`
	StaticShared uint32 `isc:"static_shared_bytes" doc:"bytes"`
	Local        uint32 `isc:"local_bytes" doc:"bytes of each thread"`
}

type rangeNameRow struct {
	Range uint32 `isc:"range" doc:"ranges.range"`
	Name  string `isc:"name" doc:"as the program gave it"`
}

type attributesRow struct {
	Attributes uint32 `isc:"attributes" doc:"ranges.attributes"`
	Text       string `isc:"json" doc:"a JSON object"`
}
