package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// minIterations is the least number of iterations that make a pattern: three can be alike by chance,
// and below five a median says little.
const minIterations = 5

// iterations finds what the program does again and again, and how long that takes: what it names itself, else
// a call that comes back with the same calls in between, else a kernel that does.
func (a *analysis) iterations() *Iteration {
	if it := a.byRanges(); it != nil {
		return it
	}
	if it := a.byCalls(); it != nil {
		return it
	}
	return a.byKernels()
}

// tiles reports whether iterations follow each other without gaps, so that a share of the time is one of each iteration:
// ranges can be of a part of the work, or of several threads at once.
func (it *Iteration) tiles() bool {
	if it == nil {
		return false
	}
	of := it.PerSec * float64(it.Mean) / 1e9
	return of > 0.9 && of < 1.1
}

// byRanges looks for names that the program gave (NVTX, scopes) to at least minIterations ranges: of several the one
// of most time, which is the outermost, for what is inside takes less.
func (a *analysis) byRanges() *Iteration {
	if a.t.Rec.Meta.GPU == nil {
		return nil
	}
	names := a.t.Rec.Meta.GPU.Ranges
	durations, sums := make([][]uint64, len(names)), make([]uint64, len(names))
	seen := make([]uint64, len(names)) // ns in which ranges of the process that uses the name were recorded
	from, to, always := make([]uint64, len(names)), make([]uint64, len(names)), make([]bool, len(names))
	for _, i := range a.t.Ranges {
		e := &a.t.Rec.Events[i]
		n := int(e.Ret) - 1
		if n < 0 || n >= len(names) || e.TS < a.t.From || e.Dur > a.t.To-min(a.t.To, e.TS) {
			continue
		}
		durations[n] = append(durations[n], e.Dur)
		sums[n] += e.Dur
		if from[n], to[n] = minTime(from[n], e.TS), max(to[n], e.End()); e.Func == event.ScopeRange {
			seen[n], always[n] = to[n]-from[n], true // scopes are recorded all the time
			continue
		}
		seen[n] = max(seen[n], a.watched(e.PID))
	}
	best := -1
	for n := range names {
		if len(durations[n]) >= minIterations && (best < 0 || sums[n] > sums[best]) {
			best = n
		}
	}
	if best < 0 {
		return nil
	}
	it := iteration(durations[best], fmt.Sprintf("ranges named %q", format.Clean(names[best])))
	it.Named, it.From, it.To, it.Always = true, from[best], to[best], always[best]
	if seen[best] > 0 {
		it.PerSec = float64(it.Count) / float64(seen[best]) * 1e9
	}
	return it
}

// minTime returns the earlier of two times, of which the first may not be set yet.
func minTime(a, b uint64) uint64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// watched returns for how many ns the agent of a process recorded: ranges come from there.
func (a *analysis) watched(pid uint32) uint64 {
	n := uint64(0)
	for i := range a.t.Seen {
		if a.t.Processes[i].PID == pid {
			n += a.t.Seen[i].Activity.Total()
		}
	}
	return n
}

// iteration summarises durations in ns, of which there is one at least.
func iteration(durations []uint64, source string) *Iteration {
	sorted := slices.Clone(durations)
	slices.Sort(sorted)
	sum := 0.0
	for _, d := range sorted {
		sum += float64(d)
	}
	n := len(sorted)
	it := &Iteration{
		Source: source, Count: uint64(n), Mean: uint64(sum / float64(n)),
		P50: sorted[(n-1)/2], P99: sorted[(n-1)*99/100], Max: sorted[n-1], Durations: durations,
	}
	if sum > 0 {
		it.PerSec = float64(n) / sum * 1e9
	}
	return it
}

// byCalls looks for a period in the calls of the thread that launches most, as far as these are recorded all the
// time: synchronizations, copies, allocations and graph launches. Launches are, as a rule, recorded in windows only.
func (a *analysis) byCalls() *Iteration {
	th := a.launcher()
	if th < 0 {
		return nil
	}
	var list []token
	functions := a.t.Rec.Meta.Functions
	kinds := make([]anchor, len(functions))
	for i := range functions {
		kinds[i] = anchorOf(&functions[i])
	}
	thread, starts := &a.t.Threads[th], a.inGroups("launch")
	launches, seen := int32(0), a.launchesSeen(thread)
	for i := thread.First; i < thread.Last && len(list) < maxTokens; i++ {
		op := &a.t.Ops[i]
		if !op.Outer() || a.t.Early(op) {
			continue
		}
		if starts[op.Func] {
			launches++
		}
		if kind := kinds[op.Func]; kind != noAnchor {
			list = append(list, token{key: uint64(op.Func) | handleOf(a, op, kind)<<16, at: op.End(), kind: kind, launches: launches, seen: seen(op.Start)})
		}
	}
	pid := a.t.Processes[thread.Process].PID
	p, ok := period(list, false)
	if (!ok || p.each > 1 || p.turn != nil) && a.starved(pid, thread.TID) { // which takes a look at all waits
		p, ok = period(list, true)
	}
	if !ok {
		return nil
	}
	fn := functions[uint16(p.key)]
	what := format.Clean(fn.Base)
	if p.each > 1 {
		what = fmt.Sprintf("%d calls of %s", p.each, what)
	}
	it := p.iteration(fmt.Sprintf("period of %s in %s", what, a.who(threadKey(pid, thread.TID))))
	it.Always = true
	return it
}

// launchesSeen returns what says in which stretch of time, counted from 1, all launches of a thread were recorded; 0:
// in none.
func (a *analysis) launchesSeen(th *timeline.Thread) func(ts uint64) int32 {
	if int(th.Process) >= len(a.t.Seen) {
		return func(uint64) int32 { return 0 }
	}
	spans := a.t.Seen[th.Process].Calls
	return func(ts uint64) int32 {
		if i := spans.At(ts); i < len(spans) && spans[i].From <= ts {
			return int32(i) + 1
		}
		return 0
	}
}

// handleOf returns what tells calls of one function apart: of graph launches the graph, of the others nothing,
// for programs make events and streams anew.
func handleOf(a *analysis, op *timeline.Op, kind anchor) uint64 {
	if kind != graphAnchor {
		return 0
	}
	return (a.t.RawEvent(op).Args[0] * 0x9e3779b97f4a7c15) >> 16
}

// launcher returns the index of the thread that made most launches of kernels and graphs, or copies where none
// launched; -1 where there is none.
func (a *analysis) launcher() int {
	functions := a.t.Rec.Meta.Functions
	weight := make([]int, len(functions))
	for i := range functions {
		switch functions[i].Group {
		case "launch", "graph":
			weight[i] = 1000
		case "copy", "sync":
			weight[i] = 1
		}
	}
	best, most := -1, 0
	for i := range a.t.Threads {
		n := 0
		for op := a.t.Threads[i].First; op < a.t.Threads[i].Last; op++ {
			n += weight[a.t.Ops[op].Func]
		}
		if n > most {
			best, most = i, n
		}
	}
	return best
}

// byKernels looks for a kernel that comes back with the same kernels in between, in the windows in which
// GPU activity was recorded, on the stream that has most.
func (a *analysis) byKernels() *Iteration {
	stream := a.busiestStream()
	if stream < 0 {
		return nil
	}
	s := &a.t.Streams[stream]
	dev := &a.t.Devices[s.Device]
	windows := a.t.Seen[s.Process].Activity
	var list []token
	for i := dev.First; i < dev.Last && len(list) < maxTokens; i++ {
		act := &a.t.Activities[i]
		if act.Stream != int32(stream) || act.Kind != timeline.Kernel {
			continue
		}
		if k := a.t.KernelIndex(act); k != timeline.None {
			list = append(list, token{key: uint64(k), at: act.Start, window: int32(windows.At(act.Start)), kind: kernelAnchor})
		}
	}
	p, ok := period(list, false)
	if !ok {
		return nil
	}
	return p.iteration(fmt.Sprintf("period of the kernel %s", format.Clean(a.kernelName(int32(p.key)))))
}

func (a *analysis) busiestStream() int {
	count := make([]int, len(a.t.Streams))
	for i := range a.t.Activities {
		if a.t.Activities[i].Kind == timeline.Kernel {
			count[a.t.Activities[i].Stream]++
		}
	}
	best := -1
	for i, n := range count {
		if n > 0 && (best < 0 || n > count[best]) {
			best = i
		}
	}
	return best
}

func (a *analysis) kernelName(i int32) string {
	return symname.Shorten(a.t.Rec.Meta.GPU.Kernels[i].Name)
}
