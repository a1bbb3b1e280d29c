package report

import (
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/recording"
)

// evidence is what a model is made of.
type evidence struct {
	timeline *timeline.Timeline
	threads  []threads.Thread // nil where scheduling was not recorded
	cpu      func() *cpu.Summary
	gpu      func() *gpu.Summary
	did      *diagnose.Work // it has measured all when gpu is there
	walk     func() *gap.Walk
	calls    func() *summary.Summary // it begins when it is first asked for
	study    func() *whatif.Study    // likewise: what predicts the gains of findings
}

// read makes what all parts of the evidence rest on.
func read(rec *recording.Recording) *evidence {
	t := timeline.Build(rec) // it uses all CPUs, as the threads do
	e := &evidence{timeline: t, threads: t.Index.Threads()}
	e.calls = sync.OnceValue(func() *summary.Summary { return summary.Summarize(t) })
	e.study = sync.OnceValue(e.gains)
	return e
}

// begin begins to make sense of the recording. Most parts do not depend on each other, so they run at the same time;
// who asks for one waits for it.
func (e *evidence) begin() *evidence {
	t, scheduled := e.timeline, e.threads
	e.cpu = begin(func() *cpu.Summary { return cpu.SummarizeThreads(t, scheduled) })
	walk := gap.Start(t, scheduled)
	e.did = diagnose.Begin(t, walk)
	e.walk = begin(func() *gap.Walk { walk.Find(e.did.Within()); return walk })
	e.gpu = begin(func() *gpu.Summary {
		take, wait := e.did.Beside()
		defer wait()
		return gpu.SummarizeBeside(t, take)
	})
	return e
}

// begin runs make beside what follows, and returns what waits for its result.
func begin[T any](make func() T) func() T {
	result := sync.OnceValue(make)
	go result()
	return result
}

func (e *evidence) diagnosis(predict diagnose.Predict) *diagnose.Diagnosis {
	g := e.gpu()
	e.walk()
	return e.did.Diagnose(g, e.cpu(), predict)
}
