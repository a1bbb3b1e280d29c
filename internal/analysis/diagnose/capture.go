package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// stepCalls is what the thread that launches calls in each iteration that cannot be recorded in a CUDA graph: CUDA C++
// Programming Guide, "Prohibited and Unhandled Operations" of stream capture. Allocations count between two launches
// without a wait.
type stepCalls struct {
	allocations, syncs, copies     float64 // for each iteration
	between                        float64 // allocations for each iteration that are in nobody's way
	allocates, synchronizes, sends string  // the function most often called of each kind
	launchesEach                   float64 // for each wait for the GPU, of all that was recorded; 0: none was
}

// How many calls of a kind in each iteration are in the way of a graph. One synchronization can be at the end of a
// step, and one copy each at its beginning and its end.
const (
	leastAllocations = 0.5
	leastSyncs       = 1.5
	leastCopies      = 2.5
)

// fewLaunches is up to how many launches lie between two waits where these split the work of a step: each wait drains
// the queue, so that the launches after it are exposed, and a graph could hold no more than they are.
const fewLaunches = 8

// inSteps counts these calls. Without iterations there is no result.
func (a *analysis) inSteps(it *Iteration) stepCalls {
	th := a.launcher()
	if th < 0 {
		return stepCalls{}
	}
	s := stepCalls{launchesEach: a.launchesEach(&a.t.Threads[th])}
	if it == nil || it.Count == 0 {
		return s
	}
	functions := a.t.Rec.Meta.Functions
	counts := make([]uint64, len(functions))
	pageable := a.pageable()
	for i := a.t.Threads[th].First; i < a.t.Threads[th].Last; i++ {
		op := &a.t.Ops[i]
		if !op.Outer() || op.Start < it.From || op.End() > it.To {
			continue
		}
		if f := &functions[op.Func]; f.Group != "copy" || pageable[i] || !strings.Contains(f.Base, "Async") {
			counts[op.Func]++
		}
	}
	within := a.allocatesWithin(&a.t.Threads[th], it)
	most := map[string]uint64{}
	for i, n := range counts {
		each := float64(n) / float64(it.Count)
		kind, name := functions[i].Group, functions[i].Base
		take := func(sum *float64, top *string) {
			if *sum += each; n > most[kind] {
				*top, most[kind] = format.Clean(name), n
			}
		}
		switch kind {
		case "alloc", "free":
			kind = "alloc"
			if !strings.Contains(name, "Async") && !strings.Contains(name, "FromPool") {
				s.between += (1 - within) * each
				each *= within
				take(&s.allocations, &s.allocates)
			}
		case "sync":
			take(&s.syncs, &s.synchronizes)
		case "copy":
			take(&s.copies, &s.sends)
		}
	}
	return s
}

// allocatesWithin returns the share of a thread's allocations that lie between two launches without a wait, of those
// that were made while launches were recorded: between steps they are in nobody's way.
func (a *analysis) allocatesWithin(th *timeline.Thread, it *Iteration) float64 {
	var seen timeline.Spans
	if int(th.Process) < len(a.t.Seen) {
		seen = a.t.Seen[th.Process].Calls
	}
	all, within, pending, launched := 0, 0, 0, false
	for i := th.First; i < th.Last; i++ {
		op := &a.t.Ops[i]
		switch {
		case !op.Outer() || op.Start < it.From || op.End() > it.To:
			continue
		case len(seen) > 0 && !seen.Holds(op.Start):
			launched, pending = false, 0
			continue
		}
		switch a.t.Rec.Meta.Functions[op.Func].Group {
		case "alloc", "free":
			if all++; launched {
				pending++
			}
		case "sync":
			launched, pending = false, 0
		case "launch":
			within += pending
			launched, pending = true, 0
		}
	}
	if all == 0 {
		return 1
	}
	return float64(within) / float64(all)
}

// launchesEach is how many kernels a thread launches for each time that it waits for the GPU: one is what a step has
// that is no more than a kernel, and nothing is split.
func (a *analysis) launchesEach(th *timeline.Thread) float64 {
	starts := a.inGroups("launch")
	launches, waits := 0, 0
	for i := th.First; i < th.Last; i++ {
		if op := &a.t.Ops[i]; op.Outer() && starts[op.Func] {
			launches++
		}
	}
	for i := range a.t.Syncs {
		if s := &a.t.Syncs[i]; s.Op >= th.First && s.Op < th.Last {
			waits++
		}
	}
	if waits == 0 || launches <= waits {
		return 0
	}
	return float64(launches) / float64(waits)
}

// pageable returns the calls that copied from or to pageable memory, by outermost op.
func (a *analysis) pageable() map[int32]bool {
	out := map[int32]bool{}
	for _, i := range a.t.Copies {
		act := &a.t.Activities[i]
		if e := &a.t.Rec.Events[act.Event]; act.Op != timeline.None &&
			(uint8(e.Ret>>8) == 1 || uint8(e.Ret>>16) == 1) { // CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE
			out[a.t.Outermost(act.Op)] = true
		}
	}
	return out
}

// preventsGraph reports whether what a finding is about is called within a step, so that the step cannot be recorded as
// a graph before it is gone.
func (a *analysis) preventsGraph(id cause.ID) bool {
	switch s := &a.inStep; id {
	case cause.Allocation:
		return s.allocations >= leastAllocations
	case cause.HostSync:
		return s.syncs >= leastSyncs || s.launchesEach > 0 && s.launchesEach <= fewLaunches
	case cause.SyncCopy:
		return s.copies >= leastCopies
	}
	return false
}

// text describes what in a step cannot be in a graph; "" if nothing is known.
func (s *stepCalls) text() string {
	var parts []string
	add := func(n, least float64, name string) {
		if n >= least && name != "" {
			parts = append(
				parts,
				fmt.Sprintf("%s (%s in each iteration)", name, strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0")),
			)
		}
	}
	add(s.allocations, leastAllocations, s.allocates)
	add(s.syncs, leastSyncs, s.synchronizes)
	add(s.copies, leastCopies, s.sends)
	return strings.Join(parts, ", ")
}

// byGraphs reports whether a group is about launching graphs, so that there is no step to capture.
func (a *analysis) byGraphs(g *group) bool {
	graphs := uint64(0)
	for _, e := range g.calls.sorted() {
		if a.t.Rec.Meta.Functions[e.key].Group == "graph" {
			graphs += e.time
		}
	}
	return g.calls.all > 0 && 2*graphs > g.calls.all
}

// launching are what to change about launches, with what must be known about graphs: nothing is said of recording one
// where the step is one, and what is in the way comes first.
func (a *analysis) launching(d *Diagnosis, list []cause.Change, graphs bool) []cause.Change {
	if k, ok := a.fallsOut(d, a.groups[cause.LaunchOverhead]); ok && !graphs {
		text := fmt.Sprintf("Let the steps of %s run as graphs, too: record graphs for their sizes, "+
			"or pad them to a size that is recorded", k.Name)
		return append([]cause.Change{{Where: "serving", Text: text, Example: captureSizes}}, list...)
	}
	if graphs {
		return besideGraphs(list, "The step is a CUDA graph already: launch the next graph before the last one has "+
			"ended, and put what is done between two of them (choosing tokens, copying inputs and results) into the "+
			"graph, or into another thread")
	}
	if text := a.mostlyGraphs(); text != "" {
		return besideGraphs(list, text)
	}
	if c, ok := a.eagerEngine(); ok {
		return append([]cause.Change{c}, list...)
	}
	if s := &a.inStep; s.between >= leastAllocations {
		text := fmt.Sprintf("Let a step that is recorded as a graph use buffers that are allocated once: a graph "+
			"keeps addresses, and what is allocated between steps (%s) can have another one each time", s.allocates)
		list = slices.Insert(list, min(1, len(list)), cause.Change{Where: cause.Code, Text: text})
	}
	if way := a.inStep.text(); way != "" || a.shapes.change() {
		if a.shapes.change() {
			text := fmt.Sprintf("Make the shapes of the step alike before it is recorded: %d steps have %d different "+
				"shapes; pad the input to a few sizes, each with a graph, and keep caches at their full size",
				a.shapes.steps, a.shapes.different)
			list = append([]cause.Change{{Where: cause.Code, Text: text}}, list...)
		}
		if way == "" {
			return list
		}
		first := cause.Change{
			Where: cause.Code,
			Text:  "First take out of the step what a CUDA graph cannot hold: " + way + "; then record it",
		}
		return append([]cause.Change{first}, list...)
	}
	return list
}

// besideGraphs puts a change first, and leaves out those that say to use graphs.
func besideGraphs(list []cause.Change, text string) []cause.Change {
	out := []cause.Change{{Where: cause.Code, Text: text}}
	for _, c := range list {
		if !strings.Contains(strings.ToLower(c.Text), "graph") {
			out = append(out, c)
		}
	}
	return out
}

// leastOfGraphs is from which share of kernels on that come out of graphs a step is one already, with launches beside.
const leastOfGraphs = 0.5

// mostlyGraphs says what to do about launches beside graphs where most of a step is one; "" elsewhere.
func (a *analysis) mostlyGraphs() string {
	if a.gpu == nil || a.gpu.Graphs.Launches == 0 || a.gpu.Graphs.Share < leastOfGraphs {
		return ""
	}
	return fmt.Sprintf("Most of a step is a CUDA graph already (%s of the kernels): take what is launched beside it "+
		"(%.0f launches for each graph) into the graph, fuse it, or launch it while the graph runs",
		format.Percent(a.gpu.Graphs.Share), float64(a.gpu.Launches.Kernels)/float64(a.gpu.Graphs.Launches))
}

// eagerEngine is what to change about an inference engine that launches kernel by kernel, although it can record its
// steps: vLLM (0.24 to 0.33) and SGLang (0.5.23) are told not to by one flag.
func (a *analysis) eagerEngine() (cause.Change, bool) {
	for i := range a.t.Ops {
		if a.t.Rec.Meta.Functions[a.t.Ops[i].Func].Group == "graph" {
			return cause.Change{}, false
		}
	}
	for _, e := range []struct{ runs, name, start, eager string }{
		{"/vllm/v1/worker/gpu_model_runner.py", "vLLM", "vllm serve MODEL", "--enforce-eager"},
		{"/vllm/v1/worker/gpu/model_runner.py", "vLLM", "vllm serve MODEL", "--enforce-eager"},
		{"/sglang/srt/model_executor/model_runner.py", "SGLang", "python -m sglang.launch_server --model-path MODEL", "--disable-cuda-graph"},
	} {
		for i := range a.t.Rec.Meta.Frames {
			if strings.HasSuffix(a.t.Rec.Meta.Frames[i].File, e.runs) {
				return cause.Change{
					Where: "serving",
					Text: fmt.Sprintf(
						"Let %s record its steps as CUDA graphs: it launches kernel by kernel, as it is told to by %s",
						e.name,
						e.eager,
					),
					Example: e.start + "  # without " + e.eager,
				}, true
			}
		}
	}
	return cause.Change{}, false
}

// captureSizes names the options of vLLM (0.33) and SGLang (0.5.23) for the captured batch sizes.
const captureSizes = "vllm serve MODEL --max-cudagraph-capture-size 2048\n" +
	"python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs-prefill 2048"
