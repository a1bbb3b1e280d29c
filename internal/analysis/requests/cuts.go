package requests

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Sizes of copies of sampled tokens, and the kind of copies to the host.
const (
	deviceToHost = 2           // CUpti_ActivityMemcpyKind
	leastSampled = 4           // bytes for each request of a step: one token of 32 bits
	mostSampled  = 64          // likewise, of the largest batch: speculative decoding makes several
	maxApart     = uint64(1e6) // ns between two copies of one step
	maxAhead     = 2           // copies that are over before the message of a step before theirs
	leastCut     = 0.5         // of the steps in which GPUs were recorded have such a copy, or it is of something else
	leastBusy    = 0.9         // of the time of steps, from which on a GPU, not its engine, is what makes them long
)

// copyStream is one stream of one process.
type copyStream struct{ pid, stream uint32 }

// tokenCopies are the copies to the host on one stream that may be of sampled tokens, in order. Those without a kernel
// in between are one: vLLM copies tokens and their number.
type tokenCopies struct{ end, bytes []uint64 }

// tokenCopiesOf returns them by stream.
func tokenCopiesOf(rec *recording.Recording) map[copyStream]*tokenCopies {
	out := map[copyStream]*tokenCopies{}
	most := uint64(0)
	for i := range rec.Meta.Steps {
		most = max(most, uint64(rec.Meta.Steps[i].Requests))
	}
	computed := map[copyStream]bool{} // since its last copy
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind == event.Kernel {
			for of := range out {
				computed[of] = computed[of] || of.pid == e.PID
			}
		}
		if most == 0 || e.Kind != event.Copy || e.Ret&0xff != deviceToHost ||
			e.Args[2] < leastSampled || e.Args[2] > mostSampled*most {
			continue
		}
		of := copyStream{e.PID, e.TID}
		c := out[of]
		if c == nil {
			c = &tokenCopies{}
			out[of] = c
		}
		if n := len(c.end) - 1; n >= 0 && !computed[of] && e.TS < c.end[n]+maxApart {
			c.end[n], c.bytes[n] = max(c.end[n], e.End()), max(c.bytes[n], e.Args[2])
			continue
		}
		computed[of] = false
		c.end, c.bytes = append(c.end, e.End()), append(c.bytes, e.Args[2])
	}
	return out
}

// cut sets where steps end on the GPU: at a copy of a few bytes for each request that was over before the engine's
// message. Engines launch the next step before that message, so its time belongs to no one step. Of an engine that uses
// no GPU itself, another process does, which is no engine. The stream that copies about once for each step tells.
func (run *stepRun) cut(pid uint32, engines map[uint32]bool, copies map[copyStream]*tokenCopies, gpu *work) {
	run.recorded = make([]bool, len(run.to))
	steps := 0
	for i := range run.to {
		if run.recorded[i] = gpu.within(pid, run.from[i], run.to[i]) != nil; run.recorded[i] {
			steps++
		}
	}
	if steps == 0 {
		return
	}
	most := int(leastCut * float64(steps))
	var best copyStream
	take := func(of copyStream) {
		n := copies[of].within(run)
		n = min(n, 2*steps-n)
		same := n == most && best != copyStream{} &&
			(of.pid < best.pid || of.pid == best.pid && of.stream < best.stream)
		if n > most || same {
			most, best = n, of
		}
	}
	for of := range copies {
		if of.pid == pid {
			take(of)
		}
	}
	if (best == copyStream{}) {
		for of := range copies {
			if !engines[of.pid] {
				take(of)
			}
		}
	}
	if (best != copyStream{}) {
		run.match(copies[best], func(from, to uint64) *uint64 { return gpu.within(pid, from, to) })
	}
}

// within returns how many copies were over within the steps in which GPUs were recorded.
func (c *tokenCopies) within(run *stepRun) (n int) {
	for i := range run.to {
		if run.recorded[i] {
			n += c.until(run.to[i]) - c.until(run.from[i])
		}
	}
	return n
}

// until returns how many copies were over at a time.
func (c *tokenCopies) until(at uint64) int {
	n, _ := slices.BinarySearch(c.end, at+1)
	return n
}

// block is steps without a pause in between: from a to b, both included. Where it begins with a pause, what was over at
// from is of others, where it ends with one, what was over at to is not of others; 0: there is none.
type block struct {
	a, b     int
	from, to uint64
}

// blocks returns the steps in blocks.
func (run *stepRun) blocks() (out []block) {
	for a := 0; a < len(run.to); a++ {
		x := block{a: a, b: a, from: run.pause[a]}
		for x.b+1 < len(run.to) && run.pause[x.b+1] == 0 && !run.missed[x.b+1] {
			x.b++
		}
		if run.pause[x.b+1] > 0 {
			x.to = run.before(x.b + 1)
		}
		out = append(out, x)
		a = x.b
	}
	return out
}

// before returns when the last message before that of step i was sent, one without output included.
func (run *stepRun) before(i int) uint64 {
	at := uint64(0)
	if i > 0 {
		at = run.to[i-1]
	}
	n := len(run.empty)
	if i < len(run.to) {
		n, _ = slices.BinarySearch(run.empty, run.to[i])
	}
	if n > 0 {
		at = max(at, run.empty[n-1])
	}
	return at
}

// match finds the copies of steps: where they are as many as the messages between two pauses, one is of each; from one
// pause on as far as they were recorded. Elsewhere those are taken whose sizes are those of the batches, or that come
// before their messages as others do, or, where the GPU is what makes steps long, the last ones. Of other steps it is
// not certain which copies are theirs.
func (run *stepRun) match(c *tokenCopies, worked func(from, to uint64) *uint64) {
	run.cuts = make([]uint64, len(run.to))
	var open []block
	for _, x := range run.blocks() {
		if !c.inTurn(run, x, worked) {
			open = append(open, x)
		}
	}
	usual := run.lags()
	slices.Sort(usual)
	for _, x := range open {
		if c.bySize(run, x) || c.asUsual(run, x, usual) {
			continue
		}
		busy, all := uint64(0), uint64(0)
		for i := x.a; i <= x.b; i++ {
			if n := worked(run.from[i], run.to[i]); n != nil {
				busy, all = busy+*n, all+run.to[i]-run.from[i]
			}
		}
		if all > 0 && float64(busy) >= leastBusy*float64(all) {
			c.latest(run, x)
		}
	}
	for i, at := range run.cuts {
		if run.recorded[i] && at == 0 {
			run.uncut++
		}
	}
}

// inTurn takes a copy for each step of a block, from a pause on, or up to one. It reports false where that is not
// certain.
func (c *tokenCopies) inTurn(run *stepRun, x block, worked func(from, to uint64) *uint64) bool {
	first, last, steps := c.until(x.from), c.until(x.to), x.b-x.a+1
	low, _ := slices.BinarySearch(run.empty, max(x.from, run.before(x.a))+1)
	high, _ := slices.BinarySearch(run.empty, max(x.to, run.to[x.b])+1)
	empty := run.empty[min(low, high):high]
	if x.from > 0 && x.to > 0 && worked(x.from, x.to) != nil {
		// Of an engine without statistics, a step that came to nothing at the end is not told.
		untold := !run.stats && !run.byLength[x.b] && !slices.Contains(run.byLength[x.a:max(x.a, x.b-1)], false)
		return last-first == steps+len(empty) && c.take(run, x, first, empty) ||
			(last-first == steps || untold && last-first == steps+1) && c.take(run, x, first, nil)
	}
	if len(empty) > 0 && empty[0] < run.to[x.b] || !run.stats && slices.Contains(run.byLength[x.a:x.b], false) {
		return false
	}
	if x.from > 0 { // as far as it was recorded
		for x.b >= x.a && (first+x.b-x.a >= len(c.end) || worked(x.from, c.end[first+x.b-x.a]) == nil) {
			x.b--
		}
		return c.take(run, x, first, nil)
	}
	if x.to == 0 || len(empty) > 0 || !run.byLength[x.b] || worked(run.to[x.b], x.to) == nil {
		return false
	}
	at := x.recorded(last - steps)
	return c.take(run, x, at, nil)
}

// recorded leaves out the first steps of a block whose copies were over before the recording, and returns which copy is
// of the first one that is left.
func (x *block) recorded(at int) int {
	if at < 0 {
		x.a -= at
	}
	return max(0, at)
}

// bySize takes copies that have the same number of bytes for each request of their step, if only one way does.
func (c *tokenCopies) bySize(run *stepRun, x block) bool {
	end := x.b
	for x.b >= x.a && !run.recorded[x.b] {
		x.b--
	}
	if x.b < x.a {
		return false
	}
	a := x.b
	for a > x.a && run.recorded[a-1] {
		a--
	}
	x.a, x.b = a, min(end, x.b+maxAhead) // messages of the last copies may come after what is recorded
	return c.only(run, x, run.to[x.b], maxAhead, func(y block, at int) bool {
		for i := y.a; i <= y.b; i++ {
			if c.bytes[at+i-y.a]*uint64(run.batch[y.a]) != c.bytes[at]*uint64(run.batch[i]) {
				return false
			}
		}
		return true
	})
}

// asUsual takes copies that come as long before their messages as those of other blocks do, if only one way does.
func (c *tokenCopies) asUsual(run *stepRun, x block, usual []uint64) bool {
	if len(usual) == 0 {
		return false
	}
	return c.only(run, x, max(x.to, run.to[x.b]), 0, func(y block, at int) bool {
		var lags []uint64
		for i := y.a; i <= y.b; i++ {
			lags = append(lags, run.to[i]-c.end[at+i-y.a])
		}
		slices.Sort(lags)
		lag := lags[len(lags)/2]
		return lag >= usual[0] && lag <= usual[len(usual)-1]
	})
}

// only takes the copies up to a time, or up to some before, that may be of the steps of a block, of which so many at
// most are without a copy at the end, if only one way is right. A message without output in between may have a copy,
// too, or not.
func (c *tokenCopies) only(run *stepRun, whole block, to uint64, without int, right func(x block, at int) bool) bool {
	if whole.a > whole.b {
		return false
	}
	low, _ := slices.BinarySearch(run.empty, run.to[whole.a]+1)
	if high, _ := slices.BinarySearch(run.empty, run.to[whole.b]); low < high {
		return false
	}
	found, x := -1, whole
	for ahead := -without; ahead <= maxAhead; ahead++ {
		y := whole
		y.b += min(0, ahead)
		at := y.recorded(c.until(to) - (y.b - y.a + 1) - max(0, ahead))
		if !c.fit(run, y, at, nil) || !right(y, at) {
			continue
		}
		if found >= 0 {
			return false
		}
		found, x = at, y
	}
	return found >= 0 && c.take(run, x, found, nil)
}

// fit reports whether the copies from at on may be of the messages of a block, those without output included.
func (c *tokenCopies) fit(run *stepRun, x block, at int, empty []uint64) bool {
	if x.a > x.b || at+x.b-x.a >= len(c.end) {
		return false
	}
	for i := x.a; i <= x.b; i++ {
		for ; len(empty) > 0 && empty[0] < run.to[i]; at, empty = at+1, empty[1:] {
		}
		if at+i-x.a >= len(c.end) || !c.fits(at+i-x.a, run, i) {
			return false
		}
	}
	return true
}

// take takes these copies if they may be of the steps.
func (c *tokenCopies) take(run *stepRun, x block, at int, empty []uint64) bool {
	if !c.fit(run, x, at, empty) {
		return false
	}
	for i := x.a; i <= x.b; i++ {
		for ; len(empty) > 0 && empty[0] < run.to[i]; at, empty = at+1, empty[1:] {
		}
		run.cuts[i] = c.end[at+i-x.a]
	}
	return true
}

// fits reports whether a copy may be of the tokens of a step. Some engines copy as much for a batch of one as for the
// largest.
func (c *tokenCopies) fits(k int, run *stepRun, i int) bool {
	return c.end[k] <= run.to[i] && c.end[k]+maxStep > run.to[i] && c.bytes[k] >= leastSampled*uint64(run.batch[i])
}

// latest takes for each step of a block the last copy that was over before its message.
func (c *tokenCopies) latest(run *stepRun, x block) {
	first := c.until(x.from)
	for i := x.a; i <= x.b; i++ {
		for k := c.until(run.to[i]) - 1; k >= first; k-- {
			if c.fits(k, run, i) {
				run.cuts[i] = c.end[k]
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
