package recording

import "time"

// Names of sources whose pauses are known (Overhead.PausedOf).
const (
	CallsSource      = "cuda calls"
	SchedulingSource = "scheduling"
	SamplesSource    = "cpu samples"
	RequestsSource   = "requests"
	MemorySource     = "framework memory"
)

// GPUSource is the name of the source that injects agents into programs. No agent is used where a daemon has no
// source of this name, or where its state is SourceOff.
const (
	GPUSource = "gpu activity"
	SourceOff = "off"
)

// AgentStatus describes the agent of one process and counts what it has recorded so far.
type AgentStatus struct {
	Agent           // Dropped counts from the start
	Kernels  uint64 `json:"kernels"`     // seen
	Events   uint64 `json:"events"`      // kernels, copies, launches and so on
	Windows  uint64 `json:"windows"`     // that ended
	Observed uint64 `json:"observed_ns"` // their length together: for so long launches and GPU activity were recorded
	Disabled uint64 `json:"disabled"`    // of these, without leaving CUPTI
	Kept     uint64 `json:"kept"`        // of these, without giving CUPTI's subscription up: in between nothing is on

	Steps []WindowSteps `json:"window_steps,omitempty"` // of the last windows, 64 at most, the latest last
	// threads that were kept out of the driver for moments; null: none was
	Held *Held `json:"held,omitempty"`
	// critical sections for which they were, and windows that ended otherwise because one would have taken too long
	Sections *Sections `json:"held_sections,omitempty"`
	Starved  uint64    `json:"starved"`
}

// Sections describes where the time of critical sections went, in which CUPTI is flushed or removed and gates hold
// threads. The parts of a section add up to it.
type Sections struct {
	Drain   Times `json:"drain"`    // until all other threads were outside of the driver, or the agent gave up
	CPUWait Times `json:"cpu_wait"` // of the thread that flushes or removes CUPTI, for a CPU
	Work    Times `json:"work"`     // the rest, of sections in which all other threads got outside
}

// Times counts sections by the time that a part of them took.
type Times struct {
	Counts  [5]uint32 `json:"counts"`     // up to each of HeldUpTo, and longer
	Sum     uint64    `json:"sum_ns"`     // all together
	Longest uint64    `json:"longest_ns"` // one of them
}

// most bounds sums of what a target may write, so that they cannot wrap, ns.
const most = 1 << 48

// Add counts a section, of which the part took so long (ns).
func (t *Times) Add(ns uint64) {
	i := 0
	for i < len(HeldUpTo) && ns > uint64(HeldUpTo[i]) {
		i++
	}
	t.Counts[i]++
	t.Sum = min(t.Sum+min(ns, most), most)
	t.Longest = max(t.Longest, ns)
}

// Held describes for how long an agent kept threads of its process out of the driver, as the process itself says.
type Held struct {
	Threads [5]uint32 `json:"threads"`    // each time counted, by time: up to each of HeldUpTo, and longer
	Sum     uint64    `json:"sum_ns"`     // all together
	Longest uint64    `json:"longest_ns"` // one of them
}

// HeldUpTo are the bounds of Held.Threads and Times.Counts; the last ones took longer.
var HeldUpTo = [4]time.Duration{time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond}

// WindowSteps says when a window began and what each step of it took, as the agent measured them: all in ns. What runs
// in the agent's own thread can still hold up calls into the driver. From Disable on it ran in a thread of the process
// itself where the window ended as finalized and not Own: what that thread had to do lay still meanwhile.
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
