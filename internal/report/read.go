package report

import (
	"sync"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/analyze/cpu"
	"github.com/inferscope/inferscope/internal/analyze/gpu"
	"github.com/inferscope/inferscope/internal/diagnose"
	"github.com/inferscope/inferscope/internal/gap"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/threads"
	"github.com/inferscope/inferscope/internal/timeline"
)

// evidence is what a model is made of.
type evidence struct {
	timeline *timeline.Timeline
	calls    *analyze.Summary
	cpu      *cpu.Summary
	gpu      *gpu.Summary
	walk     *gap.Walk
	threads  []threads.Thread // nil where scheduling was not recorded
}

// read makes sense of a recording. Its parts do not depend on each other, so they run at the same time.
func read(rec *record.Recording) *evidence {
	e := &evidence{}
	e.timeline = timeline.Build(rec) // it uses all CPUs, as the threads do
	scheduled := e.timeline.Index.Threads()
	e.threads = scheduled
	atOnce(
		func() { e.walk = gap.New(e.timeline, scheduled) },
		func() { e.cpu = cpu.SummarizeThreads(e.timeline, scheduled) },
		func() { e.gpu = gpu.Summarize(e.timeline) },
		func() { e.calls = analyze.Summarize(e.timeline) },
	)
	return e
}

func atOnce(parts ...func()) {
	var wg sync.WaitGroup
	for _, p := range parts {
		wg.Go(p)
	}
	wg.Wait()
}

func (e *evidence) diagnosis(foretell diagnose.Foretell) *diagnose.Diagnosis {
	return diagnose.New(e.timeline, e.walk, e.gpu, e.cpu, foretell)
}
