package diagnose

import (
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/topology"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Begin finds out what a diagnosis is about: the iterations of the program, and the stretch of time without its start
// and its end that is broken down. The walk need not have found its gaps yet.
func Begin(t *timeline.Timeline, walk *gap.Walk) *Work {
	a := &analysis{
		t:       t,
		w:       walk,
		table:   cause.On(t.Rec.Meta.Host.CPUs),
		places:  newPlaces(t.Rec),
		names:   threadNames(t.Rec),
		unasked: sync.OnceValues(func() (float64, bool) { return gap.Unasked(t) }),
	}
	d := &Diagnosis{Reasons: []string{}, Devices: []Device{}, Together: []Together{}}
	a.subject = a.about()
	d.Iterations, d.Few = a.iterations()
	a.effect = a.observers(d.Iterations)
	a.ends(d)
	return &Work{a: a, d: d, devices: a.newDevices()}
}

// Within is the interval of the breakdown, for which the walk must have summed up the gaps.
func (w *Work) Within() timeline.Span { return w.a.within }

// Beside has the results of other parts of the analysis, apart from the summaries.
type Beside struct {
	Hangs    []collectives.Hang // at the end of the recording
	Topology *topology.Summary  // nil: not known
}

// Diagnose is New where the gaps are found, and what the devices did is measured. Nothing is measured after it.
func (w *Work) Diagnose(g *gpu.Summary, c *cpu.Summary, b Beside, predict Predictor) *Diagnosis {
	a, d := w.a, w.d
	a.gpu, a.cpu, a.hangs, a.topology = g, c, b.Hangs, b.Topology
	a.kinds = a.stepKinds(d.Iterations)
	a.measure(d, w.devices)
	a.inStep = a.inSteps(d.Iterations)
	if d.Iterations != nil {
		d.Iterations.Inside = a.insideMean(d.Iterations)
		d.Iterations.Outside = a.outside(d.Iterations)
		d.Iterations.Foreign = a.foreign(d.Iterations)
		if o := d.Observed; o != nil {
			d.Iterations.Inside = uint64((1 - o.Share) * float64(d.Iterations.Inside))
		}
	}
	list := a.findings(d)
	d.Findings = plain(list)
	a.judge(d)
	if d.Verdict != NotEnough {
		if predict != nil {
			list = a.predicted(list, predict)
		}
		list = a.ordered(a.demoted(list))
		if predict != nil && !slices.ContainsFunc(list, func(f ranked) bool { return a.waitsIdle(f.id) }) {
			d.Together = a.together(list, predict)
		}
		d.Findings = plain(list)
		a.acquit(d)
	}
	d.Headline = a.headline(d)
	return d
}

// analysis holds what the parts of a diagnosis share.
type analysis struct {
	t        *timeline.Timeline
	w        *gap.Walk
	gpu      *gpu.Summary // nil: nothing is recorded about GPUs
	cpu      *cpu.Summary
	table    []cause.Cause // by ID
	places   *places
	subject  subject
	total    measured              // of all devices, or of the main thread
	groups   [cause.Count]*group   // steps by cause; nil where there are none
	names    map[uint64]string     // of threads, by threadKey
	waits    *threads.Waits        // nil until somebody asks
	callers  *callers              // likewise
	ranks    *collectives.Arrivals // who came last to collectives; nil: no two ranks communicate, or they are stages
	stages   *collectives.Pipeline // that wait for each other in communication; nil: it is not that
	bubbled  uint64                // ns of exposed communication: they wait for one that works
	hangs    []collectives.Hang    // at the end of the recording
	stopped  bool                  // a GPU did, see gpuError
	topology *topology.Summary     // nil: not known
	within   timeline.Span         // what is broken down: the window without the program's start and end
	inStep   stepCalls             // what is called in each iteration
	shapes   shapes                // of the steps that launch kernels one by one
	kinds    *steps                // iterations by kind; nil where there is one kind
	effect   *observer.Effect      // what windows add
	wholes   map[uint32]*wholes    // by pid, of those that were asked for
	once     *group                // what was done outside of it; nil: nothing
	// gap.Unasked, computed once
	unasked func() (share float64, known bool)
}

// subject is what the recording allows a diagnosis to be about.
type subject uint8

const (
	aboutGPUs   subject = iota // GPUs that were seen to work
	aboutSilent                // a GPU that was watched and did nothing
	aboutUnseen                // a program that uses a GPU which nobody watched
	aboutCPU                   // a program that uses no GPU
)

// about finds out what can be said. What the main thread did stands in for the gaps of a GPU
// wherever there is none that was seen to work.
func (a *analysis) about() subject {
	for _, spans := range a.w.Covered {
		if len(spans) > 0 {
			return aboutGPUs
		}
	}
	if len(a.t.Activities) > 0 {
		return aboutUnseen
	}
	watched := false
	for i := range a.t.Seen {
		watched = watched || len(a.t.Seen[i].Activity) > 0
	}
	switch {
	case watched:
		return aboutSilent
	case a.usesGPU():
		return aboutUnseen
	}
	return aboutCPU
}

// usesGPU reports whether some call asked a GPU for something: cuInit and its kin alone do not, for
// frameworks look for a GPU even where they are told to use none.
func (a *analysis) usesGPU() bool {
	uses := a.inGroups("launch", "copy", "set", "graph", "alloc", "sync")
	for i := range a.t.Ops {
		if uses[a.t.Ops[i].Func] {
			return true
		}
	}
	return false
}

// inGroups returns, for each function of the recording, whether it is in one of some groups: there are millions of
// calls.
func (a *analysis) inGroups(groups ...string) []bool {
	functions := a.t.Rec.Meta.Functions
	out := make([]bool, len(functions))
	for i := range functions {
		out[i] = slices.Contains(groups, functions[i].Group)
	}
	return out
}

// threadNames are the names of threads; the main thread of a process that lived shortly has that of its program.
func threadNames(rec *recording.Recording) map[uint64]string {
	names := map[uint64]string{}
	for _, p := range rec.Meta.Processes {
		names[threadKey(p.PID, p.PID)] = p.Comm
	}
	for _, list := range [][]recording.Thread{rec.Meta.OtherThreads, rec.Meta.Threads} {
		for _, t := range list {
			if t.Name != "" {
				names[threadKey(t.PID, t.TID)] = t.Name
			}
		}
	}
	return names
}

// who returns the name of a thread for display: "loader (4712)", "thread 4712".
func (a *analysis) who(key uint64) string {
	tid := strconv.FormatUint(key&math.MaxUint32, 10)
	if name := a.names[key]; name != "" {
		return format.Clean(name) + " (" + tid + ")"
	}
	return "thread " + tid
}

// share returns part/whole, 0 if whole is 0.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
