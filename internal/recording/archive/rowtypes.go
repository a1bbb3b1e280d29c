package archive

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// The rows of the tables that name things. Those that are converted from a type of package record have its
// fields in its order, so that a field that is added there does not compile here until it is written.

type processRow struct {
	PID      uint32 `isc:"pid"        doc:"process id in the initial pid namespace"`
	NSPID    uint32 `isc:"ns_pid"     doc:"process id in its own pid namespace; 0: the same"`
	Parent   uint32 `isc:"parent_pid" doc:"parent process; 0: this is the root of the target"`
	UID      uint32 `isc:"uid"        doc:"user id"`
	Comm     string `isc:"comm"       doc:"short name"`
	Cmdline  string `isc:"cmdline"    doc:"arguments, separated by spaces"`
	Born     uint64 `isc:"born_ns"    doc:"start, CLOCK_MONOTONIC ns, resolution 10 ms"`
	Probed   uint64 `isc:"probed_ns"  doc:"time of the first probe, ns; 0: no CUDA library seen"`
	Died     uint64 `isc:"died_ns"    doc:"end, ns; 0: still running"`
	ExitCode int32  `isc:"exit_code"  doc:"status as wait(2) returns it"`

	OutOfMemory bool `isc:"out_of_memory" doc:"killed during an OOM kill; set by inferscope run only"`
}

type threadRow struct {
	PID  uint32 `isc:"pid"  doc:"process id"`
	TID  uint32 `isc:"tid"  doc:"thread id in the initial pid namespace"`
	Name string `isc:"name" doc:"thread name"`
	Own  bool   `isc:"own"  doc:"thread of the daemon or its helpers"`
}

type functionRow struct {
	Function uint32 `isc:"function" doc:"calls.function and launches.function"`
	Name     string `isc:"name"     doc:"exported name, e.g. cuMemcpyHtoDAsync_v2"`
	Base     string `isc:"base"     doc:"name without version and default-stream suffixes"`
	Library  string `isc:"library"  doc:"driver or runtime"`
	Group    string `isc:"group"    doc:"launch, copy, set, alloc, free, sync, stream, event, module, graph, context, device, init"`
	Timed    bool   `isc:"timed"    doc:"calls have a duration"`
}

type libraryRow struct {
	PID     uint32 `isc:"pid"             doc:"process that maps it"`
	Path    string `isc:"path"            doc:"path as the process sees it"`
	Inode   uint64 `isc:"inode"           doc:"inode of the file"`
	BuildID string `isc:"build_id"        doc:"GNU build id, hexadecimal"`
	Kind    string `isc:"kind"            doc:"driver or runtime"`
	Found   int    `isc:"functions_found" doc:"known functions that it exports"`
	Points  int    `isc:"probe_points"    doc:"number of distinct addresses probed"`
	Cheap   int    `isc:"cheap_points"    doc:"of these, on an instruction that the kernel emulates"`
	Mode    string `isc:"mode"            doc:"how probes are attached: session, multi or perf"`
	Mapped  uint64 `isc:"mapped_ns"       doc:"time when the mapping was noticed, ns"`
	Probed  uint64 `isc:"probed_ns"       doc:"time when all probes were attached, ns"`
	Error   string `isc:"error"           doc:"why it is not probed"`
	Release int    `isc:"release"         doc:"of NCCL, as ncclGetVersion gives it; 0: not known"`
}

type sourceRow struct {
	Name     string `isc:"name"     doc:"name of the source"`
	State    string `isc:"state"    doc:"running, waiting, unavailable, off"`
	Detail   string `isc:"detail"   doc:"why it is not running"`
	Optional bool   `isc:"optional" doc:"no verdict rests on it"`
	Content  string `isc:"content"  doc:"what is kept of prompts and answers; empty: nothing"`
}

type requestRow struct {
	Number       uint64 `isc:"request"        doc:"request_chunks.request"`
	PID          uint32 `isc:"pid"            doc:"process that served it"`
	Port         uint32 `isc:"port"           doc:"local port; 0: unix socket"`
	Received     uint64 `isc:"received_ns"    doc:"first bytes of the request read, CLOCK_MONOTONIC ns"`
	Asked        uint64 `isc:"asked_ns"       doc:"last bytes of the request read, ns; 0: unknown"`
	FirstByte    uint64 `isc:"first_byte_ns"  doc:"header of the response written, ns; 0: none"`
	FirstToken   uint64 `isc:"first_token_ns" doc:"first part with content written, ns; 0: none, or not streamed"`
	LastToken    uint64 `isc:"last_token_ns"  doc:"last part with content written, ns"`
	End          uint64 `isc:"end_ns"         doc:"last bytes of the response written, or connection closed, ns; 0: in progress"`
	Method       string `isc:"method"         doc:"HTTP method"`
	Route        string `isc:"route"          doc:"path without query; segments that may identify somebody are *"`
	Model        string `isc:"model"          doc:"model as the request or the response names it"`
	ID           string `isc:"id"             doc:"id that the server gave to the response"`
	Trace        string `isc:"traceparent"    doc:"traceparent header of the request"`
	Status       uint32 `isc:"status"         doc:"HTTP status; 0: no response"`
	Outcome      string `isc:"outcome"        doc:"open, complete, aborted, unbounded"`
	Streamed     bool   `isc:"streamed"       doc:"SSE or NDJSON"`
	Unreadable   bool   `isc:"unreadable"     doc:"compressed or partly unseen: token numbers are lower bounds"`
	InputTokens  uint32 `isc:"input_tokens"   doc:"0: unknown"`
	OutputTokens uint32 `isc:"output_tokens"  doc:"0: unknown"`
	CachedTokens uint32 `isc:"cached_tokens"  doc:"input tokens from the prefix cache"`
	TokenSource  string `isc:"token_source"   doc:"source of output_tokens: usage, timings, engine, chunks; empty: unknown"`
	Parts        uint32 `isc:"parts"          doc:"parts of the streamed response with content"`
	Writes       uint32 `isc:"writes"         doc:"writes with such parts"`
	Retry        uint32 `isc:"retry"          doc:"how often it was sent before, after an error or a disconnect"`
	Prompt       string `isc:"prompt"         doc:"beginning of the prompt, redacted; empty without --capture-content"`
	Answer       string `isc:"answer"         doc:"likewise of the answer"`
}

type stepRow struct {
	TS         uint64 `isc:"ts_ns"       doc:"message sent by the engine, CLOCK_MONOTONIC ns"`
	Made       uint64 `isc:"made_ns"     doc:"message made by the engine, ns; 0: not told"`
	PID        uint32 `isc:"pid"         doc:"process of the engine"`
	Engine     uint32 `isc:"engine"      doc:"index of the engine among those of one server"`
	Requests   uint32 `isc:"requests"    doc:"requests with output in this step"`
	Tokens     uint32 `isc:"tokens"      doc:"output tokens of this step"`
	Firsts     uint32 `isc:"firsts"      doc:"requests whose first token is of this step"`
	Finished   uint32 `isc:"finished"    doc:"requests that ended with this step"`
	Preempts   uint32 `isc:"preempted"   doc:"preemptions of requests"`
	Stats      bool   `isc:"stats"       doc:"the columns that follow were told"`
	Running    uint32 `isc:"running"     doc:"requests in the batch"`
	Waiting    uint32 `isc:"waiting"     doc:"requests in the queue of the engine"`
	KVPermille uint32 `isc:"kv_permille" doc:"1/1000 of the KV cache in use"`
	Missed     bool   `isc:"missed"      doc:"messages before this one were lost"`
}

type engineRequestRow struct {
	ID           string `isc:"id"            doc:"id that the API server gave it; begins with requests.id"`
	PID          uint32 `isc:"pid"           doc:"process of the engine"`
	Engine       uint32 `isc:"engine"        doc:"steps.engine"`
	Asked        uint64 `isc:"asked_ns"      doc:"sent to the engine, CLOCK_MONOTONIC ns; 0: not seen"`
	Queued       uint64 `isc:"queued_ns"     doc:"put into the queue of the engine, ns; 0: not seen"`
	Scheduled    uint64 `isc:"scheduled_ns"  doc:"first scheduled, ns; 0: not seen"`
	First        uint64 `isc:"first_ns"      doc:"first token sent by the engine, ns; 0: not seen"`
	Last         uint64 `isc:"last_ns"       doc:"last token sent by the engine, ns; 0: none"`
	Finish       string `isc:"finish"        doc:"stop, length, abort, error, repetition; empty: in progress"`
	InputTokens  uint32 `isc:"input_tokens"  doc:"0: unknown"`
	CachedTokens uint32 `isc:"cached_tokens" doc:"input tokens from the prefix cache"`
	Computed     uint32 `isc:"computed_tokens" doc:"input tokens of the first prefill; 0: not told"`
	OutputTokens uint32 `isc:"output_tokens" doc:"since the attach"`
	Steps        uint32 `isc:"steps"         doc:"steps with output for it"`
	Preemptions  uint32 `isc:"preemptions"   doc:"how often it was preempted"`
	Detokenized  uint64 `isc:"detokenized_ns" doc:"last text sent by a detokenizer process, ns; 0: there is none, or not seen"`
}

type lossRow struct {
	Reason loss.Reason `isc:"reason" doc:"loss reason"`
	Count  uint64      `isc:"count"  doc:"number of events, calls or libraries, depending on the reason"`
	PID    uint32      `isc:"pid"    doc:"process that it concerns alone; 0: more than one, or none"`
	CPU    loss.CPU    `isc:"cpu"    doc:"1 + number of the CPU on which it happened; 0: not of a CPU"`
	Where  string      `isc:"where"  doc:"CPU, file or process concerned"`
	Detail string      `isc:"detail" doc:"explanation in words"`
}

type frameRow struct {
	Frame uint32              `isc:"frame" doc:"stacks.frame"`
	Kind  recording.FrameKind `isc:"kind"  doc:"kernel, native, python, error"`
	Name  string              `isc:"name"  doc:"function; module+0x123 if there is no symbol"`
	File  string              `isc:"file"  doc:"source file, or mapped file"`
	Line  uint32              `isc:"line"  doc:"Python: line being executed"`
}

type stackRow struct {
	Stack  uint64 `isc:"stack"  doc:"samples.stack"`
	Parent uint64 `isc:"parent" doc:"stacks.stack of the caller; 0: start of the thread"`
	Frame  uint32 `isc:"frame"  doc:"frames.frame"`
}

type objectRow struct {
	PID   uint32         `isc:"pid"   doc:"process that has the file open"`
	Inode uint64         `isc:"inode" doc:"thread_states.inode"`
	Name  string         `isc:"name"  doc:"as /proc/PID/fd shows it"`
	Role  recording.Role `isc:"role"  doc:"sockets: listening, accepted, connected, unclear"`
}

type pressureRow struct {
	TS          uint64 `isc:"time_ns"           doc:"CLOCK_MONOTONIC ns"`
	Throttled   uint64 `isc:"throttled_ns"      doc:"cumulative: cpu.stat throttled_usec, in ns"`
	Periods     uint64 `isc:"throttled_periods" doc:"cumulative: cpu.stat nr_throttled"`
	MemoryStall uint64 `isc:"memory_stall_ns"   doc:"cumulative: memory.pressure some, in ns"`
	MajorFaults uint64 `isc:"major_faults"      doc:"cumulative, over the target's processes"`
	GPUNode     int    `isc:"gpu_node"          doc:"NUMA node of the GPU; -1: unknown"`
	FreeCPU     uint64 `isc:"free_cpu_ns"       doc:"cumulative: host CPU time that no program of the target's priority took; 0: unknown"`
}

type communicatorRow struct {
	PID     uint32 `isc:"pid"     doc:"process ID"`
	Address uint64 `isc:"address" doc:"what its process calls it"`
	Hash    string `isc:"hash"    doc:"the same for all ranks; empty: not known"`
	Rank    int    `isc:"rank"    doc:"rank of the process in it"`
	Ranks   int    `isc:"ranks"   doc:"how many it has"`
	GPU     int    `isc:"gpu"     doc:"as its process counts"`
}

type sensorRow struct {
	TS                uint64 `isc:"time_ns"                doc:"CLOCK_MONOTONIC ns"`
	GPU               int    `isc:"gpu"                    doc:"index, as nvidia-smi counts, or among AMD's cards"`
	UUID              string `isc:"uuid"                   doc:"UUID of the GPU"`
	Name              string `isc:"name"                   doc:"model"`
	Power             uint64 `isc:"power_mw"               doc:"mW drawn"`
	PowerLimit        uint64 `isc:"power_limit_mw"         doc:"mW allowed"`
	Temperature       int    `isc:"temperature_c"          doc:"of the GPU, degrees Celsius"`
	SMClock           uint64 `isc:"sm_clock_mhz"           doc:"MHz"`
	SMClockMax        uint64 `isc:"sm_clock_max_mhz"       doc:"MHz, the most that the GPU can"`
	MemoryClock       uint64 `isc:"memory_clock_mhz"       doc:"MHz"`
	Reasons           uint64 `isc:"clock_reasons"          doc:"nvmlClocksEventReasons: why clocks are lower, as bits"`
	Utilization       int    `isc:"utilization_pct"        doc:"percent of time in which a kernel ran"`
	MemoryUtilization int    `isc:"memory_utilization_pct" doc:"percent of time in which memory was read or written"`
	MemoryUsed        uint64 `isc:"memory_used_bytes"      doc:"by all processes"`
	MemoryTotal       uint64 `isc:"memory_total_bytes"     doc:"of the GPU"`
	Uncorrected       uint64 `isc:"ecc_uncorrected_errors" doc:"since the driver was loaded"`

	MIG bool `isc:"mig" doc:"the GPU is divided: the values are of the whole, without utilization"`

	Links    recording.Links `isc:"links_known"           doc:"whose traffic is known, bits: 1 PCIe, 2 NVLink; 4: PCIe at most"`
	PCIeRx   uint64          `isc:"pcie_rx_bytes_per_s"   doc:"received, counted once a second: for 20 ms (NVIDIA)"`
	PCIeTx   uint64          `isc:"pcie_tx_bytes_per_s"   doc:"sent, likewise"`
	NVLinkRx uint64          `isc:"nvlink_rx_bytes_per_s" doc:"received over all links, average of 10 s"`
	NVLinkTx uint64          `isc:"nvlink_tx_bytes_per_s" doc:"sent, likewise"`
}

type pagesRow struct {
	Pressure uint32 `isc:"pressure" doc:"row number in pressure, from 0"`
	Node     string `isc:"node"     doc:"NUMA node, as numa_maps names it"`
	Pages    uint64 `isc:"pages"    doc:"pages of the target on this node"`
}

type agentRow struct {
	PID     uint32 `isc:"pid"             doc:"process id"`
	State   string `isc:"state"           doc:"waiting, running, dormant, refused, gone"`
	Detail  string `isc:"detail"          doc:"reason, and what to do"`
	CUPTI   string `isc:"cupti"           doc:"path of libcupti as the process sees it"`
	Version uint32 `isc:"cupti_version"   doc:"as returned by cuptiGetVersion"`
	Stopped uint64 `isc:"stopped_ns"      doc:"how long one thread was stopped to inject the agent, ns"`
	Joined  uint64 `isc:"joined_ns"       doc:"time of its first report, CLOCK_MONOTONIC ns"`
	Slower  string `isc:"slower"          doc:"cost that remains while it is off"`
	Dropped uint64 `isc:"dropped_records" doc:"records dropped by CUPTI or by a full ring"`
}

type windowRow struct {
	PID      uint32 `isc:"pid"             doc:"process id"`
	From     uint64 `isc:"from_ns"         doc:"CLOCK_MONOTONIC ns"`
	To       uint64 `isc:"to_ns"           doc:"CLOCK_MONOTONIC ns"`
	Activity bool   `isc:"activity"        doc:"GPU activity was recorded"`
	Calls    bool   `isc:"calls"           doc:"launches were recorded"`
	Dropped  uint64 `isc:"dropped_records" doc:"records lost in this window"`
	End      string `isc:"end"             doc:"how it ended: open, finalized, disabled, kept (still subscribed to CUPTI), detached (probes)"`
}

type deviceRow struct {
	PID      uint32 `isc:"pid"                     doc:"process id"`
	ID       uint32 `isc:"device"                  doc:"index within the process (kernels.device)"`
	Name     string `isc:"name"                    doc:"e.g. NVIDIA H200"`
	UUID     string `isc:"uuid"                    doc:"UUID of the GPU"`
	SMs      uint32 `isc:"multiprocessors"         doc:"number of multiprocessors"`
	Memory   uint64 `isc:"memory_bytes"            doc:"memory size"`
	PeakRate uint64 `isc:"memory_bytes_per_second" doc:"peak memory bandwidth"`
	Major    uint32 `isc:"compute_major"           doc:"compute capability, major"`
	Minor    uint32 `isc:"compute_minor"           doc:"compute capability, minor"`
}

type streamRow struct {
	PID      uint32 `isc:"pid"      doc:"process id"`
	ID       uint32 `isc:"stream"   doc:"kernels.stream"`
	Context  uint32 `isc:"context"  doc:"CUPTI context id"`
	Priority int32  `isc:"priority" doc:"CUDA stream priority; a lower number runs first"`
	Kind     string `isc:"kind"     doc:"default, non-blocking, null"`
}

type kernelNameRow struct {
	Kernel       uint32 `isc:"kernel"              doc:"kernels.kernel"`
	Name         string `isc:"name"                doc:"full demangled name"`
	Registers    uint32 `isc:"registers"           doc:"registers per thread"`
	StaticShared uint32 `isc:"static_shared_bytes" doc:"static shared memory in bytes"`
	Local        uint32 `isc:"local_bytes"         doc:"local memory per thread in bytes"`
}

type rangeNameRow struct {
	Range uint32 `isc:"range" doc:"ranges.range"`
	Name  string `isc:"name"  doc:"name that the program gave"`
}

type attributesRow struct {
	Attributes uint32 `isc:"attributes" doc:"ranges.attributes"`
	Text       string `isc:"json"       doc:"a JSON object"`
}
