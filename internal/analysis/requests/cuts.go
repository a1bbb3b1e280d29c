package requests

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Sizes of copies of sampled tokens, and the kind of copies to the host.
const (
	deviceToHost = 2   // CUpti_ActivityMemcpyKind
	leastSampled = 4   // bytes for each request of a step: one token of 32 bits
	mostSampled  = 64  // likewise, of the largest batch: speculative decoding makes several
	maxAhead     = 8   // times in a row that a step is launched before the last request's end is told
	leastCut     = 0.5 // of the steps in which GPUs were recorded have such a copy, or it is of something else
)

// copyStream is one stream of one process.
type copyStream struct{ pid, stream uint32 }

// tokenCopies are the copies to the host on one stream that may be of sampled tokens, in order.
type tokenCopies struct{ end, bytes []uint64 }

// tokenCopiesOf returns them by stream.
func tokenCopiesOf(rec *recording.Recording) map[copyStream]*tokenCopies {
	out := map[copyStream]*tokenCopies{}
	most := uint64(0)
	for i := range rec.Meta.Steps {
		most = max(most, uint64(rec.Meta.Steps[i].Requests))
	}
	for i := range rec.Events {
		e := &rec.Events[i]
		if most == 0 || e.Kind != event.Copy || e.Ret&0xff != deviceToHost ||
			e.Args[2] < leastSampled || e.Args[2] > mostSampled*most {
			continue
		}
		of := copyStream{e.PID, e.TID}
		if out[of] == nil {
			out[of] = &tokenCopies{}
		}
		out[of].end, out[of].bytes = append(out[of].end, e.End()), append(out[of].bytes, e.Args[2])
	}
	return out
}

// cut sets where steps end on the GPU: at a copy of a few bytes for each request that was over before the engine's
// message. Engines launch the next step before that message, so its time belongs to no one step. Of an engine that uses
// no GPU itself, another process does, which is no engine. The stream that copies at most steps tells.
func (run *stepRun) cut(pid uint32, engines map[uint32]bool, copies map[copyStream]*tokenCopies, gpu *work) {
	recorded := make([]bool, len(run.to))
	least := 0
	for i := range run.to {
		if recorded[i] = gpu.within(pid, run.from[i], run.to[i]) != nil; recorded[i] {
			least++
		}
	}
	if least == 0 {
		return
	}
	most := int(leastCut * float64(least))
	var best copyStream
	take := func(of copyStream) {
		cuts, n := copies[of].cuts(run, recorded)
		same := n == most && run.cuts != nil && (of.pid < best.pid || of.pid == best.pid && of.stream < best.stream)
		if n > most || same {
			run.cuts, most, best = cuts, n, of
		}
	}
	for of := range copies {
		if of.pid == pid {
			take(of)
		}
	}
	if run.cuts != nil {
		return
	}
	for of := range copies {
		if !engines[of.pid] {
			take(of)
		}
	}
}

// cuts returns the cut of each step, 0 where it has none, and how many of those that were recorded have one.
func (c *tokenCopies) cuts(run *stepRun, recorded []bool) (cuts []uint64, n int) {
	cuts = make([]uint64, len(run.to))
	for a := 0; a < len(run.to); {
		from := uint64(0)
		if a > 0 {
			from = run.to[a-1]
		}
		first, _ := slices.BinarySearch(c.end, from+1)
		inTurn := func(b int) bool {
			last, _ := slices.BinarySearch(c.end, run.to[b]+1)
			return c.inTurn(run, cuts, a, b, first, last, recorded)
		}
		b := run.untilDrained(a)
		end, ok := b, inTurn(b)
		// The engine may launch the next request's step before it tells of the last one's end.
		for ahead := 0; !ok && ahead < maxAhead && end+1 < len(run.to); ahead++ {
			end = run.untilDrained(end + 1)
			ok = inTurn(end)
		}
		if ok {
			b = end
		} else {
			c.latest(run, cuts, a, b, first)
		}
		a = b + 1
	}
	for i, at := range cuts {
		if at > 0 && recorded[i] {
			n++
		}
	}
	return cuts, n
}

// untilDrained returns the first step from a on after which no request was left, or the last one.
func (run *stepRun) untilDrained(a int) int {
	for a+1 < len(run.to) && !run.drained[a] {
		a++
	}
	return a
}

// inTurn takes the copies from first to last for those of the steps a to b, one for each, from the one side on which
// the engine did nothing else. It reports false where they are not in turn.
func (c *tokenCopies) inTurn(run *stepRun, cuts []uint64, a, b, first, last int, recorded []bool) bool {
	whole := a > 0 && recorded[a]
	at := first // of step a
	switch {
	case whole && run.drained[b] && last-first != b-a+1:
		return false
	case run.drained[b]:
		at = last - (b - a + 1)
	case !whole:
		return false
	}
	for i := a; i <= b; i++ {
		k := at + i - a
		if recorded[i] && (k < first || k >= last || !c.fits(k, run, i)) {
			return false
		}
	}
	for i := a; i <= b; i++ {
		if k := at + i - a; k >= first && k < last {
			cuts[i] = c.end[k]
		}
	}
	return true
}

// fits reports whether a copy may be of the tokens of a step. Some engines copy as much for a batch of one as for the
// largest.
func (c *tokenCopies) fits(k int, run *stepRun, i int) bool {
	return c.end[k] <= run.to[i] && c.end[k]+maxStep > run.to[i] && c.bytes[k] >= leastSampled*uint64(run.batch[i])
}

// latest takes for each of the steps a to b the last copy that was over before its message.
func (c *tokenCopies) latest(run *stepRun, cuts []uint64, a, b, first int) {
	for i := a; i <= b; i++ {
		k, _ := slices.BinarySearch(c.end, run.to[i]+1)
		for k--; k >= first; k-- {
			if c.fits(k, run, i) {
				cuts[i] = c.end[k]
				first = k + 1
				break
			}
		}
	}
}

// follows reports whether a step begins where the one before ends.
func (run *stepRun) follows(i int) bool { return i > 0 && run.from[i] == run.to[i-1] }

// gpuSpan returns from when to when the GPU worked for a step, as far as that can be told, and whether both ends are
// copies of tokens. Else the engine's messages stand for them.
func (run *stepRun) gpuSpan(i int) (from, to uint64, cut bool) {
	from, to = run.from[i], run.to[i]
	if run.cuts == nil {
		return from, to, false
	}
	if at := run.cuts[i]; at > 0 {
		to, cut = at, true
	}
	if run.follows(i) {
		if at := run.cuts[i-1]; at > 0 {
			from = at
		} else {
			cut = false
		}
	}
	return min(from, to), to, cut
}

// lags returns for how long each step's tokens were on the host before the engine's message.
func (run *stepRun) lags() (out []uint64) {
	for i, at := range run.cuts {
		if at > 0 {
			out = append(out, run.to[i]-at)
		}
	}
	return out
}
