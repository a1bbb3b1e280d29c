package diagnose

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/record"
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
func anchorOf(f *record.Function) anchor {
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
	at     uint64 // ns
	window int32  // those of different windows have a gap between them
	kind   anchor
}

// maxTokens bounds the sequence that a period is looked for in: sorting it some hundred times must not be felt.
const maxTokens = 1 << 16

// found is a period: what comes back, and the times from one to the next.
type found struct {
	key  uint64
	gaps []uint64 // ns
	kind anchor
}

// Bounds of what counts as a period.
const (
	maxKeys = 512 // different tokens that are tried
	alike   = 0.8 // share of the stretches between two anchors that must hold the same tokens
	// even is the most by which the middle 80% of the times may spread, of their median, where nothing lies between two
	// anchors that could show a pattern; rough is the same for each single anchor, where no stride is even: a loaded host
	// makes times differ. tail is the most that the mean may be of the median, or the median of the mean: beyond, the
	// anchor is not what the program turns around, but something that it does several times in each turn.
	even  = 0.5
	rough = 1.0
	tail  = 1.5
)

// period finds the token that comes back with the same tokens in between. Of several the one with the longest
// period: it is the whole of which the others are parts.
func period(list []token) (found, bool) {
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
	var best found
	for _, k := range keys {
		f, ok := try(list, sums, places[k])
		if !ok {
			continue
		}
		if best.gaps == nil || len(f.gaps) < len(best.gaps) && !about(len(f.gaps), len(best.gaps)) ||
			about(len(f.gaps), len(best.gaps)) && f.kind < best.kind {
			best = f
		}
	}
	return best, best.gaps != nil
}

// about says whether two counts differ by no more than a beginning and an end.
func about(x, y int) bool { return x-y <= 1 && y-x <= 1 }

// prefix returns sums of the tokens' hashes, so that what lies between two places can be compared at once, whatever its order.
func prefix(list []token) []uint64 {
	sums := make([]uint64, len(list)+1)
	for i := range list {
		h := (list[i].key + 1) * 0x9e3779b97f4a7c15
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		sums[i+1] = sums[i] + (h ^ h>>32)
	}
	return sums
}

// maxStride is how many of the same anchors a turn may have.
const maxStride = 8

// try takes a token as the anchor of a period: each one, or, where the times between them differ in turn, each
// second, third, and so on.
func try(list []token, sums []uint64, at []int32) (found, bool) {
	own := sums[at[0]+1] - sums[at[0]]
	var first []uint64
	for stride := 1; stride <= maxStride; stride++ {
		gaps, hashes := between(list, sums, at, stride)
		if len(gaps) < minIterations {
			break
		}
		most, n := mode(hashes)
		if float64(n) < alike*float64(len(hashes)) {
			continue
		}
		bare := most == own*uint64(stride) // nothing but the anchor itself comes back
		if !bare || regular(gaps, even) {
			return found{key: list[at[0]].key, gaps: gaps, kind: list[at[0]].kind}, true
		}
		if stride == 1 && regular(gaps, rough) {
			first = gaps
		}
	}
	return found{key: list[at[0]].key, gaps: first, kind: list[at[0]].kind}, first != nil
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

// regular says whether times hardly differ: see even and tail.
func regular(gaps []uint64, spread float64) bool {
	sorted, sum := slices.Clone(gaps), 0.0
	slices.Sort(sorted)
	for _, g := range sorted {
		sum += float64(g)
	}
	n := len(sorted)
	low, mid, high, mean := sorted[n/10], float64(sorted[n/2]), sorted[n-1-n/10], sum/float64(n)
	return float64(high-low) <= spread*mid && mean <= tail*mid && mid <= tail*mean
}
