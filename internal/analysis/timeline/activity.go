package timeline

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// activityKind is what a GPU did.
type activityKind uint8

// The kinds of activities.
const (
	Kernel activityKind = iota
	Copy
	Set
	Kinds // how many there are
)

// Link describes how the call of an activity was found.
type Link uint8

// The ways.
const (
	Unlinked Link = iota // it was not: Op is None
	ByID                 // by correlation id: certain
	ByGraph              // it is a node of a graph, Op launched the graph; by correlation id where Confidence is 1
	ByOrder              // by order, shape and time
	Links                // how many there are
)

// Activity is one kernel, copy or set on a GPU.
type Activity struct {
	// ns, CLOCK_MONOTONIC, clipped to the window in which it was recorded; Duration has the whole. An Exchange lasts
	// until the next copy of its call begins.
	Start, End uint64
	Event      int32 // index into Rec.Events
	Op         int32 // index into Timeline.Ops of the call that asked for it, None where that is not known
	Stream     int32 // index into Timeline.Streams
	Kind       activityKind
	Link       Link
	Graph      bool // it is a node of a graph
	Exchange   bool // a copy that a call of NCCL launched: it is in Timeline.Exchanges
}

// Confidence returns how sure it is that the Op of the activity at index i is right, 0 to 1: correlation ids are
// certain.
func (t *Timeline) Confidence(i int32) float32 {
	switch {
	case t.Activities[i].Link == Unlinked:
		return 0
	case t.Activities[i].Link == ByID || len(t.guesses) == 0:
		return 1
	}
	at, ok := slices.BinarySearchFunc(t.guesses, i, func(g guess, i int32) int { return int(g.activity - i) })
	if !ok {
		return 1
	}
	return t.guesses[at].confidence
}

// guess is how sure a link by order is.
type guess struct {
	activity   int32
	confidence float32
}

// Device is a GPU, and the range of its activities: Activities[First:Last].
type Device struct {
	Process     int32             // the first process that uses it, index into Timeline.Processes
	ID          uint8             // as that process counts
	Info        *recording.Device // nil where the recording does not describe it
	Users       []int32           // the processes that have activities on it, in the order of Timeline.Processes
	First, Last int32
}

// Stream is a CUDA stream that has activities.
type Stream struct {
	Process int32 // index into Timeline.Processes
	Device  int32 // index into Timeline.Devices
	Context uint8 // CUPTI context id; 255: that or more
	ID      uint32
}

// Seen describes when what one process did was seen. What is not in Activity is not idle: it is not known.
type Seen struct {
	Activity Spans // GPU activities were recorded
	Calls    Spans // launches were recorded
	// Unsure is the part of Activity in which work could have run that was not recorded: launched
	// before a window began, or not delivered before it ended.
	Unsure  Spans
	Dropped uint64 // records known to be lost in Activity
	// Lossy is the part of Activity in which records that were lost can have run: whole windows, unless calls tell
	// which these are.
	Lossy Spans
}

// Sync is a time for which a thread or a stream waited for a GPU, or looked whether it had to:
// as CUPTI recorded it or, where CUPTI did not record it (its records are expensive), from the waiting call.
type Sync struct {
	Start, End uint64 // ns, CLOCK_MONOTONIC: of the waiting call
	// Done is when Activity ended on the GPU, ns, not clipped; 0 where Activity is None. A sync that
	// ends later returned late: from Done on nobody waited for the GPU.
	Done    uint64
	Process int32 // index into Timeline.Processes
	Op      int32 // the call that waited: the outermost where it is Derived; None where that is not known
	// Activity is what it waited for: the last one on the stream, or in the context, that ended while
	// it waited. None: everything had ended before, or it was not recorded.
	Activity int32
	Stream   int32 // index into Streams of what it waited for; None: a whole context, or not known
	Type     SyncType
	Derived  bool // made of the call: CUPTI did not say it
}

// SyncType is what a Sync waited for: CUpti_ActivitySynchronizationType of the CUPTI reference.
type SyncType uint8

// The types.
const (
	otherSync   SyncType = iota
	EventSync            // a thread waited for an event
	StreamWait           // a stream waited for an event
	StreamSync           // a thread waited for a stream
	contextSync          // a thread waited for everything in a context
	// a thread waited for its own copy, and for what was before it in the stream; CUPTI has no such type
	CopySync
)

// clock describes how far apart the clocks of the GPU's records and of the calls are, from causality: no kernel
// begins before its launch, and no synchronization returns before what it waits for has ended.
type clock struct {
	Error uint64 // ns: the most by which that was violated; the clocks are at least so far apart
	Bound uint64 // ns: they are at most so far apart; 0: not known
	Pairs int    // of times that were compared; 0: nothing is known
}

// causality gathers what pairs of times prove. If the GPU's clock is ahead by e, every launch says
// e <= start - launch, and every synchronization -e <= return - end.
type causality struct {
	starts, ends   int
	latency, slack int64 // ns: the least of start - launch, and of return - end
}

func (c *causality) launched(at, start uint64) {
	if d := int64(start - at); c.starts == 0 || d < c.latency {
		c.latency = d
	}
	c.starts++
}

func (c *causality) awaited(end, back uint64) {
	if d := int64(back - end); c.ends == 0 || d < c.slack {
		c.slack = d
	}
	c.ends++
}

// add takes what other launches prove.
func (c *causality) add(o *causality) {
	switch {
	case o.starts == 0:
		return
	case c.starts == 0:
		c.latency = o.latency
	}
	c.latency = min(c.latency, o.latency)
	c.starts += o.starts
}

func (c *causality) clock() clock {
	out := clock{Pairs: c.starts + c.ends, Error: uint64(max(0, -c.latency, -c.slack))}
	if c.starts > 0 && c.ends > 0 {
		out.Bound = uint64(max(c.latency, -c.latency, c.slack, -c.slack))
	}
	return out
}

// Duration returns how long a took on the GPU in ns, clipped to nothing.
func (t *Timeline) Duration(a *Activity) uint64 { return t.Rec.Events[a.Event].Dur }

// Kernel returns the kernel of a, nil where its name was lost or a is none.
func (t *Timeline) Kernel(a *Activity) *recording.Kernel {
	i := t.KernelIndex(a)
	if i == None {
		return nil
	}
	return &t.Rec.Meta.GPU.Kernels[i]
}

// KernelIndex returns the index of the kernel of a into the recording's table, None where its name was lost or a is
// none.
func (t *Timeline) KernelIndex(a *Activity) int32 {
	if a.Kind != Kernel || t.Rec.Meta.GPU == nil {
		return None
	}
	i := t.Rec.Events[a.Event].Ret - 1
	if i < 0 || int(i) >= len(t.Rec.Meta.GPU.Kernels) {
		return None
	}
	return i
}

// ThreadOf returns the index of the thread that made the op at index i.
func (t *Timeline) ThreadOf(i int32) int32 {
	low, high := 0, len(t.Threads)
	for low < high {
		if mid := (low + high) / 2; t.Threads[mid].Last <= i {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return int32(low)
}

// Outermost returns the index of the call that the program made and that made the op at index i.
func (t *Timeline) Outermost(i int32) int32 {
	for t.Ops[i].Parent != None {
		i = t.Ops[i].Parent
	}
	return i
}
