// Package threads says of each thread in a recording when it ran, when it waited for
// a CPU and when it was blocked, on what, and who ended the wait. Its intervals are
// an exact partition of the window. It is a pure function of the recording.
package threads

import "github.com/inferscope/inferscope/internal/recording"

// State is the state of a thread in an interval.
type State uint8

// The states. Every ns of a thread's window is in exactly one of them.
const (
	Running  State = iota // on a CPU
	Runnable              // could run, and waited for a CPU
	Blocked               // waited for something else
	Absent                // not born yet, or ended; or scheduling was not recorded (recording.Pause)
	states
)

// String returns the name of the state.
func (s State) String() string {
	return [...]string{"running", "runnable", "blocked", "absent", "?"}[min(s, states)]
}

// Thread is one thread of the target.
type Thread struct {
	PID, TID  uint32
	Name      string         // "" where the recording does not name it
	Intervals []Interval     // they touch each other, and cover the window
	Totals    [states]uint64 // ns; their sum is the window's length
	Reasons   map[Reason]uint64
	Summed    summed // parts of Totals that are in no interval of their own
	Switches  switches
	CPUs      map[uint16]uint64 // ns of the Running intervals by CPU, as far as it is known
}

// IsRecorder reports whether a thread is in the program because it is watched: the agent's (agent/src/agent.h names it)
// or CUPTI's.
func (t *Thread) IsRecorder() bool { return IsRecorder(t.Name) }

// IsRecorder reports whether a thread of that name is.
func IsRecorder(name string) bool { return name == "inferscope" || name == "cupti" }

// Interval is a stretch of one state.
type Interval struct {
	From, To uint64 // ns, CLOCK_MONOTONIC
	Wait     int32  // index of the event in Recording.Events that says so; -1: none, it is what others left
	State    State
	Reason   Reason // why it was blocked; None for the other states
	// Mixed: short waits lie in this stretch that are only known in sum (Thread.Summed).
	Mixed bool
}

// Dur returns the length in ns.
func (i Interval) Dur() uint64 { return i.To - i.From }

// summed is time of which only sums are known, because waits were too many to be
// recorded one by one. It is no part of the thread's Reasons.
type summed struct {
	Blocked, Runnable uint64            // ns
	Count             uint64            // waits
	Reasons           map[Reason]uint64 // ns of Blocked, as far as the sums say why; nil: none of it
}

// switches counts how often a thread left its CPU in the window.
type switches struct {
	Voluntary   int // it blocked
	Involuntary int // another thread took the CPU
	Migrations  int // it came back on another CPU
	Crossings   int // of these, to another NUMA node (Meta.Host.NodeOf)
}

// Build returns the threads of a recording ordered by PID and TID: all that it has
// scheduling events of, and nil where scheduling was not recorded. It takes
// O(n log n) for n such events, and never fails: what contradicts itself is cut to fit.
func Build(rec *recording.Recording) []Thread { return newIndex(rec).Threads() }

// Threads is Build for who has an index.
func (x *Index) Threads() []Thread {
	b := newBuilder(x)
	if len(b.lists) == 0 {
		return nil
	}
	return b.threads()
}
