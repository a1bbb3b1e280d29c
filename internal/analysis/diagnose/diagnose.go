// Package diagnose says what a recording means: where the time went, as a partition; why the
// GPU was idle; what to change. It is a pure function of a timeline and the gaps found in it.
package diagnose

import "github.com/inferscope/inferscope/internal/analysis/cause"

// Diagnosis is the answer. Times are ns, shares are fractions.
type Diagnosis struct {
	Verdict    Verdict    `json:"verdict"`
	Headline   string     `json:"headline"` // one sentence: what is wrong, and how much it costs
	Reasons    []string   `json:"reasons"`  // why there is not enough evidence, where that is the verdict
	Breakdown  Breakdown  `json:"breakdown"`
	Devices    []Device   `json:"devices"`       // the same for each GPU
	Iterations *Iteration `json:"iterations"`    // nil where none could be found
	Few        string     `json:"few,omitempty"` // what came back too seldom for a latency, where there are no Iterations
	// Start and End are what the program did before its first iteration and after its last, where the recording
	// holds its start or its exit. Neither is part of the breakdown.
	Start *Phase `json:"start,omitempty"`
	End   *Phase `json:"end,omitempty"`
	// Observed is what windows of GPU records added, and what everything here leaves out; nil where nothing is known of it.
	Observed *observed `json:"observed,omitempty"`
	Findings []Finding `json:"findings"` // first what wins back most of the time that it costs: see ordered
	// Together are findings that are fixed at once: those of one change, and all of the first ones.
	Together []Together `json:"together"`
}

// Phase is an interval that a program goes through once.
type Phase struct {
	From uint64 `json:"from_ns"` // CLOCK_MONOTONIC
	To   uint64 `json:"to_ns"`
}

// length returns the duration of a phase, ns; 0 if there is none.
func (p *Phase) length() uint64 {
	if p == nil {
		return 0
	}
	return p.To - p.From
}

// Verdict is the class of the bottleneck.
type Verdict string

// The verdicts.
const (
	Healthy   Verdict = "healthy"    // the GPU works nearly all of the time, and nothing stands out
	CPUBound  Verdict = "cpu-bound"  // the GPU waits for the CPU
	GPUBound  Verdict = "gpu-bound"  // the GPU works nearly all of the time, and could work better
	CopyBound Verdict = "copy-bound" // copies take more than computing
	// CommunicationBound: GPUs exchange data, or wait for each other, for a third of the time or more.
	CommunicationBound Verdict = "communication-bound"
	Hung               Verdict = "hung"     // some ranks wait in a collective for one that has not come up to the end
	Stopped            Verdict = "stopped"  // a GPU did nothing more after an error that the driver reported
	Balanced           Verdict = "balanced" // the GPU works for most of the time, and waits for some
	Idle               Verdict = "idle"     // nobody asks for anything
	CPUOnly            Verdict = "cpu-only" // the target uses no GPU: the answer is about its main thread
	NotEnough          Verdict = "not-enough-evidence"
)

// Breakdown is a partition of an interval: its parts sum to Time exactly.
type Breakdown struct {
	Time   uint64  `json:"ns"`     // that was seen, summed over devices in the whole's breakdown
	Window uint64  `json:"window"` // of the recording without Diagnosis.Start and End, ns, summed likewise: Time is what of it the numbers rest on
	Share  float64 `json:"share"`  // Time of Window
	Parts  []Part  `json:"parts"`  // compute first, then communication where there is some, copies and sets, then idle by cause, the most first
	People []Part  `json:"view"`   // the same time in the words that people know: CPU preprocessing, H2D, GPU compute, ...
}

// Part is one category of a breakdown.
type Part struct {
	Key   string   `json:"key"`   // compute, h2d, d2h, d2d, set, or the key of a cause
	Name  string   `json:"name"`  // for people
	Cause cause.ID `json:"-"`     // cause.Unknown and Busy for what is none
	Busy  bool     `json:"busy"`  // the GPU ran something
	Time  uint64   `json:"ns"`    //
	Share float64  `json:"share"` // of Breakdown.Time
}

// Device is the breakdown of one GPU.
type Device struct {
	PID       uint32    `json:"pid"` // the first process that uses it
	ID        uint8     `json:"id"`  // as that process counts
	Name      string    `json:"name"`
	Breakdown Breakdown `json:"breakdown"`
}

// Iteration is the end-to-end latency of what the program does again and again.
type Iteration struct {
	Source string `json:"source"` // how they were found: "ranges named decode", "period of cuStreamSynchronize in python (4711)"
	Named  bool   `json:"named"`  // by the program itself: NVTX or a scope
	Count  uint64 `json:"count"`
	Mean   uint64 `json:"mean_ns"`
	// Inside is Mean of the iterations, and parts of them, in the time that is broken down: shares of that are of these.
	Inside uint64 `json:"inside_mean_ns,omitempty"`
	// Outside is the share of the time that is broken down in which nothing repeats: more than one iteration before the
	// first or after the last.
	Outside float64 `json:"outside_share,omitempty"`
	// Foreign is the share of the GPUs' work that other processes asked for, which do not communicate with its own.
	Foreign float64 `json:"foreign_share,omitempty"`
	P50     uint64  `json:"p50_ns"`
	P99     uint64  `json:"p99_ns"`
	Max     uint64  `json:"max_ns"`
	PerSec  float64 `json:"per_second"` // from the first to the last
	// Amounts are the tokens and batch sizes of iterations whose scopes have them.
	Amounts []amount `json:"amounts,omitempty"`
	// Turn is what iterations make together, where a pause parts some from the next; nil where none is seen.
	Turn *Turn `json:"turn,omitempty"`
	// Kinds are the kinds of iterations, where these are clearly of several, that of most time first; absent where
	// they are not.
	Kinds []StepKind `json:"kinds,omitempty"`
	// Durations are all of them, ns, in the order of time: what a comparison with another recording rests on.
	Durations []uint64 `json:"-"`
	Starts    []uint64 `json:"-"`       // when each of Durations begins, CLOCK_MONOTONIC
	From      uint64   `json:"from_ns"` // CLOCK_MONOTONIC: the beginning of the first,
	To        uint64   `json:"to_ns"`   // and the end of the last
	Always    bool     `json:"always"`  // they rest on events that are recorded all the time, not in windows only
	// Missed is for what share of the recording that was not the case: the overhead budget may end the recording of calls.
	Missed float64 `json:"missed,omitempty"`
	PID    uint32  `json:"-"` // whose they are
}

// Turn is a number of iterations that a longer pause parts from the next: perhaps they are parts of what is an
// iteration to the user.
type Turn struct {
	Of  uint64 `json:"iterations"` // how many
	P50 uint64 `json:"p50_ns"`     // how long they take together, with the pause
}

// Finding is a claim with its evidence.
type Finding struct {
	Cause      string     `json:"cause"` // its key in the table of causes
	Title      string     `json:"title"` // with names: "Tokenization in encode (infer.py:12) holds up the GPU"
	Cost       uint64     `json:"cost_ns"`
	Share      float64    `json:"share"`      // Cost of Breakdown.Time; of start-end, which is no part of that, of the recording
	Confidence float64    `json:"confidence"` // 0 to 1
	Because    []string   `json:"because"`    // what the confidence rests on
	Evidence   []Evidence `json:"evidence"`
	Changes    []Change   `json:"changes"` // what to do, the best first
	Place      string     `json:"place,omitempty"`
	PID        uint32     `json:"pid,omitempty"` // the thread that it is about; 0: several
	TID        uint32     `json:"tid,omitempty"`
	Thread     string     `json:"thread,omitempty"`
	Gain       *Gain      `json:"gain,omitempty"`            // what the remedy would bring; nil where a replay cannot say
	Batch      *timeRange `json:"twice_the_batch,omitempty"` // throughput with a batch twice as large, where kernels have room for it
	Less       *Gain      `json:"less,omitempty"`            // what doing it once or not at all would bring at most, where Gain is that of doing it beside the rest
	Merge      *Gain      `json:"merge,omitempty"`           // what one copy or one kernel in place of many small ones would bring
	// Minor says that it is too little to be accused: what is left to gain of a GPU that works nearly all of the time, or
	// a cause of which neither its cost nor what is predicted proves that it matters.
	Minor bool `json:"minor,omitempty"`
	// Before is the key of the cause whose remedy is not possible before this one is made: a step that allocates or waits
	// cannot be recorded as a CUDA graph. The finding about it comes next.
	Before string `json:"before,omitempty"`
}

// timeRange is between what a figure lies.
type timeRange struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Gain is what a replay predicts of the remedy of a finding.
type Gain = cause.Gain

// Evidence is one fact behind a finding.
type Evidence struct {
	Text string   `json:"text"`
	From uint64   `json:"from_ns,omitempty"` // a time to look at in the timeline, CLOCK_MONOTONIC; 0: none
	To   uint64   `json:"to_ns,omitempty"`
	Call []string `json:"stack,omitempty"` // frames, the leaf first
}

// Change is something to do, in the user's terms.
type Change struct {
	Where   string `json:"where"`
	Text    string `json:"text"`
	Example string `json:"example,omitempty"`
}
