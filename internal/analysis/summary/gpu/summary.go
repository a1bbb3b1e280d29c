// Package gpu turns the GPU's side of a timeline into numbers: how busy each device
// was, with what, who asked for it, and how long that took to begin. It is a pure
// function of the timeline.
//
// GPU activity is recorded in windows as a rule, so each number says by its Coverage
// which stretches of time it rests on. What was not recorded is not idle.
package gpu

import "github.com/inferscope/inferscope/internal/recording"

// Summary is everything that is said about the GPUs. Times are ns, sizes are bytes,
// shares are fractions (0.5 is half).
type Summary struct {
	Mode     string   `json:"mode"`     // continuous, windows or off
	Recorded bool     `json:"recorded"` // there was a window in which GPU activity was recorded
	Activity Coverage `json:"activity"` // when the GPU activity of some process was recorded
	Calls    Coverage `json:"calls"`    // when the launches of some process were recorded
	Busy     Busy     `json:"busy"`     // of all devices together
	Clock    clock    `json:"clock"`
	Links    Links    `json:"links"`
	Devices  []Device `json:"devices"`
	Streams  []stream `json:"streams"` // by busy time, the most first
	Kernels  Kernels  `json:"kernels"` //
	Copies   []Copy   `json:"copies"`  // by time, the most first
	// Peers are the copies between GPUs by pair; absent where there were none.
	Peers    []Peer            `json:"peer_copies,omitempty"`
	Sets     sets              `json:"sets"`     //
	Launches launches          `json:"launches"` //
	Latency  latency           `json:"launch_latency"`
	Queue    queue             `json:"queue"`
	Graphs   graphs            `json:"graphs"`
	Syncs    []syncGroup       `json:"syncs"`     // by time, the most first
	Overhead []Overhead        `json:"overheads"` // by time, the most first
	Ranges   []Range           `json:"ranges"`    // named by the program (NVTX), by time, the most first
	Agents   []recording.Agent `json:"agents"`
	Outside  int               `json:"outside_records"` // records outside of the windows; left out
}

// Coverage is the time that a number is based on.
type Coverage struct {
	Time    uint64  `json:"ns"`    // of windows
	Windows int     `json:"count"` // how many they are
	Share   float64 `json:"share"` // Time of the recording's window
	// Unsure is the part of Time at the edges of windows in which work could have run without a
	// record: launched before a window began, or not finished when it ended.
	Unsure  uint64 `json:"unsure_ns"`
	Dropped uint64 `json:"dropped_records"` // known to be lost: counts and busy times are lower bounds
}

// Whole reports whether nothing is known to be missing, so that what was not recorded did not happen.
func (c *Coverage) Whole() bool { return c.Time > 0 && c.Dropped == 0 }

// Busy is the time in which something ran: a union of intervals, never a sum.
type Busy struct {
	Coverage Coverage `json:"coverage"`
	Time     uint64   `json:"ns"`
	Share    float64  `json:"share"`     // Time of Coverage.Time: a lower bound
	MaxShare float64  `json:"max_share"` // if all that is unsure was busy; 1 where records were dropped
	Kernels  uint64   `json:"kernels_ns"`
	Copies   uint64   `json:"copies_ns"`
	Sets     uint64   `json:"sets_ns"`
}

// clock is the error between the GPU's times and the calls', from causality.
type clock struct {
	Error uint64 `json:"error_ns"` // at least so much: the most by which causality was violated
	Bound uint64 `json:"bound_ns"` // at most so much; 0: not known
	Pairs int    `json:"pairs"`    // of times that were compared; 0: nothing is known
}

// Links counts how the calls behind the activities were found.
type Links struct {
	Activities uint64  `json:"activities"`
	ByID       uint64  `json:"by_id"`
	ByGraph    uint64  `json:"by_graph"` // nodes of graphs that a known call launched
	ByOrder    uint64  `json:"by_order"`
	None       uint64  `json:"none"`
	Share      float64 `json:"share"`      // of activities whose call is known
	Confidence float64 `json:"confidence"` // mean of these
}

// Device is what one GPU did for the target.
type Device struct {
	PID     uint32 `json:"pid"` // the first process that uses it
	ID      uint8  `json:"id"`  // as that process counts
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Users   int    `json:"processes"` // that use it
	Busy    Busy   `json:"busy"`      // while all of these were recorded
	Parts   []part `json:"parts"`     // by process, each in its own windows; empty where there is one process
	Count   uint64 `json:"activities"`
	Streams int    `json:"streams"`
	// Concurrency is how many activities ran on average while some ran; Overlap the share of the busy time with two or
	// more.
	Concurrency float64 `json:"concurrency"`
	Overlap     float64 `json:"overlap_share"`
	Gaps        gaps    `json:"gaps"`
}

// gaps are the times inside windows in which a device ran nothing that was recorded. Those at the
// edges of windows are cut there.
type gaps struct {
	Count   uint64 `json:"count"`
	Time    uint64 `json:"ns"`
	Longest uint64 `json:"longest_ns"`
	P50     uint64 `json:"p50_ns"`
}

// part is what one process did on a device.
type part struct {
	PID  uint32 `json:"pid"`
	Busy Busy   `json:"busy"`
}

// stream is what ran on one stream.
type stream struct {
	PID     uint32  `json:"pid"`
	Device  uint8   `json:"device"` // as the process counts
	Context uint8   `json:"context"`
	ID      uint32  `json:"id"`
	Kernels uint64  `json:"kernels"`
	Copies  uint64  `json:"copies"`
	Sets    uint64  `json:"sets"`
	Busy    uint64  `json:"busy_ns"`
	Share   float64 `json:"share"`         // Busy of Coverage.Time of its process
	OfBusy  float64 `json:"share_of_busy"` // Busy of the device's
}

// Kernels is what is said of all kernels.
type Kernels struct {
	Coverage Coverage `json:"coverage"`
	Count    uint64   `json:"count"`
	Time     uint64   `json:"ns"`    // summed: they can overlap
	Names    int      `json:"names"` // how many different ones
	Tiny     uint64   `json:"tiny"`  // shorter than TinyBelow
	TinyTime uint64   `json:"tiny_ns"`
	Rows     []Kernel `json:"rows"` // the ones of most time, the most first
}

// TinyBelow is the duration in ns below which a kernel is tiny: launching it takes about as long.
const TinyBelow = 5000

// Kernel is all runs of one kernel.
type Kernel struct {
	Name  string `json:"name"`      // shortened, "" where the name was lost
	Full  string `json:"full_name"` // as CUPTI gives it, demangled
	Count uint64 `json:"count"`
	Time  uint64 `json:"ns"`
	Mean  uint64 `json:"mean_ns"`
	Min   uint64 `json:"min_ns"`
	Max   uint64 `json:"max_ns"`
	// Time of the busy time of all devices; kernels that overlap can exceed 1 together
	Share        float64   `json:"share_of_busy"`
	InGraphs     uint64    `json:"in_graphs"` // runs out of graphs
	Grid         [3]uint32 `json:"grid"`      // of most runs
	Block        [3]uint32 `json:"block"`
	ShapeShare   float64   `json:"shape_share"` // of runs with this grid and block
	Registers    uint32    `json:"registers"`   // of each thread
	StaticShared uint32    `json:"static_shared_bytes"`
	// The thread that launched most runs, and the program's call that did.
	PID         uint32  `json:"pid"`
	TID         uint32  `json:"tid"`
	Thread      string  `json:"thread"`
	Call        string  `json:"call"`
	ThreadShare float64 `json:"thread_share"` // of runs
}

// Copy is all copies of one direction and kind of memory.
type Copy struct {
	Coverage    Coverage `json:"coverage"`
	Direction   string   `json:"direction"`   // H2D, D2H, D2D, peer, ...
	Source      string   `json:"source"`      // pageable, pinned, device, managed, ...
	Destination string   `json:"destination"` //
	Async       bool     `json:"async"`
	Count       uint64   `json:"count"`
	Bytes       uint64   `json:"bytes"`
	Time        uint64   `json:"ns"`         // a union: several can run at once
	Summed      uint64   `json:"summed_ns"`  // over copies
	Longest     uint64   `json:"longest_ns"` //
	Bandwidth   float64  `json:"bandwidth_bytes_per_second"`
	Each        float64  `json:"copy_bandwidth_bytes_per_second"` // Bytes over Summed: what one copy gets
	Exposed     uint64   `json:"exposed_ns"`                      // of Time: no kernel ran on the device
	Hidden      float64  `json:"overlapped_share"`                // of Time: a kernel ran
}

// Peer is all copies of one process from one GPU to another, as CUPTI records them (CUpti_ActivityMemcpyPtoP4): NCCL
// moves its data with kernels, which are no copies.
type Peer struct {
	PID         uint32  `json:"pid"`
	Source      uint32  `json:"source"`      // GPU, as the process counts
	Destination uint32  `json:"destination"` // the same number: between contexts of one GPU
	Count       uint64  `json:"count"`
	Bytes       uint64  `json:"bytes"`
	Time        uint64  `json:"ns"` // a union: several can run at once
	Longest     uint64  `json:"longest_ns"`
	Bandwidth   float64 `json:"bandwidth_bytes_per_second"` // Bytes by Time
	// Alone is the part of Time in which no kernel ran on the GPU at either end.
	Alone uint64 `json:"alone_ns"`
}

// sets are memsets.
type sets struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
	Time  uint64 `json:"ns"` // a union on each device
}

// launches counts the requests to the GPUs. Graph launches are always recorded, but counted here only in windows.
type launches struct {
	Coverage  Coverage `json:"coverage"`
	Kernels   uint64   `json:"kernels"`
	Graphs    uint64   `json:"graphs"`
	PerSecond float64  `json:"per_second"` // of both, while they were recorded
	Timed     uint64   `json:"timed"`      // calls whose duration is known
	CallTime  uint64   `json:"call_ns"`    // in these, summed over threads
	P50       uint64   `json:"call_p50_ns"`
	P99       uint64   `json:"call_p99_ns"`
}

// latency is from the beginning of a launch to that of its kernel, of a graph to that of its first
// node. Percentiles are exact to 1%.
type latency struct {
	Coverage Coverage `json:"coverage"`
	Count    uint64   `json:"count"`
	P50      uint64   `json:"p50_ns"`
	P99      uint64   `json:"p99_ns"`
	Max      uint64   `json:"max_ns"`
}

// queue is what was launched and had not ended. It knows the calls that activities were linked to.
type queue struct {
	Coverage Coverage `json:"coverage"`
	Mean     float64  `json:"mean"`
	Max      uint64   `json:"max"`
	Empty    float64  `json:"empty_share"` // of the time
}

// graphs is the part of CUDA graphs.
type graphs struct {
	Coverage  Coverage `json:"coverage"`
	Kernels   uint64   `json:"kernels"`       // that were nodes
	Share     float64  `json:"share"`         // of all kernels
	TimeShare float64  `json:"time_share"`    // of the kernels' time
	Launches  uint64   `json:"launches"`      // with nodes in the recording
	Nodes     float64  `json:"nodes_average"` // activities of each
}

// syncGroup is all waits of one thread in one function for one kind of thing.
type syncGroup struct {
	PID      uint32 `json:"pid"`
	TID      uint32 `json:"tid"` // 0: not known
	Thread   string `json:"thread"`
	Call     string `json:"call"` // "" where the call is not known
	Type     string `json:"type"` // event, stream, context, stream waits for event, other
	Count    uint64 `json:"count"`
	Time     uint64 `json:"ns"`
	Longest  uint64 `json:"longest_ns"`
	Idle     uint64 `json:"nothing_to_wait_for"` // of Count: all had ended before
	For      string `json:"for"`                 // the kernel or copy that most of the others waited for
	ForCount uint64 `json:"for_count"`
}

// Overhead is time that CUPTI or the driver says it took.
type Overhead struct {
	Kind  string `json:"kind"`
	Count uint64 `json:"count"`
	Time  uint64 `json:"ns"`
}

// Range is all uses of one named range.
type Range struct {
	Name    string `json:"name"`
	Count   uint64 `json:"count"`
	Time    uint64 `json:"ns"` // summed
	Longest uint64 `json:"longest_ns"`
	// Attributes are those that most of the time went to, the most first; absent where the program gave none.
	Attributes []Attributes `json:"attributes,omitempty"`
}

// Attributes is all uses of a named range with the same attributes.
type Attributes struct {
	Values string `json:"values"` // a JSON object, as the program gave it
	Count  uint64 `json:"count"`
	Time   uint64 `json:"ns"` // summed
}
