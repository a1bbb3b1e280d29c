package diagnose

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/recording"
)

// anchor is a kind of thing that iterations may begin or end with, the best first.
type anchor uint8

const (
	syncAnchor  anchor = iota // a wait for the GPU mostly ends an iteration
	copyAnchor                // a copy from the GPU brings its result, one to the GPU its input
	graphAnchor               // a graph is often a whole iteration
	kernelAnchor
	otherAnchor // allocations and sets: part of the pattern, but no anchor
	noAnchor
)

// anchorOf says what calls of a function are for a period: those that are recorded all the time.
func anchorOf(f *recording.Function) anchor {
	switch {
	case f.Group == "sync":
		return syncAnchor
	case f.Group == "copy" && f.Timed:
		return copyAnchor
	case f.Group == "graph" && strings.HasSuffix(f.Base, "GraphLaunch"):
		return graphAnchor
	case f.Timed && (f.Group == "alloc" || f.Group == "free"):
		return otherAnchor
	}
	return noAnchor
}

// token is one thing in a sequence.
type token struct {
	key    uint64
	what   uint64 // the key without what tells graphs apart: batches of different sizes launch different ones
	at     uint64 // ns
	window int32  // those of different windows have a gap between them
	name   uint16 // index into Meta.Functions of what the program called
	kind   anchor
	within uint64 // number of the whole that it is a part of; 0: none
	// launches is how many kernels the thread had launched before; seen is one more than the number of the stretch of
	// time in which all launches were recorded, 0 where they were not.
	launches, seen int32
}

// maxTokens bounds the sequence that a period is looked for in: sorting it some hundred times must not be felt. Of
// more, sampled takes pieces from all over, and recount counts all.
const maxTokens = 1 << 16

// pieces is how many stretches of a long sequence a period is looked for in.
const pieces = 4

// sampled returns a sequence of at most maxTokens out of all, in pieces that no period reaches over.
func sampled(list []token) []token {
	if len(list) <= maxTokens {
		return list
	}
	out := make([]token, 0, maxTokens)
	const each = maxTokens / pieces
	for i := range pieces {
		from := (len(list) - each) / (pieces - 1) * i
		for _, x := range list[from : from+each] {
			x.window = x.window*pieces + int32(i)
			if x.seen != 0 {
				x.seen = x.seen*pieces + int32(i)
			}
			out = append(out, x)
		}
	}
	return out
}

// recount finds in a whole sequence what was found in pieces of it.
func (f *found) recount(list []token) {
	sums := prefix(list)
	var at []int32
	for i := range list {
		if list[i].key == f.key {
			at = append(at, int32(i))
		}
	}
	each := f.each
	if f.turned {
		at, each = pauses(list, sums, at), 1
	}
	gaps, hashes := between(list, sums, at, each)
	if len(gaps) < len(f.gaps) {
		return
	}
	most, _ := mode(hashes)
	f.gaps, f.at = gaps, every(at, each)
	f.from, f.to = extent(list, sums, at, each, most)
}

// byWaits counts by the wait that is in each of the periods, once, where that is recorded more often than what the
// period was found by: the overhead budget ends the recording of copies first.
func (f *found) byWaits(list []token) {
	if f.kind != copyAnchor || f.each != 1 || f.turned {
		return
	}
	once := map[uint64]int{}
	for i := 1; i < len(f.at); i++ {
		in := map[uint64]int{}
		for k := f.at[i-1]; k < f.at[i]; k++ {
			if list[k].kind == syncAnchor {
				in[list[k].key]++
			}
		}
		for key, n := range in {
			if n == 1 {
				once[key]++
			}
		}
	}
	best := f.key
	for key, n := range once {
		if float64(n) >= alike*float64(len(f.at)-1) && (best == f.key || key < best) {
			best = key
		}
	}
	var at []int32
	for i := range list {
		if list[i].key == best {
			at = append(at, int32(i))
		}
	}
	if len(at) <= len(f.at) {
		return
	}
	sums := prefix(list)
	gaps, hashes := between(list, sums, at, 1)
	if len(gaps) <= len(f.gaps) {
		return
	}
	most, _ := mode(hashes)
	f.key, f.kind, f.at, f.gaps = best, syncAnchor, at, gaps
	from, to := extent(list, sums, at, 1, most)
	f.from, f.to = min(f.from, from), max(f.to, to)
}

// begins sets when each of the times between anchors begins.
func (f *found) begins(list []token) {
	f.starts = make([]uint64, 0, len(f.gaps))
	for i := 1; i < len(f.at); i++ {
		if from, to := &list[f.at[i-1]], &list[f.at[i]]; from.window == to.window && to.at >= from.at {
			f.starts = append(f.starts, from.at)
		}
	}
}

// repeats finds a period in a sequence of any length.
func repeats(list []token, starved bool) (found, bool) {
	part := sampled(list)
	f, ok := period(part, starved)
	if !ok {
		return f, false
	}
	if len(part) < len(list) {
		f.recount(list)
	}
	if len(f.at) > 0 && int(f.at[len(f.at)-1]) < len(list) {
		f.byWaits(list)
		f.begins(list)
	}
	return f, true
}

// found is a period: what comes back, and the times from one to the next.
type found struct {
	key    uint64
	gaps   []uint64 // ns
	starts []uint64 // ns: when each of gaps begins
	cover  uint64   // ns of gaps that hold the same as most do
	kind   anchor
	each   int     // it is each so many of what comes back
	at     []int32 // where: places in the sequence
	// from and to are the beginning of the first and the end of the last stretch that holds the same as most do, ns.
	from, to uint64
	turn     *Turn
	turned   bool // it is the turns of what comes back
	mixed    bool // what comes back are steps of several kinds, in no order: see ofKinds
}

func (f *found) iteration(source string) *Iteration {
	it := iteration(f.gaps, source)
	it.From, it.To, it.Turn, it.Starts = f.from, f.to, f.turn, f.starts
	return it
}

// Bounds of what counts as a period.
const (
	maxKeys = 512 // different tokens that are tried
	alike   = 0.8 // share of the stretches between two anchors that must hold the same tokens
	// even is the most by which the middle 80% of the times may spread, of their median, where nothing lies between two
	// anchors that could show a pattern; rough is the same for each single anchor, where no stride is even: a loaded
	// host makes times differ. tail is the most that the mean may be of the median, or the median of the mean: beyond,
	// the anchor is not what the program turns around, but something that it does several times in each turn.
	even  = 0.5
	rough = 1.0
	tail  = 1.5
)

// leastCover is the share of the time of the period that covers most of a sequence which another one must cover to be
// taken instead of it: a start or an end full of the same calls covers less.
const leastCover = 0.8

// longestGap is how many medians of a period's times count of one of them: while a program waits for something to do,
// it does not repeat anything.
const longestGap = 10

// period finds the token that comes back with the same tokens in between. Of several that cover about as much of the
// time, it is the one with the longest period: it is the whole of which the others are parts. Of a thread that is
// starved times say less than what it does.
func period(list []token, starved bool) (found, bool) {
	sums := prefix(list)
	places := map[uint64][]int32{}
	var keys []uint64
	for i := range list {
		k := list[i].key
		if list[i].kind == otherAnchor {
			continue
		}
		if places[k] == nil {
			if len(keys) == maxKeys {
				continue
			}
			keys = append(keys, k)
		}
		places[k] = append(places[k], int32(i))
	}
	graphs := graphsBefore(list)
	var all []found
	most := uint64(0)
	for _, k := range keys {
		f, ok := try(list, sums, graphs, places[k], starved)
		if !ok || !works(list, graphs, &f) {
			continue
		}
		all, most = append(all, f), max(most, f.cover)
	}
	var best found
	for _, f := range all {
		if float64(f.cover) < leastCover*float64(most) {
			continue
		}
		if best.gaps == nil || f.holds(&best) {
			best = f
		}
	}
	switch {
	case starved:
		return best, best.gaps != nil
	case best.gaps != nil:
		best.turn = turnOf(list, sums, best.at)
		return best, true
	}
	return inTurns(list, sums, places, keys)
}

// holds reports whether f is more of a step than o, which covers about as much of the time.
func (f *found) holds(o *found) bool {
	// A step that is no graph belongs to the wait at its end, not to the next graph.
	if f.mixed && o.mixed && f.kind != o.kind {
		return f.kind < o.kind
	}
	if about(len(f.gaps), len(o.gaps)) {
		return f.kind < o.kind
	}
	return len(f.gaps) < len(o.gaps)
}

// graphsBefore returns how many graphs were launched before each place of a sequence.
func graphsBefore(list []token) []int32 {
	out := make([]int32, len(list)+1)
	for i := range list {
		out[i+1] = out[i]
		if list[i].kind == graphAnchor {
			out[i+1]++
		}
	}
	return out
}

// works reports whether a period may hold the work of a whole step: something is launched in it, as far as launches
// were recorded, and it is no part of one. What comes back fewer than minIterations times must be proven to.
func works(list []token, graphs []int32, f *found) bool {
	if f.isPart(list) {
		return false
	}
	if f.kind == kernelAnchor {
		return len(f.gaps) >= minIterations
	}
	seen, working := 0, 0
	for i := 1; i < len(f.at); i++ {
		from, to := f.at[i-1], f.at[i]
		x, y := &list[from], &list[to]
		switch {
		case x.window != y.window:
		case graphs[to+1]-graphs[from+1] > 0:
			seen, working = seen+1, working+1
		case x.seen != 0 && x.seen == y.seen:
			if seen++; y.launches > x.launches {
				working++
			}
		}
	}
	if len(f.gaps) < minIterations {
		return working > 0 && 2*working >= seen
	}
	launches := len(list) > 0 && list[len(list)-1].launches > list[0].launches
	return seen < minIterations || 2*working >= seen || !launches && graphs[len(list)] == 0
}

// about reports whether two counts differ by no more than a beginning and an end.
func about(x, y int) bool { return x-y <= 1 && y-x <= 1 }

// prefix returns sums of the tokens' hashes, so that what lies between two places can be compared at once, whatever its
// order.
func prefix(list []token) []uint64 {
	sums := make([]uint64, len(list)+1)
	for i := range list {
		h := (list[i].what + 1) * 0x9e3779b97f4a7c15
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		sums[i+1] = sums[i] + (h ^ h>>32)
	}
	return sums
}

// maxStride is how many of the same anchors a turn may have.
const maxStride = 8

// try takes a token as the anchor of a period: each one, or, where the times between them differ in turn, each
// second, third, and so on.
func try(list []token, sums []uint64, graphs, at []int32, starved bool) (found, bool) {
	own := sums[at[0]+1] - sums[at[0]]
	var best found
	steady := starved && launched(list, at, 2) == alone // as many kernels come back, which is a pattern as well
	mixed := !starved && ofKinds(list, graphs, at)
	for stride := 1; stride <= maxStride; stride++ {
		gaps, hashes := between(list, sums, at, stride)
		if len(gaps) < leastRepetitions {
			break
		}
		most, n := mode(hashes)
		if len(gaps) < minIterations && (stride > 1 || n < len(gaps) || most == own*uint64(stride)) {
			break // what comes so seldom must show a pattern
		}
		if float64(n) < alike*float64(len(hashes)) {
			continue
		}
		turn := launched(list, at, stride)
		if mixed && turn == untold {
			if stride > 1 {
				continue // a sum of steps of several kinds that come in no order is none
			}
			f := found{key: list[at[0]].key, gaps: gaps, kind: list[at[0]].kind, each: 1, at: at, mixed: true}
			f.from, f.to = extent(list, sums, at, 1, most)
			f.cover = covered(gaps, hashes, most)
			best = f
			continue
		}
		bare := most == own*uint64(stride) && !steady // nothing but the anchor itself comes back
		if stride > 1 && turn == alone && (!bare || best.gaps != nil) {
			continue // a sum of several is always more even than each: of two workers of a loader, for example, of which one is slow
		}
		f := found{key: list[at[0]].key, gaps: gaps, kind: list[at[0]].kind, each: stride, at: every(at, stride)}
		f.from, f.to = extent(list, sums, at, stride, most)
		f.cover = covered(gaps, hashes, most)
		if regular(gaps, even) || turn == unlike && regular(gaps, rough) {
			return f, true
		}
		if stride > 1 {
			continue
		}
		if smooth := regular(gaps, rough); smooth && !bare {
			return f, true
		} else if smooth || !bare { // unless times differ in turn: several copies with a wait each are no iteration each
			best = f
		}
	}
	return best, best.gaps != nil
}

// covered returns for how long stretches hold what most do, ns.
func covered(gaps, hashes []uint64, most uint64) uint64 {
	longest, sum := longestGap*quantile.Upper(slices.Clone(gaps)), uint64(0)
	for i, g := range gaps {
		if hashes[i] == most {
			sum += min(g, longest)
		}
	}
	return sum
}

// every returns each so many of a list.
func every(at []int32, stride int) []int32 {
	if stride == 1 {
		return at
	}
	var out []int32
	for i := 0; i < len(at); i += stride {
		out = append(out, at[i])
	}
	return out
}

// turn is what the launches between anchors say of a stride.
type turn uint8

const (
	untold turn = iota // nothing: they were not recorded, or there are none
	alone              // as many lie between any two: times that differ in turn are those of whom the program waits for in turn
	unlike             // their number differs, in turn: what lies between two anchors is a part of an iteration
)

// launched compares how many kernels are launched between neighbouring anchors.
func launched(list []token, at []int32, stride int) turn {
	counts, n := make([]map[int32]int, stride), make([]int, stride)
	for i := range counts {
		counts[i] = map[int32]int{}
	}
	for i := 1; i < len(at); i++ {
		if from, to := &list[at[i-1]], &list[at[i]]; from.seen != 0 && from.seen == to.seen {
			counts[i%stride][to.launches-from.launches]++
			n[i%stride]++
		}
	}
	out, first := alone, int32(0)
	for i, c := range counts {
		usual, times := int32(0), 0
		for launches, k := range c {
			if k > times || k == times && launches > usual {
				usual, times = launches, k
			}
		}
		if n[i] < minIterations || float64(times) < alike*float64(n[i]) {
			return untold
		}
		if i == 0 {
			first = usual
		}
		if usual != first {
			out = unlike
		}
	}
	if out == alone && first == 0 {
		return untold
	}
	return out
}

// extent returns the beginning of the first and the end of the last stretch between anchors that holds what most hold.
func extent(list []token, sums []uint64, at []int32, stride int, most uint64) (from, to uint64) {
	for i := stride; i < len(at); i += stride {
		if sums[at[i]]-sums[at[i-stride]] != most {
			continue
		}
		if from == 0 {
			from = list[at[i-stride]].at
		}
		to = list[at[i]].at
	}
	return from, to
}

// between returns the times from each anchor to the next but stride, and a hash of what lies between.
func between(list []token, sums []uint64, at []int32, stride int) (gaps, hashes []uint64) {
	for i := stride; i < len(at); i += stride {
		from, to := at[i-stride], at[i]
		if list[from].window == list[to].window && list[to].at >= list[from].at {
			gaps = append(gaps, list[to].at-list[from].at)
			hashes = append(hashes, sums[to]-sums[from])
		}
	}
	return gaps, hashes
}

// mode returns the number that comes most often, and how often.
func mode(list []uint64) (value uint64, n int) {
	sorted := slices.Clone(list)
	slices.Sort(sorted)
	run := 0
	for i := range sorted {
		if i > 0 && sorted[i] == sorted[i-1] {
			run++
		} else {
			run = 1
		}
		if run > n {
			value, n = sorted[i], run
		}
	}
	return value, n
}

// regular reports whether times hardly differ: see even and tail.
func regular(gaps []uint64, spread float64) bool {
	sorted, sum := slices.Clone(gaps), 0.0
	slices.Sort(sorted)
	for _, g := range sorted {
		sum += float64(g)
	}
	n := len(sorted)
	low, mid, high, mean := sorted[n/10], float64(quantile.Upper(sorted)), sorted[n-1-n/10], sum/float64(n)
	return float64(high-low) <= spread*mid && mean <= tail*mid && mid <= tail*mean
}
