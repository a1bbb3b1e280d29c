// Package cpu turns the samples and the scheduling of a recording into numbers: what
// threads computed, what they waited for and who ended the wait, and what the host
// did to them. It is a pure function of the recording; nothing in it is about the GPU.
package cpu

import "github.com/inferscope/inferscope/internal/recording"

// Summary is everything that is said about the CPU's side of a window. Times are ns,
// shares are fractions (0.5 is half).
type Summary struct {
	Sampled   bool       `json:"sampled"`   // there are samples of running threads
	Scheduled bool       `json:"scheduled"` // there are scheduling events
	Length    uint64     `json:"length_ns"` // of the window
	CPUs      int        `json:"cpus"`      // of the host
	Origins   Origins    `json:"origins"`
	Threads   []Thread   `json:"threads"`   // by time not blocked, the most first
	Python    []Function `json:"python"`    // by self, the most first
	Functions []Function `json:"functions"` // native and of the kernel, likewise
	Waits     []Wait     `json:"waits"`     // by time, the most first
	States    []Activity `json:"states"`    // what frames prove: see package threads
	Pressure  Pressure   `json:"pressure"`
	// Summed is time of which only sums are known, because waits were too many to be
	// listed: it is in Threads, and in no Wait.
	Summed uint64 `json:"summed_ns"`
}

// Origins counts how the stacks of samples of running threads were obtained.
type Origins struct {
	Samples uint64 `json:"samples"`
	Whole   uint64 `json:"whole"`       // unwound to the thread's start
	Spliced uint64 `json:"spliced"`     // Python frames whole, native ones as far as they go
	Python  uint64 `json:"python_only"` // Python frames and the leaf
	Leaf    uint64 `json:"leaf_only"`
	// WithPython are samples that have a Python frame.
	WithPython uint64 `json:"with_python"`
}

// Thread is what one thread did with the window: Running, Runnable, Blocked and
// Absent add up to Summary.Length.
type Thread struct {
	PID     uint32 `json:"pid"`
	TID     uint32 `json:"tid"`
	Name    string `json:"name"`
	Running uint64 `json:"running_ns"`
	// of Running: inside CUDA's synchronisation calls, which ask the GPU again and again
	Polling  uint64 `json:"polling_ns"`
	Runnable uint64 `json:"runnable_ns"` // it could run, and waited for a CPU
	Blocked  uint64 `json:"blocked_ns"`
	Absent   uint64 `json:"absent_ns"` // not born yet, or ended; or scheduling was not recorded
	Samples  uint64 `json:"samples"`
	Hottest  string `json:"hottest"` // place of most of its samples
	Reason   string `json:"reason"`  // of most of its blocked time
	ReasonNS uint64 `json:"reason_ns"`
	GIL      uint64 `json:"gil_ns"` // of Blocked: waiting for the GIL, as far as stacks prove it

	Voluntary   int `json:"voluntary_switches"`
	Involuntary int `json:"involuntary_switches"`
	Migrations  int `json:"migrations"`
	// Node is the NUMA node on which the thread ran for most of the time, and NodeShare for which
	// share of it; -1 where the host has one node, or nothing is known.
	Node      int     `json:"node"`
	NodeShare float64 `json:"node_share"`
}

// Function is a function in samples of running threads.
type Function struct {
	Kind  recording.FrameKind `json:"kind"`
	Name  string              `json:"name"`
	File  string              `json:"file,omitempty"`
	Line  uint32              `json:"line,omitempty"` // Python: the line that most of its samples were at
	Self  uint64              `json:"self"`           // samples in it; of Python: or in native code that it called
	Total uint64              `json:"total"`          // samples in it or in what it called
	// Shares are of all samples of running threads.
	SelfShare  float64 `json:"self_share"`
	TotalShare float64 `json:"total_share"`
}

// Wait is all the times that a thread waited at one place for one reason.
type Wait struct {
	PID      uint32  `json:"pid"`
	TID      uint32  `json:"tid"`
	Thread   string  `json:"thread"`
	Reason   string  `json:"reason"`   // as package threads calls it
	Text     string  `json:"text"`     // of the longest one: "read of pipe:[123]"
	Place    string  `json:"place"`    // where it went to sleep; "" where no stack was taken
	Activity string  `json:"activity"` // what the stack proves, "" for nothing
	Count    uint64  `json:"count"`
	Time     uint64  `json:"time_ns"`
	Longest  uint64  `json:"longest_ns"`
	Share    float64 `json:"share"`  // of the window
	By       []Waker `json:"by"`     // who ended the waits, by time, the most first
	Enders   int     `json:"enders"` // how many these are, with those that By does not name
}

// Waker is who ended waits.
type Waker struct {
	PID         uint32  `json:"pid,omitempty"`
	TID         uint32  `json:"tid,omitempty"`
	Name        string  `json:"name,omitempty"`
	OtherThread bool    `json:"other_thread,omitempty"` // no thread of the target
	Interrupt   bool    `json:"interrupt,omitempty"`    // an interrupt or timer
	Nobody      bool    `json:"nobody,omitempty"`       // it still waits, or nobody was seen
	Count       uint64  `json:"count"`
	Time        uint64  `json:"time_ns"`
	Doing       string  `json:"doing,omitempty"`         // what it did meanwhile, most of the time
	Running     float64 `json:"running_share"`           // of the waits, the waker ran for this share
	Samples     uint64  `json:"samples,omitempty"`       // of the waker during the waits
	AtDoing     uint64  `json:"samples_there,omitempty"` // of these, at Doing
}

// Activity is what the frames of samples and waits prove about what threads did.
type Activity struct {
	Name    string  `json:"name"`
	Samples uint64  `json:"samples"` // of running threads
	Share   float64 `json:"share"`   // of all samples
	Waits   uint64  `json:"waits"`
	Blocked uint64  `json:"blocked_ns"` // in waits
	Thread  string  `json:"thread"`     // that spent most on it
	TID     uint32  `json:"tid"`
	Place   string  `json:"place"` // where most of it was
	// Holder, of the GIL: the thread that ran Python most of the time meanwhile.
	Holder    string `json:"holder,omitempty"`
	HolderTID uint32 `json:"holder_tid,omitempty"`
	HolderAt  string `json:"holder_place,omitempty"`
}

// Pressure is the effect of the host and the cgroup on the target.
type Pressure struct {
	Runnable    uint64  `json:"runnable_ns"` // threads waited for a CPU, summed over threads
	Share       float64 `json:"share"`       // of the time for which threads wanted to run
	Voluntary   int     `json:"voluntary_switches"`
	Involuntary int     `json:"involuntary_switches"`
	Migrations  int     `json:"migrations"`
	Takers      []taker `json:"takers"` // who took CPUs, by time, the most first
	// The rest comes from counters; Known reports whether there were two readings at least.
	Known       bool              `json:"counters_known"`
	Throttled   uint64            `json:"throttled_ns"`
	Periods     uint64            `json:"throttled_periods"`
	MemoryStall uint64            `json:"memory_stall_ns"`
	MajorFaults uint64            `json:"major_faults"`
	Pages       map[string]uint64 `json:"numa_pages,omitempty"`
	GPUNode     int               `json:"gpu_node"`     // -1: not known
	RemoteShare float64           `json:"remote_share"` // of the pages: on another node than the GPU
	// Nodes is running time by NUMA node in ns, empty where the host has one.
	Nodes     map[string]uint64 `json:"node_running_ns,omitempty"`
	Crossings int               `json:"node_migrations"` // of Migrations, to another node
	// RemoteRunning is the share of running time on another node than the GPU. RemoteAccess
	// is the share of accesses to memory that leave their node, if each thread uses all pages alike.
	RemoteRunning float64 `json:"remote_running_share"`
	RemoteAccess  float64 `json:"remote_access_share"`
	Ran           uint64  `json:"running_ns"` // summed over threads
	// OwnTime is for how long the target's threads waited because InferScope itself had taken their CPU, OwnCount
	// times: in no taker.
	OwnTime  uint64 `json:"own_ns,omitempty"`
	OwnCount uint64 `json:"own_count,omitempty"`
}

// taker is a thread that took CPUs from the target's threads.
type taker struct {
	PID         uint32 `json:"pid,omitempty"`
	TID         uint32 `json:"tid,omitempty"`
	Name        string `json:"name,omitempty"`
	OtherThread bool   `json:"other_thread,omitempty"`
	Throttled   bool   `json:"throttled,omitempty"` // nobody: the CPU went idle, for the cgroup's quota was used up
	Count       uint64 `json:"count"`
	Time        uint64 `json:"time_ns"` // for which the target's threads waited
}

// share returns part of whole, 0 where there is no whole.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
