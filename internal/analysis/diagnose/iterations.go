package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// minIterations is the least number of iterations that make a pattern of equal times: three can be alike by chance,
// and below five a median says little.
const minIterations = 5

// leastRepetitions is the least number of iterations where more than their times is alike: the program named them, or
// they launch work and make the same calls. Fewer say nothing about a latency.
const leastRepetitions = 3

// iterations finds what the program does again and again, and how long that takes: the steps that an inference engine
// tells, what the program names itself, else a call that comes back with the same calls in between, else a kernel that
// does. Few says what came too seldom.
func (a *analysis) iterations() (it *Iteration, few string) {
	if it = a.bySteps(); it != nil {
		return it, ""
	}
	if it, few = a.byRanges(); it != nil {
		return it, ""
	}
	if it = a.byOptimizer(); it == nil {
		it = a.byCalls()
	}
	if it == nil {
		it = a.byKernels()
	}
	if it != nil {
		few = ""
	}
	return it, few
}

// follow is by how much the iterations' time may differ from the time that passed, so that they count as following each
// other without a break.
const follow = 0.1

// Tiles reports whether iterations follow each other without gaps for all of the time, so that a share of the time is
// one of each iteration: ranges can be of a part of the work, or of several threads at once, and a server can have been
// asked for something in a part of the time only. What other processes do is no part of an iteration.
func (it *Iteration) Tiles() bool {
	if it == nil || it.Count == 0 {
		return false
	}
	of := it.PerSec * float64(it.Mean) / 1e9
	return of > 1-follow && of < 1+follow && !it.Partial() && it.Foreign <= follow
}

// Partial reports whether nothing repeats in a considerable part of the time.
func (it *Iteration) Partial() bool { return it.Outside > follow }

// foreign returns Iteration.Foreign.
func (a *analysis) foreign(it *Iteration) float64 {
	own := func(s timeline.Stream) bool { return a.t.Processes[s.Process].PID == it.PID }
	if it.PID == 0 || !slices.ContainsFunc(a.t.Streams, func(s timeline.Stream) bool { return !own(s) }) ||
		slices.Contains(a.t.Communicates(), true) || len(a.t.Exchanges) > 0 {
		return 0
	}
	var all, others uint64
	for i := range a.t.Activities {
		x := &a.t.Activities[i]
		all += x.End - x.Start
		if !own(a.t.Streams[x.Stream]) {
			others += x.End - x.Start
		}
	}
	return share(others, all)
}

// namedRanges holds the ranges of one name.
type namedRanges struct {
	name              string
	starts, durations []uint64
	tids              []uint32
	sum               uint64
	seen              uint64 // ns in which ranges of the process that uses the name were recorded
	from, to          uint64
	pid               uint32
	always            bool
	amounts           map[string]sum // what its scopes say that they work on, by attribute
}

// byRanges looks for names that the program gave (NVTX, scopes) to at least leastRepetitions ranges that hold the work
// of a step: of several the one of most time, which is the outermost, for what is inside takes less.
func (a *analysis) byRanges() (*Iteration, string) {
	if a.t.Rec.Meta.GPU == nil {
		return nil, ""
	}
	list := a.ranges()
	slices.SortStableFunc(list, func(x, y *namedRanges) int { return cmp.Compare(y.sum, x.sum) })
	few := ""
	for _, r := range list {
		if isPart(r.name) || !a.holdsStep(r) || a.inOne(r) {
			continue
		}
		if len(r.durations) < leastRepetitions {
			if few == "" && (len(r.durations) > 1 || r.name == profilerStep) {
				few = fmt.Sprintf(
					"%s named %q, and %d are needed for a latency",
					format.Plural(
						uint64(len(r.durations)),
						"range was",
						"ranges were",
					),
					format.Clean(r.name),
					leastRepetitions,
				)
			}
			continue
		}
		it := iteration(r.durations, fmt.Sprintf("ranges named %q", format.Clean(r.name)))
		it.Named, it.From, it.To, it.Always, it.Starts, it.PID = true, r.from, r.to, r.always, r.starts, r.pid
		it.Amounts = r.amountsOf()
		if r.seen > 0 {
			it.PerSec = float64(it.Count) / float64(r.seen) * 1e9
		}
		return it, ""
	}
	return nil, few
}

// byOptimizer takes for iterations what passes from one step of PyTorch's optimizer to the next. Its range is a part of
// the step, and there is one in each.
func (a *analysis) byOptimizer() *Iteration {
	if a.t.Rec.Meta.GPU == nil {
		return nil
	}
	var best *namedRanges
	for _, r := range a.ranges() {
		if strings.HasPrefix(r.name, "Optimizer.step") && len(r.starts) > leastRepetitions && !a.inOne(r) &&
			(best == nil || len(r.starts) > len(best.starts)) {
			best = r
		}
	}
	if best == nil {
		return nil
	}
	starts := slices.Sorted(slices.Values(best.starts))
	durations := make([]uint64, len(starts)-1)
	for i := range durations {
		durations[i] = starts[i+1] - starts[i]
	}
	it := iteration(durations, fmt.Sprintf("from one range named %q to the next", format.Clean(best.name)))
	it.From, it.To, it.PID, it.Starts = starts[0], starts[len(starts)-1], best.pid, starts[:len(starts)-1]
	return it
}

// ranges returns the ranges within the window, by name.
func (a *analysis) ranges() []*namedRanges {
	names := a.t.Rec.Meta.GPU.Ranges
	all := make([]namedRanges, len(names))
	read := map[uint64]map[string]float64{}
	var used []*namedRanges
	for _, i := range a.t.Ranges {
		e := &a.t.Rec.Events[i]
		n := int(e.Ret) - 1
		if n < 0 || n >= len(names) || e.TS < a.t.From || e.Dur > a.t.To-min(a.t.To, e.TS) {
			continue
		}
		r := &all[n]
		if len(r.durations) == 0 {
			r.name, r.pid = names[n], e.PID
			used = append(used, r)
		}
		r.durations, r.starts, r.tids = append(r.durations, e.Dur), append(r.starts, e.TS), append(r.tids, e.TID)
		r.sum += e.Dur
		r.count(e, a.t.Rec.Meta.GPU.Attributes, read)
		if r.from, r.to = minTime(r.from, e.TS), max(r.to, e.End()); e.Func == event.ScopeRange {
			r.seen, r.always = r.to-r.from, true // scopes are recorded all the time
			continue
		}
		r.seen = max(r.seen, a.watched(e.PID))
	}
	return used
}

// isPart reports whether frameworks give a name to what is a part of a step, however much work it holds: communication,
// the loader of data, the parts of an optimizer.
func isPart(name string) bool {
	for _, p := range []string{"gloo:", "mpi:", "nccl:", "ncclGroup", "nccl", "rccl", "c10d::", "Optimizer.zero_grad", "Optimizer.step", "enumerate(DataLoader)", "DataLoader"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return strings.Contains(name, "DataLoader") && strings.Contains(name, "__next__")
}

// mostLaunches is the share of the launches, from the first range of a name to the last, that lie in the ranges where
// these are the steps: a range within a step holds less.
const mostLaunches = 2.0 / 3

// holdsStep reports whether ranges hold most of what their process launches from the first to the last of them, as far
// as launches were recorded. In a trace of another tool, those from whose first to last nothing is launched hold none.
func (a *analysis) holdsStep(r *namedRanges) bool {
	spans := r.spans()
	starts := a.inGroups("launch", "graph")
	inside, all, outside := 0, 0, 0
	for i := range a.t.Threads {
		th := &a.t.Threads[i]
		if a.t.Processes[th.Process].PID != r.pid {
			continue
		}
		for k, at := th.First, 0; k < th.Last; k++ {
			op := &a.t.Ops[k]
			if !op.Outer() || !starts[op.Func] {
				continue
			}
			if op.Start < r.from || op.Start >= r.to {
				outside++
				continue
			}
			all++
			for at < len(spans) && spans[at].To <= op.Start {
				at++
			}
			if at < len(spans) && spans[at].From <= op.Start {
				inside++
			}
		}
	}
	if all == 0 && outside > 0 && a.imported() {
		return false
	}
	return float64(inside) >= mostLaunches*float64(all)
}

// inOne reports whether most ranges lie together with another one in one whole, of which they are parts.
func (a *analysis) inOne(r *namedRanges) bool {
	w := a.wholesOf(r.pid)
	in := map[uint64]int{}
	for i := range r.starts {
		if whole := w.at(r.pid, r.tids[i], r.starts[i]); r.name != profilerStep && whole != 0 {
			in[whole]++
		}
	}
	parts := 0
	for _, n := range in {
		if n > 1 {
			parts += n
		}
	}
	return 2*parts > len(r.starts)
}

// spans returns the union of the ranges.
func (r *namedRanges) spans() timeline.Spans {
	out := make(timeline.Spans, len(r.starts))
	for i := range r.starts {
		out[i] = timeline.Span{From: r.starts[i], To: r.starts[i] + r.durations[i]}
	}
	return merged(out)
}

// merged returns the union of spans in order of time.
func merged(spans timeline.Spans) timeline.Spans {
	slices.SortFunc(spans, func(x, y timeline.Span) int { return cmp.Compare(x.From, y.From) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, s.To)
			continue
		}
		out = append(out, s)
	}
	return out
}

// minTime returns the earlier of two times; the first may be unset.
func minTime(a, b uint64) uint64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// watched returns for how many ns the agent of a process recorded, because ranges come from it.
func (a *analysis) watched(pid uint32) uint64 {
	n := uint64(0)
	for i := range a.t.Seen {
		if a.t.Processes[i].PID == pid {
			n += a.t.Seen[i].Activity.Total()
		}
	}
	return n
}

// iteration summarizes one or more durations in ns.
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
		P50: quantile.Of(sorted, 50), P99: quantile.Of(sorted, 99), Max: sorted[n-1], Durations: durations,
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
	thread := &a.t.Threads[th]
	list := a.tokens(thread)
	p, ok := a.inCalls(thread, list)
	if !ok { // steps with a graph and steps without make different calls, and copies may be recorded for some of the time
		for _, below := range []anchor{graphAnchor, copyAnchor} {
			if p, ok = a.inCalls(thread, upTo(list, below)); ok {
				list = upTo(list, below)
				break
			}
		}
	}
	if !ok {
		return nil
	}
	pid := a.t.Processes[thread.Process].PID
	what := format.Clean(a.t.Rec.Meta.Functions[nameOf(list, p.key)].Base)
	if p.each > 1 {
		what = fmt.Sprintf("%d calls of %s", p.each, what)
	}
	it := p.iteration(fmt.Sprintf("period of %s in %s", what, a.who(threadKey(pid, thread.TID))))
	it.Always, it.PID, it.Missed = true, pid, a.callsMissed()
	return it
}

// callsMissed is for what share of the recording calls were not recorded that it knows all the time otherwise.
func (a *analysis) callsMissed() float64 {
	o := a.t.Rec.Meta.Overhead
	if o == nil {
		return 0
	}
	out := 0.0
	for i := range o.Sources {
		if o.Sources[i].Name != recording.CallsSource {
			continue
		}
		for _, l := range o.Sources[i].Shares {
			if l.Level == recording.LevelOff {
				out += l.Share
			}
		}
	}
	return min(1, out)
}

// inCalls finds a period in a thread's calls. Of a starved thread the waits are looked at, which takes longer.
func (a *analysis) inCalls(thread *timeline.Thread, list []token) (found, bool) {
	p, ok := repeats(list, false)
	if (!ok || p.each > 1 || p.turn != nil) && a.starved(a.t.Processes[thread.Process].PID, thread.TID) {
		return repeats(list, true)
	}
	return p, ok
}

// tokens returns what a thread called of what is recorded all the time. A call of the runtime is known by the one of
// the driver that it makes: either may be probed later, or for a shorter time, than the other.
func (a *analysis) tokens(thread *timeline.Thread) []token {
	var list []token
	functions := a.t.Rec.Meta.Functions
	kinds, ids := make([]anchor, len(functions)), make([]uint64, len(functions))
	byName := map[string]uint64{}
	for i := range functions {
		kinds[i] = anchorOf(&functions[i])
		if _, ok := byName[functions[i].Base]; !ok {
			byName[functions[i].Base] = uint64(i)
		}
		ids[i] = byName[functions[i].Base]
	}
	probed := make([]bool, len(functions)) // by id
	for i := thread.First; i < thread.Last; i++ {
		if op := &a.t.Ops[i]; op.Via == timeline.Probe {
			probed[ids[op.Func]] = true
		}
	}
	starts := a.inGroups("launch")
	launches, seen := int32(0), a.launchesSeen(thread)
	last, part := int32(-1), stretches{}
	pid := a.t.Processes[thread.Process].PID
	whole := a.wholesOf(pid)
	for i := thread.First; i < thread.Last; i++ {
		op := &a.t.Ops[i]
		if op.Via == timeline.Twin || a.t.Early(op) {
			continue
		}
		if op.Outer() && starts[op.Func] {
			launches++
		}
		kind := kinds[op.Func]
		if kind == noAnchor {
			continue
		}
		key := ids[op.Func] | handleOf(a, op, kind)<<16
		outer := a.t.Outermost(i)
		if outer == last {
			if x := &list[len(list)-1]; x.kind == kind {
				x.key, x.what = key, ids[op.Func]
			}
			continue
		}
		in, out := seen(op.Start), &a.t.Ops[outer]
		list = append(list, token{
			key: key, what: ids[op.Func], at: out.End(), kind: kind, name: out.Func, launches: launches, seen: in,
			within: whole.at(pid, thread.TID, out.Start),
			window: part.of(probed[ids[op.Func]], op.Via == timeline.Agent, in),
		})
		last = outer
	}
	return list
}

// stretches numbers the stretches of time in which calls were seen in the same way: before and after those that only
// the agent saw, in a window, though probes see such calls at other times, nobody knows what was called.
type stretches struct {
	n, in int32
	agent bool
}

func (s *stretches) of(probed, agent bool, in int32) int32 {
	if !probed {
		return s.n
	}
	if agent != s.agent || agent && in != s.in {
		s.n++
	}
	s.agent, s.in = agent, in
	return s.n
}

// upTo leaves the waits of a sequence, and the copies unless these are below what is asked for; nil where that is all.
func upTo(list []token, below anchor) []token {
	var out []token
	others := false
	for i := range list {
		switch kind := list[i].kind; {
		case kind < below:
			out = append(out, list[i])
		case kind <= graphAnchor:
			others = true
		}
	}
	if !others {
		return nil
	}
	return out
}

// nameOf returns the most frequent function of a key: an index into Meta.Functions.
func nameOf(list []token, key uint64) uint16 {
	count := map[uint16]int{}
	best := uint16(0)
	for i := range list {
		if x := &list[i]; x.key == key {
			if count[x.name]++; count[x.name] > count[best] {
				best = x.name
			}
		}
	}
	return best
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
	whole := a.wholesOf(a.t.Processes[s.Process].PID)
	var list []token
	took := map[uint64][]uint64{} // ns, by key
	for i := dev.First; i < dev.Last; i++ {
		act := &a.t.Activities[i]
		if act.Stream != int32(stream) || act.Kind != timeline.Kernel {
			continue
		}
		if k := a.t.KernelIndex(act); k != timeline.None {
			took[uint64(k)] = append(took[uint64(k)], act.End-act.Start)
			list = append(
				list,
				token{
					key:    uint64(k),
					what:   uint64(k),
					at:     act.Start,
					window: int32(windows.At(act.Start)),
					kind:   kernelAnchor,
					within: a.launchedIn(whole, act),
				},
			)
		}
	}
	p, ok := repeats(list, false)
	if ok && p.inRow(took[p.key]) {
		p, ok = turns(list, &p)
	}
	if !ok {
		return nil
	}
	it := p.iteration(fmt.Sprintf("period of the kernel %s", format.Clean(a.kernelName(int32(p.key)))))
	it.PID = a.t.Processes[s.Process].PID
	if !a.isMost(it, list) {
		return nil
	}
	return it
}

// launchedIn returns the number of the whole in which work of a GPU was launched. All kernels of a graph are parts of
// its launch.
func (a *analysis) launchedIn(w *wholes, act *timeline.Activity) uint64 {
	if act.Op == timeline.None {
		return 0
	}
	call := a.t.RawEvent(&a.t.Ops[act.Op])
	if n := w.at(call.PID, call.TID, call.TS); n != 0 {
		return n
	}
	return inLaunch + uint64(act.Op)
}

// inRow reports whether a kernel mostly begins when the one before it, which is the same, has ended: a kernel of a row
// is no step of a program.
func (f *found) inRow(took []uint64) bool {
	const delay = 4 * 1200 // ns between kernels of a stream, at most: usually about 1.2 µs (H200)
	return !f.turned && f.each == 1 && len(took) > 0 &&
		quantile.Upper(slices.Clone(f.gaps)) <= quantile.Upper(took)+delay
}

// uneven is how many times their median iterations take on average at most where a kernel stands for them. One pause
// among five steps makes less of it; what happens a few times in a row, and then not for long, is part of something
// longer.
const uneven = 5

// isMost reports whether the period of a kernel is that of most work of its stream, and not of something within a step.
func (a *analysis) isMost(it *Iteration, kernels []token) bool {
	inside := 0
	for i := range kernels {
		if it.From <= kernels[i].at && kernels[i].at <= it.To {
			inside++
		}
	}
	return 2*inside >= len(kernels) && it.Mean <= uneven*it.P50
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
