// Package loss is the one registry of every way in which InferScope can lose or
// doubt something. A loss is data: it is counted where it happens, carried by
// every recording, printed at the top of each report and exported as a metric.
package loss

import (
	"encoding/json"
	"fmt"
	"math"
)

// Reason names a way to lose something. Its value is what JSON and metrics show.
type Reason string

// Severity describes what a loss does to conclusions.
type Severity string

// The severities, from harmless to fatal for a verdict.
const (
	Info    Severity = "info"    // known and harmless: the answer is the same
	Warning Severity = "warning" // numbers are lower bounds
	Error   Severity = "error"   // a verdict may be wrong
)

// The reasons. Kinds says of each what it means and what to do.
const (
	RingFull       Reason = "ring_full"
	CallDepth      Reason = "call_depth"
	ThreadStorage  Reason = "thread_storage"
	ReturnOnly     Reason = "return_only"
	CallsSkipped   Reason = "calls_skipped"
	Malformed      Reason = "malformed"
	Overwritten    Reason = "overwritten"
	ArgumentFault  Reason = "argument_fault"
	ProbeFailed    Reason = "probe_failed"
	ExpensivePoint Reason = "expensive_point"
	LateProbe      Reason = "late_probe"
	ProcessEvents  Reason = "process_events"
	LibraryRefused Reason = "library_refused"
	SwitchesSummed Reason = "switches_summed"
	SwitchesMissed Reason = "switches_missed"
	ThreadsMissed  Reason = "threads_missed"
	OthersWithheld Reason = "others_withheld"

	EventsThrottled  Reason = "events_throttled"
	HistoryDamaged   Reason = "history_damaged"
	ProcessesSkipped Reason = "processes_skipped"

	SampleLost      Reason = "sample_lost"
	ThreadUnsampled Reason = "thread_unsampled"
	PythonRefused   Reason = "python_refused"
	SwitchesShed    Reason = "switches_shed"
	SamplesPaused   Reason = "samples_paused"
	StackSpliced    Reason = "stack_spliced"
	StackPython     Reason = "stack_python_only"
	StackLeaf       Reason = "stack_leaf_only"
	StackEvicted    Reason = "stack_evicted"
	StackUnnamed    Reason = "stack_unnamed"

	GPURingFull       Reason = "gpu_ring_full"
	GPURecordsDropped Reason = "gpu_records_dropped"
	GPUWindowDisabled Reason = "gpu_window_disabled"
	GPUNamesLost      Reason = "gpu_names_lost"
	GPURingThrottled  Reason = "gpu_ring_throttled"
	AgentRefused      Reason = "agent_refused"

	ScopesLost    Reason = "scopes_lost"
	ScopesUnnamed Reason = "scopes_unnamed"
	ScopesRefused Reason = "scopes_refused"

	MemoryUnseen      Reason = "memory_unseen"
	MemorySamplesLost Reason = "memory_samples_lost"

	RequestsUnseen Reason = "requests_unseen"
	RequestsLost   Reason = "requests_lost"

	RowsCut Reason = "rows_cut"
)

// IsState reports whether a reason describes how the target is probed. The others count events.
func (r Reason) IsState() bool {
	switch r {
	case ProbeFailed, ExpensivePoint, LibraryRefused, ThreadUnsampled, PythonRefused, AgentRefused:
		return true
	}
	return false
}

// Kind describes a reason to people.
type Kind struct {
	Reason   Reason
	Severity Severity
	Means    string // one sentence: what happened
	Do       string // one sentence: what to change; empty where nothing helps
}

// Loss is a count of one reason.
type Loss struct {
	Reason Reason `json:"reason"`
	Count  uint64 `json:"count"`            // of events, calls, libraries: Kind.Means says which
	PID    uint32 `json:"pid,omitempty"`    // the process that it concerns alone; 0: more than one, or none
	CPU    CPU    `json:"cpu,omitzero"`     // the CPU on which it happened; 0: it is not of a CPU
	Where  string `json:"where,omitempty"`  // the CPU, file or process concerned, for people
	Detail string `json:"detail,omitempty"` // the error or circumstance, for people
}

// Kinds returns every known reason in the order in which reports list them.
func Kinds() []Kind { //nolint:funlen // a table
	return []Kind{
		{
			RingFull,
			Error,
			"events were dropped because a CPU's ring buffer was full",
			"raise --ring-mb, or probe fewer functions",
		},
		{
			ProcessEvents,
			Error,
			"fork, exec or exit events were dropped",
			"restart the daemon if a process is missing from `inferscope targets`",
		},
		{
			Malformed,
			Error,
			"records in a ring buffer were not events of this version",
			"restart the daemon, and report it with the kernel's version if it comes back",
		},
		{
			GPURingFull,
			Error,
			"GPU records were dropped because an agent's ring was full",
			"record in windows (--gpu windows), or give the daemon more CPU time",
		},
		{
			GPURecordsDropped,
			Error,
			"CUPTI dropped GPU records for want of buffers",
			"record in windows (--gpu windows), or in shorter ones (--gpu-window)",
		},
		{
			GPURingThrottled,
			Error,
			"GPU records of a process were dropped because it wrote more of them than are taken of one",
			"record in windows (--gpu windows), or watch a process that launches less",
		},
		{
			EventsThrottled,
			Error,
			"events of a target were not recorded because it made more of them than are taken of one",
			"probe fewer functions, or watch fewer processes as one target",
		},
		{
			HistoryDamaged,
			Error,
			"events did not match their checksum when they were read from the recorder's memory, and are missing",
			"look for errors of the machine's memory (edac-util, dmesg), and report it if there are none",
		},
		{AgentRefused, Warning, "a process has no agent, so that nothing of what its GPU did was recorded", ""},
		{CallDepth, Warning, "timed calls nested deeper than the probe's stack were not timed", ""},
		{ThreadStorage, Warning, "the kernel had no memory to remember a call's start", ""},
		{ReturnOnly, Info, "calls were already running when the probe was attached", ""},
		{
			CallsSkipped,
			Info,
			"allocations and frees were so frequent that only some were recorded one by one: their number is exact, " +
				"their time an estimate, and what stays allocated is not known",
			"",
		},
		{
			Overwritten,
			Info,
			"the oldest events made room for new ones",
			"raise --trace-size-mb (INFERSCOPE_TRACE_SIZE_MB), or ask for a shorter window",
		},
		{ArgumentFault, Info, "an argument in the target's memory could not be read", ""},
		{ProbeFailed, Error, "a function of the table could not be probed", ""},
		{ExpensivePoint, Info, "functions have no cheap probe point, so that each call costs 10 to 33 times more", ""},
		{LateProbe, Warning, "a process or library ran for a while before it was probed", ""},
		{
			ProcessesSkipped,
			Warning,
			"processes or programs had ended before they were looked at, because a target starts more than there is " +
				"time for",
			"",
		},
		{
			OthersWithheld,
			Warning,
			"processes that ran as another user, or with more rights than their user, are left out",
			"ask as root",
		},
		{LibraryRefused, Error, "a mapped CUDA library could not be read or is not what it claims to be", ""},
		{SwitchesSummed, Info, "waits of threads were only summed because there were too many to list", ""},
		{
			SwitchesMissed,
			Info,
			"ends of waits were not seen; when they ended is from the kernel's own account, by whom is not known",
			"",
		},
		{ThreadsMissed, Warning, "threads were too many to follow their scheduling", ""},
		{
			SampleLost,
			Warning,
			"CPU samples were dropped because the ring of samples was full",
			"lower the sampling frequency",
		},
		{
			ThreadUnsampled,
			Warning,
			"threads are not sampled",
			"raise the limit of open files (LimitNOFILE=, ulimit -n) if the detail says so",
		},
		{
			PythonRefused,
			Warning,
			"the Python interpreter of a process could not be read, so its samples have no Python frames",
			"",
		},
		{
			StackEvicted,
			Warning,
			"samples have no stack any more, because it made room for others",
			"ask for a shorter window, or lower the sampling frequency",
		},
		{
			StackUnnamed,
			Warning,
			"native functions in samples of a process have no name, because it and its user's other processes map " +
				"too many files with code",
			"load fewer libraries, or watch fewer processes of that user",
		},
		{
			SwitchesShed,
			Info,
			"threads left their CPU more often than stacks are taken of it, so that those of waits are a sample",
			"",
		},
		{
			SamplesPaused,
			Info,
			"pauses were made in sampling a process that switches so often that samples would take more than the " +
				"budget, so that there are fewer of it",
			"raise --overhead-budget if more samples matter more",
		},
		{
			GPUWindowDisabled,
			Info,
			"windows of GPU records ended without leaving CUPTI, so that CUDA graphs that ran in them stay slower " +
				"until the next window ends well",
			"nothing, where the program never synchronizes; otherwise report it",
		},
		{GPUNamesLost, Info, "kernels or ranges have no name, because there were too many different ones", ""},
		{
			ScopesLost,
			Warning,
			"scopes of the Python package were overwritten before they were read",
			"name longer stretches, or give the daemon more CPU time",
		},
		{
			ScopesRefused,
			Warning,
			"the memory in which a process names its scopes cannot be used, so its scopes are missing",
			"",
		},
		{
			MemoryUnseen,
			Warning,
			"an allocator could not be probed, so that its memory is not known",
			"",
		},
		{
			MemorySamplesLost,
			Warning,
			"some allocations were not followed: totals of frameworks are exact, live bytes by stack are lower " +
				"bounds",
			"",
		},
		{
			RequestsUnseen,
			Warning,
			"transfers on sockets with HTTP requests were made in a way in which their bytes are not seen (io_uring, " +
				"sendfile): requests may be incomplete",
			"",
		},
		{RequestsLost, Warning, "HTTP requests or parts of them are missing, because there were too many", ""},
		{
			RowsCut,
			Warning,
			"rows of the trace did not fit into memory: this is about its beginning",
			"allow more memory (--max-memory)",
		},
		{
			ScopesUnnamed,
			Info,
			"scopes have no name, because there were too many different ones",
			"put what changes from one to the next into an attribute",
		},
		{StackLeaf, Info, "samples have no stack but the function that ran", ""},
		{
			StackPython,
			Info,
			"samples have the Python stack and the native function that ran, but no native callers",
			"",
		},
		{StackSpliced, Info, "samples lack some native callers: the native stack could not be followed to its end", ""},
	}
}

// Describe returns the Kind of r; an unknown reason (from a newer recording) describes itself.
func Describe(r Reason) Kind {
	for _, k := range Kinds() {
		if k.Reason == r {
			return k
		}
	}
	return Kind{Reason: r, Severity: Warning, Means: string(r)}
}

// CPU is the number of a CPU and 1, so that 0 is none. In JSON it is the number.
type CPU uint32

// CPUOf returns the CPU with a number.
func CPUOf(number int) CPU { return CPU(number + 1) }

// MarshalJSON writes the number.
func (c CPU) MarshalJSON() ([]byte, error) {
	if c == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(uint32(c) - 1)
}

// UnmarshalJSON reads a number, or null for none.
func (c *CPU) UnmarshalJSON(b []byte) error {
	var number *uint32
	if err := json.Unmarshal(b, &number); err != nil {
		return fmt.Errorf("the number of a CPU: %w", err)
	}
	switch {
	case number == nil:
		*c = 0
	case *number == math.MaxUint32:
		return fmt.Errorf("%d is no number of a CPU", *number)
	default:
		*c = CPU(*number + 1)
	}
	return nil
}

// String names the CPU as Loss.Where does: "cpu 3"; "" for none.
func (c CPU) String() string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf("cpu %d", uint32(c)-1)
}
