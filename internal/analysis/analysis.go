// Package analysis makes sense of a recording in one go. Run is a pure function of the recording, and its Result holds
// facts: package report makes all prose of it.
package analysis

import (
	"math"
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/topology"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/recording"
)

// gainEvents bounds the part of a recording from which the gains of findings are predicted, in calls, activities and
// waits. It holds some hundred iterations: more would not change the prediction and would delay the report.
const gainEvents = 60_000

// Result is what a recording shows. Nothing of it changes after Run; Timeline, Walk and Study still refer to the
// recording's events.
type Result struct {
	Recording *recording.Recording
	Timeline  *timeline.Timeline
	Threads   []threads.Thread // nil where scheduling was not recorded
	Walk      *gap.Walk        // the gaps of all GPUs within what is broken down
	Calls     *summary.Summary
	CPU       *cpu.Summary
	GPU       *gpu.Summary         // nil where no GPU activity was asked for
	Memory    *memory.Summary      // nil where nothing was recorded of allocators
	Sensors   *sensors.Summary     // nil where no sensors were read
	Requests  *requests.Summary    // nil where none was seen
	Exchanged *collectives.Summary // nil where no call of NCCL was seen
	Topology  *topology.Summary    // nil where no GPU was seen, or the host tells nothing of its GPUs
	Diagnosis *diagnose.Diagnosis
	Effect    *observer.Effect // what windows of GPU records add
	Study     *whatif.Study    // what the gains of findings are predicted with
}

// Run analyzes a recording:
//
//	recording > timeline > threads > walk along the critical path > diagnosis with predicted gains
//	                  > summaries of calls, CPU and GPU ............^
//
// Stages that do not need each other run at the same time. No goroutine outlives Run.
func Run(rec *recording.Recording) *Result {
	t := timeline.Build(rec) // uses all CPUs, as Threads does
	r := &Result{Recording: rec, Timeline: t, Threads: t.Index.Threads()}

	calls := begin(func() *summary.Summary { return summary.Summarize(t) })
	cpus := begin(func() *cpu.Summary { return cpu.SummarizeThreads(t, r.Threads) })
	allocated := begin(func() *memory.Summary { return memory.Summarize(rec) })
	served := begin(func() *requests.Summary { return requests.Summarize(rec) })
	exchanged := begin(func() *collectives.Summary { return collectives.Summarize(t, r.Threads) })
	started := gap.Start(t, r.Threads)
	diagnosis := diagnose.Begin(t, started)
	walk := begin(func() *gap.Walk { started.Find(diagnosis.Within()); return started })
	gpus := begin(func() *gpu.Summary {
		// The diagnosis measures each activity when the summary has just read it: it is still in the CPU's cache.
		take, wait := diagnosis.Beside()
		defer wait()
		return gpu.SummarizeWith(t, take)
	})
	// Nearly every diagnosis has a finding whose gain is asked for.
	study := begin(func() *whatif.Study {
		return whatif.Some(t, r.Threads, walk(), diagnosis.Within(), gainEvents, diagnosis.Effect())
	})

	r.GPU, r.Walk, r.CPU = gpus(), walk(), cpus()
	r.Exchanged = exchanged()
	var hangs []collectives.Hang
	if r.Exchanged != nil {
		hangs = r.Exchanged.Hangs
	}
	r.Topology = topology.Summarize(t, r.Threads)
	beside := diagnose.Beside{Hangs: hangs, Topology: r.Topology}
	r.Diagnosis = diagnosis.Diagnose(r.GPU, r.CPU, beside, predictor{study})
	r.Calls, r.Study, r.Memory, r.Effect = calls(), study(), allocated(), diagnosis.Effect()
	if r.Requests = served(); r.Requests != nil {
		if it := r.Diagnosis.Iterations; it != nil {
			r.Requests.Derive(rec, requests.Iterations{PID: it.PID, Source: it.Source, Starts: it.Starts})
		}
		r.Requests.FindDelays(rec, func(pid uint32, within timeline.Spans) requests.Ran {
			b := diagnosis.Busiest(r.Threads, pid, within)
			return requests.Ran{Thread: b.Thread, Running: b.Running, Place: b.Place, Starved: b.Starved}
		})
	}
	r.Sensors = sensors.Summarize(rec, r.rates())
	return r
}

// begin starts make in a goroutine and returns a function that waits for its result.
func begin[T any](make func() T) func() T {
	result := sync.OnceValue(make)
	go result()
	return result
}

// predictor implements diagnose.Predictor. The first prediction waits for the study.
type predictor struct{ study func() *whatif.Study }

// Next returns the cause whose remedy brings most once another remedy is made.
func (p predictor) Next(first cause.Remedy) (cause.ID, bool) { return p.study().Next(first) }

// Together returns what remedies would bring together.
func (p predictor) Together(remedies ...cause.Remedy) (diagnose.Gain, bool) {
	g, ok := p.study().Together(remedies...)
	return g.Gain, ok
}

// WhatIf predicts the gain of edits, and of each remedy, function and kernel, for the part of the recording in which
// the program repeats itself. For an edit that removes a delay of requests it predicts the time to the first token.
func (r *Result) WhatIf(edits []whatif.Edit) *whatif.Answer {
	ofRequests := func(e whatif.Edit) bool { return e.Verb == whatif.Without && cause.OfRequests(e.Pattern) }
	asked := slices.DeleteFunc(slices.Clone(edits), func(e whatif.Edit) bool { return !ofRequests(e) })
	edits = slices.DeleteFunc(slices.Clone(edits), ofRequests)
	study := whatif.Some(r.Timeline, r.Threads, nil, r.Diagnosis.Between(r.Timeline), math.MaxInt, r.Effect)
	a := study.Answer(r.pace(), edits)
	a.Version, a.PID = r.Recording.Meta.Version, r.Recording.Meta.Target
	if r.Requests == nil {
		return a
	}
	for i := range r.Requests.Delays {
		d := &r.Requests.Delays[i]
		named := func(e whatif.Edit) bool { return e.Pattern == d.Cause }
		if w := d.Without; w != nil && (len(asked) == 0 || slices.ContainsFunc(asked, named)) {
			a.FirstToken = append(a.FirstToken,
				whatif.FirstToken{Cause: d.Cause, Was50: w.Was50, Was99: w.Was99, P50: w.P50, P99: w.P99})
		}
	}
	return a
}

// rates returns what the target does a second. Tokens are left out where some were counted by the parts of a stream.
func (r *Result) rates() (out sensors.Rates) {
	if p := r.pace(); p != nil {
		out.Iterations = p.PerSec
	}
	if q := r.Requests; q != nil {
		out.Requests = q.PerSec
		if q.TokensUnknown+q.TokensCounted == 0 {
			out.Tokens = q.TokensPerSec
		}
	}
	return out
}

// pace returns how fast the program is as it is; nil where nothing repeats.
func (r *Result) pace() *whatif.Pace {
	it := r.Diagnosis.Iterations
	if it == nil {
		return nil
	}
	return &whatif.Pace{Of: it.Source, Latency: it.P50, PerSec: it.PerSec}
}
