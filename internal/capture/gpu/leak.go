package gpu

import "math"

// Of the judgement of what windows leave.
const (
	maxLeft     = 64_000_000    // bytes that windows may leave in a process, before no more are opened
	sayLeft     = maxLeft / 4   // bytes that are worth a word
	blockLength = 64            // stretches that are judged together
	fewestLeft  = 6             // stretches without which nothing is said
	sureBlock   = 5.0           // standard errors that the sum of a block must be away from 0 to count
	sureAll     = 5.5           // the same of all stretches ever
	unsure      = 8             // stretches of which as many again are needed to trust their spread
	crowded     = 16            // windows without a pause after which one is made
	shortPause  = 1_000_000_000 // ns of it at least
	pauseShare  = 8             // the part of the stretch before it that it is at least
	shortTrial  = 10_000_000_000
	longTrial   = 60_000_000_000 // ns without windows, see trial
	mostDoubled = 3              // times that what windows may leave is doubled after an acquittal
)

// leak tells what windows leave in their process's memory from what the process takes by
// itself. The time is cut into stretches in which windows are open, or were a moment ago, and
// the gaps between them. What the process grows by in a stretch, less what it would have grown
// by at the pace of the gaps before and after, is what the windows of that stretch left. One
// stretch says little, since programs take memory and give it back; what is the same in many
// does. The first stretch, in which CUPTI is loaded, has no gap before it, and does not count.
//
// A process that takes memory at the pace of the windows - a server whose answers take as long as the time from one
// window to the next - looks the same. So nobody is accused without a trial: no window opens for a while, and a process
// that goes on to grow as before does so by itself.
type leak struct {
	windows uint32 // of the agent, as last seen
	tail    bool   // the stretch has just ended: what it leaves is not settled

	at, bytes       int64 // the latest reading, made in a gap; at is 0 where there is none
	gapAt, gapBytes int64 // the first reading in the gap

	open  stretch // that has not ended; begin is 0 where none is open
	ended stretch // whose gap has not ended

	block     []float64 // bytes that each of the last stretches left
	sure      float64   // bytes that blocks before left
	all       int       // stretches that were judged,
	sum       float64   // what they left together, bytes,
	square    float64   // and the sum of its squares
	base      int64     // bytes of the process when this began
	resting   bool      // windows are held back to have a gap,
	restUntil int64     // of this length, ns

	accounts  [2]account // of the stretches since blockLength were full, and of as many before
	trial     trial
	acquitted int // trials that windows were cleared in
}

// account is what stretches that follow each other left together.
type account struct {
	at, bytes int64 // the reading before the first: ns, bytes; at is 0 where there is none
	left      float64
	stretches int
}

// trial is a time without windows that decides whether they make the process grow.
type trial struct {
	length    int64   // ns that it takes; 0: there is none
	most      float64 // bytes a second by which the process may grow if windows made it grow before
	at, bytes int64   // its first reading; at is 0 before it
	guilty    bool    // it has ended so
}

// stretch is a time in which windows were open.
type stretch struct {
	begin, bytes int64 // the reading before it: ns, bytes
	windows      uint32
	whole        change
	before       change
}

// change is what a process grew by in a time.
type change struct{ bytes, length int64 } // bytes, ns

// note takes what is seen of an agent now (ns): how many windows have ended, and whether one
// is open or about to be. read returns the bytes of the process's own memory; it is asked in gaps only.
func (g *leak) note(now uint64, windows uint32, busy bool, read func() (int64, bool)) {
	before, active := g.windows, busy || windows != g.windows
	g.windows = windows
	if active || g.tail {
		g.enter()
		g.open.windows += min(windows-before, crowded)
		g.tail = active
		g.trial.at = 0
		return
	}
	bytes, ok := read()
	if !ok {
		g.forget()
		return
	}
	g.leave(int64(now), bytes)
	g.try()
}

// try begins a trial where windows seem to have left too much, and judges one that is over.
func (g *leak) try() {
	switch t := &g.trial; {
	case t.guilty:
	case t.length == 0:
		if g.accounts[0].at != 0 && g.left() > maxLeft<<min(g.acquitted, mostDoubled) {
			*t = g.accuse()
		}
	case t.at == 0:
		t.at, t.bytes = g.at, g.bytes
	case g.at-t.at >= t.length:
		if perSecond(float64(g.bytes-t.bytes), g.at-t.at) < t.most {
			t.guilty = true
			return
		}
		*g = leak{
			windows: g.windows, at: g.at, bytes: g.bytes, gapAt: g.at, gapBytes: g.bytes, base: g.bytes,
			acquitted: g.acquitted + 1,
		}
	}
}

// accuse returns the trial about what the last stretches showed. Without windows the process is to grow by what it grew
// by, less what they seem to have left; half of that is between guilty and not.
func (g *leak) accuse() trial {
	from, left := g.accounts[0], g.accounts[0].left
	if before := g.accounts[1]; before.at != 0 && from.stretches < fewestLeft {
		from, left = before, left+before.left
	}
	length := g.at - from.at
	return trial{
		length: min(max(length, shortTrial), longTrial),
		most:   perSecond(float64(g.bytes-from.bytes)-left/2, length),
	}
}

func perSecond(bytes float64, ns int64) float64 { return bytes / float64(max(ns, 1)) * 1e9 }

// forget lets go of what has not been judged: it is not known any more what was when.
func (g *leak) forget() {
	g.at, g.open, g.ended, g.resting = 0, stretch{}, stretch{}, false
	if !g.trial.guilty {
		g.trial, g.accounts = trial{}, [2]account{}
	}
}

// enter ends the gap, if there was one.
func (g *leak) enter() {
	if g.open.begin != 0 || g.at == 0 {
		return
	}
	gap := change{g.bytes - g.gapBytes, g.at - g.gapAt}
	g.judge(gap)
	g.open = stretch{begin: g.at, bytes: g.bytes, before: gap}
}

// leave ends the stretch, if there was one, and notes a reading in the gap after it.
func (g *leak) leave(now, bytes int64) {
	if g.at == 0 || g.open.begin != 0 {
		g.gapAt, g.gapBytes = now, bytes
	}
	if g.at == 0 && g.base == 0 {
		g.base = bytes
	}
	if s := g.open; s.begin != 0 {
		s.whole = change{bytes - s.bytes, now - s.begin}
		g.ended, g.open = s, stretch{}
		g.restUntil = max(shortPause, s.whole.length/pauseShare)
	}
	g.at, g.bytes = now, bytes
	if g.at-g.gapAt >= g.restUntil {
		g.resting = false
	}
}

// rest reports whether windows are to be held back until there has been a gap: where they follow
// each other closely, there is nothing to compare them with.
func (g *leak) rest() bool {
	if g.open.windows >= crowded {
		g.resting = true
	}
	return g.resting
}

// restPeriod returns a period (ns) of windows of on at which gaps are long enough, where it was period.
func restPeriod(on, period uint64) uint64 {
	return max(period, on+shortPause+max(shortPause, crowded/pauseShare*period))
}

// judge weighs the stretch that ended, with the gap after it. A stretch that is long beside
// its gaps, as that of a window which an idle process left open, is not judged.
func (g *leak) judge(after change) {
	s := g.ended
	g.ended = stretch{}
	gaps := change{s.before.bytes + after.bytes, s.before.length + after.length}
	if s.windows == 0 || s.before.length == 0 || after.length == 0 || gaps.length < s.whole.length/4 {
		return
	}
	left := float64(s.whole.bytes) - float64(gaps.bytes)*float64(s.whole.length)/float64(gaps.length)
	g.all++
	g.sum += left
	g.square += left * left
	g.block = append(g.block, left)
	if len(g.block) == blockLength {
		g.sure += surely(g.block)
		g.block = g.block[:0]
	}
	g.enterAccount(s, left)
}

// enterAccount notes what a stretch left.
func (g *leak) enterAccount(s stretch, left float64) {
	if g.accounts[0].stretches == blockLength {
		g.accounts = [2]account{{}, g.accounts[0]}
	}
	a := &g.accounts[0]
	if a.at == 0 {
		a.at, a.bytes = s.begin, s.bytes
	}
	a.left += left
	a.stretches++
}

// surely returns the sum of a list where it is no chance that it is not 0, and else 0: it is
// looked at after each window, and a few values that are alike by chance must not pass.
func surely(list []float64) float64 {
	sum, square := 0.0, 0.0
	for _, v := range list {
		sum += v
		square += v * v
	}
	if math.Abs(sum) < sureBlock*spread(len(list), sum, square) {
		return 0
	}
	return sum
}

// spread returns the standard error of a sum of n values, larger where these are few.
func spread(n int, sum, square float64) float64 {
	if n < fewestLeft {
		return math.Inf(1)
	}
	return math.Sqrt(max(0, square-sum*sum/float64(n))*float64(n)/float64(n-1)) * (1 + unsure/float64(n))
}

// onTrial reports whether windows are to be held back until a trial is over.
func (g *leak) onTrial() bool { return g.trial.length != 0 && !g.trial.guilty }

// left returns the bytes that windows are known to have left in the process: no more than it
// has grown by at all since its first.
func (g *leak) left() int64 {
	known := g.sure + surely(g.block)
	if g.sum >= sureAll*spread(g.all, g.sum, g.square) {
		known = max(known, g.sum)
	}
	return max(0, min(int64(known), g.bytes-g.base))
}
