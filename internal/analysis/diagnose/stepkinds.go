package diagnose

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// StepKind is iterations that launch alike, where those of a program are clearly of several kinds: a decode that is one
// graph launch, and a prefill of hundreds of launches.
type StepKind struct {
	Name     string   `json:"name"` // what they launch: "1 graph launch and 12 launches", "219 launches and no graph"
	Count    uint64   `json:"count"`
	Time     uint64   `json:"ns"`
	Share    float64  `json:"share"`            // Time of that of all iterations that were told apart
	P50      uint64   `json:"p50_ns,omitempty"` // 0: there are fewer than three
	P99      uint64   `json:"p99_ns,omitempty"`
	Launches uint64   `json:"launches"`                 // kernels launched one by one, median
	Graphs   uint64   `json:"graph_launches"`           // median
	GPU      *float64 `json:"gpu_share,omitempty"`      // of their time, for which the GPU works; nil: not recorded
	Outside  bool     `json:"outside_graphs,omitempty"` // they launch no graph, while others do nearly nothing else
}

// Bounds of what counts as a kind of steps.
const (
	maxStepKinds = 4
	// leastOfKind is the least share of the time of a kind: less is of no use, and may be chance.
	leastOfKind = 0.02
	// apartBy and apartPlus are by how much more the next greater number of launches must be, so that a hole lies
	// between two kinds, not a range in which the number varies with what is asked for.
	apartBy, apartPlus = 1.5, 8
	// otherKernels is the most that two steps with other kernels have in common, of all kernels of both.
	otherKernels = 0.6
	// manyLaunches is the least number of launches of a step that falls out of graphs: a few around a graph are usual.
	manyLaunches = 30
	// maxKernelSets bounds the different sets of kernels that steps are compared with.
	maxKernelSets = 8
)

// kernelSet holds which kernels a step runs, by a hash of each: a set of hundreds in 32 bytes.
type kernelSet [4]uint64

func (s *kernelSet) add(kernel int32) {
	h := (uint64(kernel) + 1) * 0x9e3779b97f4a7c15 >> 56
	s[h/64] |= 1 << (h % 64)
}

// common returns how much of two sets is in both.
func (s *kernelSet) common(o *kernelSet) float64 {
	both, all := 0, 0
	for i := range s {
		both, all = both+bits.OnesCount64(s[i]&o[i]), all+bits.OnesCount64(s[i]|o[i])
	}
	if all == 0 {
		return 1
	}
	return float64(both) / float64(all)
}

// step is one iteration, and what is known of it.
type step struct {
	from, to         uint64
	launches, graphs int32
	busy             uint64 // ns for which a GPU worked, summed over GPUs
	kernels          kernelSet
	shape            uint64 // a hash of which kernels it runs, in which grids, whatever their order
	told, watched    bool   // its launches, its activities were recorded whole
	kind             int8   // index into Iteration.Kinds, -1: none of them
}

func (s *step) time() uint64 { return s.to - s.from }

// steps are the iterations of a process in the order of time, none of which overlaps the next.
type steps struct {
	list    []step
	process int
	gpus    int // that the process uses
	always  bool
}

// at returns the index of the kind of the iteration that holds a time, -1 where there is none.
func (s *steps) at(ts uint64) int {
	if s == nil {
		return -1
	}
	i, found := slices.BinarySearchFunc(s.list, ts, func(x step, ts uint64) int { return cmp.Compare(x.from, ts) })
	if !found {
		i--
	}
	if i < 0 || s.list[i].to <= ts {
		return -1
	}
	return int(s.list[i].kind)
}

// stepKinds tells iterations apart by what they launch, and sets Iteration.Kinds where there are clearly several kinds;
// nil where there are not.
func (a *analysis) stepKinds(it *Iteration) *steps {
	s := a.newSteps(it)
	if s == nil {
		return nil
	}
	a.countLaunches(s)
	a.countActivities(s)
	a.shapes = s.shapes()
	clusters := s.clusters()
	kinds := s.keep(clusters)
	if len(kinds) < 2 {
		return nil
	}
	s.assignRest(kinds)
	it.Kinds = a.describe(s, len(kinds))
	return s
}

// newSteps returns the iterations as steps; nil where they overlap, are too few, or their process is not known.
func (a *analysis) newSteps(it *Iteration) *steps {
	if it == nil || len(it.Starts) != len(it.Durations) || len(it.Starts) < 2*leastRepetitions || it.Turn != nil {
		return nil
	}
	s := &steps{
		process: slices.IndexFunc(a.t.Processes, func(p timeline.Process) bool { return p.PID == it.PID }),
		always:  it.Missed == 0,
	}
	if s.process < 0 || s.process >= len(a.t.Seen) {
		return nil
	}
	seen := &a.t.Seen[s.process]
	whole := seen.Activity.Without(seen.Unsure).Without(seen.Lossy)
	s.list = make([]step, len(it.Starts))
	for i, from := range it.Starts {
		s.list[i] = step{from: from, to: from + it.Durations[i], kind: -1}
	}
	slices.SortFunc(s.list, func(x, y step) int { return cmp.Compare(x.from, y.from) })
	told := 0
	for i := range s.list {
		x := &s.list[i]
		if i > 0 && s.list[i-1].to > x.from {
			return nil
		}
		x.told, x.watched = inOne(seen.Calls, x.from, x.to), inOne(whole, x.from, x.to)
		if x.told {
			told++
		}
	}
	if told < 2*leastRepetitions {
		return nil
	}
	return s
}

// inOne reports whether one of the spans holds all of a time.
func inOne(spans timeline.Spans, from, to uint64) bool {
	i := spans.At(from)
	return i < len(spans) && spans[i].From <= from && to <= spans[i].To
}

// countLaunches counts what the threads of the process launch in each step.
func (a *analysis) countLaunches(s *steps) {
	kernels, graphs := a.inGroups("launch"), make([]bool, len(a.t.Rec.Meta.Functions))
	for i := range graphs {
		graphs[i] = anchorOf(&a.t.Rec.Meta.Functions[i]) == graphAnchor
	}
	for i := range a.t.Threads {
		th := &a.t.Threads[i]
		if int(th.Process) != s.process {
			continue
		}
		for k, at := th.First, 0; k < th.Last; k++ {
			op := &a.t.Ops[k]
			if !kernels[op.Func] && !graphs[op.Func] || !op.Outer() || op.Via == timeline.Twin || a.t.Early(op) {
				continue
			}
			for at < len(s.list) && s.list[at].to <= op.Start {
				at++
			}
			switch {
			case at == len(s.list) || s.list[at].from > op.Start:
			case graphs[op.Func]:
				s.list[at].graphs++
			default:
				s.list[at].launches++
			}
		}
	}
}

// countActivities finds for how long GPUs work in each step that was watched, and what kernels they run.
func (a *analysis) countActivities(s *steps) {
	for d := range a.t.Devices {
		dev, at, end := &a.t.Devices[d], 0, uint64(0)
		if slices.Contains(dev.Users, int32(s.process)) {
			s.gpus++
		}
		for i := dev.First; i < dev.Last; i++ {
			act := &a.t.Activities[i]
			if int(a.t.Streams[act.Stream].Process) != s.process {
				continue
			}
			for at < len(s.list) && s.list[at].to <= act.Start {
				at++
			}
			if act.Kind == timeline.Kernel && at < len(s.list) && s.list[at].from <= act.Start {
				if k := a.t.KernelIndex(act); k != timeline.None {
					s.list[at].kernels.add(k)
					s.list[at].shape += shapeHash(k, a.t.Rec.Events[act.Event].Args[2])
				}
			}
			from := max(act.Start, end)
			for j := at; j < len(s.list) && s.list[j].from < act.End; j++ {
				if x := &s.list[j]; from < min(x.to, act.End) {
					x.busy += min(x.to, act.End) - max(x.from, from)
				}
			}
			end = max(end, act.End)
		}
	}
}

// shapeHash is a hash of a kernel in a grid.
func shapeHash(kernel int32, grid uint64) uint64 {
	h := (uint64(kernel)+1)*0x9e3779b97f4a7c15 ^ grid*0xc2b2ae3d27d4eb4f
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return h ^ h>>32
}

// shapes is how many different shapes the steps have that launch kernels one by one.
type shapes struct {
	steps, different int
	usual            float64 // share of the steps that have the shape of most
}

// shapes counts the shapes of steps that could be recorded as a graph.
func (s *steps) shapes() shapes {
	count := map[uint64]int{}
	out := shapes{}
	most := 0
	for i := range s.list {
		x := &s.list[i]
		if !x.told || !x.watched || x.graphs > 0 || x.launches == 0 {
			continue
		}
		out.steps++
		count[x.shape]++
		most = max(most, count[x.shape])
	}
	out.different = len(count)
	if out.steps > 0 {
		out.usual = float64(most) / float64(out.steps)
	}
	return out
}

// change reports whether most steps have another shape than most others.
func (s *shapes) change() bool { return s.steps >= minIterations && s.usual < 0.5 }

// clusters groups the steps of known launches: by the number of graphs, then of launches, then by their kernels.
func (s *steps) clusters() [][]*step {
	var told []*step
	for i := range s.list {
		if s.list[i].told {
			told = append(told, &s.list[i])
		}
	}
	var out [][]*step
	for _, same := range holes(told, func(x *step) int32 { return x.graphs }, 1) {
		for _, alike := range holes(same, func(x *step) int32 { return x.launches }, apartPlus) {
			out = append(out, byKernelSets(alike)...)
		}
	}
	return out
}

// holes parts steps where a hole lies between the numbers of some and those of the next ones.
func holes(list []*step, number func(*step) int32, plus float64) [][]*step {
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(x, y *step) int { return cmp.Compare(number(x), number(y)) })
	var out [][]*step
	first := 0
	for i := 1; i <= len(sorted); i++ {
		if i == len(sorted) || float64(number(sorted[i])) >= apartBy*float64(number(sorted[i-1]))+plus {
			out, first = append(out, sorted[first:i]), i
		}
	}
	return out
}

// byKernelSets parts steps with as many launches that run other kernels, and take another time for it.
func byKernelSets(list []*step) [][]*step {
	var leaders []kernelSet
	var sets [][]*step
	for _, x := range list {
		if !x.watched {
			return [][]*step{list} // who knows what the others ran
		}
		best, most := -1, 0.0
		for i := range leaders {
			if c := x.kernels.common(&leaders[i]); c > most {
				best, most = i, c
			}
		}
		if most < otherKernels && len(leaders) < maxKernelSets {
			best = len(leaders)
			leaders, sets = append(leaders, x.kernels), append(sets, nil)
		}
		sets[max(0, best)] = append(sets[max(0, best)], x)
	}
	slices.SortStableFunc(sets, func(x, y []*step) int { return cmp.Compare(middle(x), middle(y)) })
	out := sets[:min(1, len(sets))]
	for _, next := range sets[min(1, len(sets)):] {
		if last := len(out) - 1; float64(middle(next)) < apartBy*float64(middle(out[last])) {
			out[last] = append(out[last], next...)
			continue
		}
		out = append(out, next)
	}
	return out
}

// middle is the median of how long steps take.
func middle(list []*step) uint64 {
	times := make([]uint64, len(list))
	for i, x := range list {
		times[i] = x.time()
	}
	return quantile.Upper(times)
}

// keep returns the clusters that are kinds, those of most time first, and marks their steps.
func (s *steps) keep(clusters [][]*step) [][]*step {
	all := uint64(0)
	total := func(list []*step) uint64 {
		n := uint64(0)
		for _, x := range list {
			n += x.time()
		}
		return n
	}
	for _, c := range clusters {
		all += total(c)
	}
	kinds := slices.DeleteFunc(clusters, func(c []*step) bool {
		return len(c) < leastRepetitions || share(total(c), all) < leastOfKind
	})
	slices.SortStableFunc(kinds, func(x, y []*step) int { return cmp.Compare(total(y), total(x)) })
	kinds = kinds[:min(len(kinds), maxStepKinds)]
	for i, c := range kinds {
		for _, x := range c {
			x.kind = int8(i)
		}
	}
	return kinds
}

// assignRest assigns the steps of which only graph launches were recorded, where these alone tell the kinds apart.
func (s *steps) assignRest(kinds [][]*step) {
	low, high := make([]int32, len(kinds)), make([]int32, len(kinds))
	for i, c := range kinds {
		low[i], high[i] = c[0].graphs, c[0].graphs
		for _, x := range c {
			low[i], high[i] = min(low[i], x.graphs), max(high[i], x.graphs)
		}
		for k := range i {
			if low[i] <= high[k] && low[k] <= high[i] {
				return
			}
		}
	}
	if !s.always {
		return
	}
	for i := range s.list {
		for k := range kinds {
			if x := &s.list[i]; !x.told && low[k] <= x.graphs && x.graphs <= high[k] {
				x.kind = int8(k)
			}
		}
	}
}

// describe says what the kinds are; what belongs to none of them comes last, where it is not next to nothing.
func (a *analysis) describe(s *steps, kinds int) []StepKind {
	lists := make([][]*step, kinds+1)
	all := uint64(0)
	for i := range s.list {
		x := &s.list[i]
		k := int(x.kind)
		switch {
		case k >= 0:
		case x.told:
			k = kinds
		default:
			continue // nobody knows of what kind it is
		}
		lists[k], all = append(lists[k], x), all+x.time()
	}
	out := make([]StepKind, 0, kinds+1)
	for k, list := range lists {
		if len(list) == 0 {
			continue
		}
		one := s.kindOf(list, all)
		if k == kinds {
			if one.Share < leastOfKind {
				continue
			}
			one.Name = "other steps"
		}
		out = append(out, one)
	}
	fallOut(out[:kinds])
	tellApart(out[:kinds])
	return out
}

// kindOf summarises steps.
func (s *steps) kindOf(list []*step, all uint64) StepKind {
	times := make([]uint64, len(list))
	var launches, graphs []int32
	watched, busy := uint64(0), uint64(0)
	out := StepKind{Count: uint64(len(list))}
	for i, x := range list {
		times[i] = x.time()
		out.Time += x.time()
		if x.told {
			launches = append(launches, x.launches)
		}
		graphs = append(graphs, x.graphs)
		if x.watched {
			watched, busy = watched+x.time(), busy+x.busy
		}
	}
	slices.Sort(times)
	if n := len(times); n >= leastRepetitions {
		out.P50, out.P99 = quantile.Of(times, 50), quantile.Of(times, 99)
	}
	out.Share, out.Graphs = share(out.Time, all), uint64(quantile.Upper(graphs))
	out.Launches = uint64(quantile.Upper(launches))
	if watched > 0 && s.gpus > 0 {
		n := min(1, share(busy, watched*uint64(s.gpus)))
		out.GPU = &n
	}
	out.Name = launchPattern(out.Graphs, out.Launches)
	return out
}

// launchPattern says what a step launches.
func launchPattern(graphs, launches uint64) string {
	var parts []string
	if graphs > 0 {
		parts = append(parts, format.Plural(graphs, "graph launch", "graph launches"))
	}
	if launches > 0 {
		parts = append(parts, format.Plural(launches, "launch", "launches"))
	}
	switch {
	case len(parts) == 0:
		return "no launch"
	case graphs == 0:
		return parts[0] + " and no graph"
	}
	return strings.Join(parts, " and ")
}

// fallOut marks the kinds that launch no graph, where others are graphs.
func fallOut(kinds []StepKind) {
	graphs := slices.ContainsFunc(kinds, func(k StepKind) bool { return k.Graphs > 0 })
	for i := range kinds {
		k := &kinds[i]
		k.Outside = graphs && k.Graphs == 0 && k.Launches >= manyLaunches
	}
}

// tellApart adds to names that are alike how long the steps take: they run other kernels.
func tellApart(kinds []StepKind) {
	count := map[string]int{}
	for i := range kinds {
		count[kinds[i].Name]++
	}
	for i := range kinds {
		if k := &kinds[i]; count[k.Name] > 1 {
			k.Name += fmt.Sprintf(", %s of other kernels", format.Span(k.P50))
		}
	}
}

// fallsOut reports whether most of a group is about launches in steps that fall out of graphs.
func (a *analysis) fallsOut(d *Diagnosis, g *group) (*StepKind, bool) {
	k, idle := d.Iterations.outside()
	if k == nil || g == nil || a.byGraphs(g) {
		return nil, false
	}
	return k, 2*idle >= share(g.cost, a.total.Time)
}

// leastMore is how many times its share of the time a kind's share of a cause must be to be named.
const leastMore = 1.25

// inKind names the kind of steps that most of a group lies in, where that is more than their time makes likely.
func (a *analysis) inKind(d *Diagnosis, f *Finding, g *group) {
	if d.Iterations == nil || len(d.Iterations.Kinds) == 0 {
		return
	}
	all, best := uint64(0), 0
	for i, n := range g.kinds {
		if all += n; n > g.kinds[best] {
			best = i
		}
	}
	if 2*all < g.cost || best >= len(d.Iterations.Kinds) {
		return
	}
	k, of := &d.Iterations.Kinds[best], share(g.kinds[best], all)
	if of < 0.5 || of < leastMore*k.Share {
		return
	}
	f.Evidence = append(
		f.Evidence,
		Evidence{Text: fmt.Sprintf("%s of it lies in the steps of %s, which take %s of the time.",
			format.Percent(of), k.Name, format.Percent(k.Share))},
	)
}

// outside returns the kind of steps that falls out of graphs and leaves the GPU idle for most time, and how much of the
// time that is; nil where there is none.
func (it *Iteration) outside() (*StepKind, float64) {
	if it == nil {
		return nil, 0
	}
	var best *StepKind
	most := 0.0
	for i := range it.Kinds {
		k := &it.Kinds[i]
		if !k.Outside || k.GPU == nil {
			continue
		}
		if idle := k.Share * (1 - *k.GPU); idle > most {
			best, most = k, idle
		}
	}
	return best, most
}

// ofKinds reports whether what lies between two anchors is clearly of several kinds, by its launches and graph
// launches, and that of most time takes about as long each time.
func ofKinds(list []token, graphs, at []int32) bool {
	var told []*step
	for i := 1; i < len(at); i++ {
		x, y := &list[at[i-1]], &list[at[i]]
		if x.seen == 0 || x.seen != y.seen || x.window != y.window || y.at < x.at {
			continue
		}
		told = append(
			told,
			&step{from: x.at, to: y.at, launches: y.launches - x.launches, graphs: graphs[at[i]+1] - graphs[at[i-1]+1]},
		)
	}
	if len(told) < 2*minIterations {
		return false
	}
	var clusters [][]*step
	for _, same := range holes(told, func(x *step) int32 { return x.graphs }, 1) {
		clusters = append(clusters, holes(same, func(x *step) int32 { return x.launches }, apartPlus)...)
	}
	kinds := (&steps{}).keep(clusters)
	if len(kinds) < 2 {
		return false
	}
	times := make([]uint64, len(kinds[0]))
	for i, x := range kinds[0] {
		times[i] = x.time()
	}
	return regular(times, rough)
}
