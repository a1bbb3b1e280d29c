package whatif

import (
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
)

// sigmas is how many standard deviations hold 9 of 10 values of a normal distribution.
const sigmas = 1.64

// interval widens a prediction to what holds the true speed-up 9 times in 10, by what it rests on: how much the blocks
// of the recording differ in what the change brings; how sure the names of the time are that is changed; what is left
// of time that is said to go (residue); what recording added; the replay's own error; and what models of this kind of
// change are off by. A GPU that has more to do may be slower, and a thread that waits no more faster.
func (s *Study) interval(p *Prediction, edits []Edit, h how) {
	touched, guessed, doubt := s.touched(edits)
	p.Touched = touched
	if touched > 0 {
		p.Doubt = guessed / float64(touched)
	}
	less := h
	less.strength = func(w *replay.What) float64 {
		off := s.launchingDoubt(edits, w)
		if w.Kind == replay.Run {
			off += doubt[thread{w.PID, w.TID}]
		}
		return 1 - min(1, off)
	}
	weaker := s.with(edits, less)
	waits, unseenWakers := h, h
	waits.waits, unseenWakers.unseen = true, true
	waiting := float64(p.After) - float64(s.with(edits, waits))
	awaiting := float64(p.After) - float64(s.with(edits, unseenWakers))
	if p.After == s.alone && weaker == s.alone && waiting == 0 && awaiting == 0 { // nothing was changed that matters
		p.Because = ofUnawaited
		half := math.Abs(s.Error()) * float64(s.observed)
		p.Low, p.High = s.speedup(uint64(float64(p.After)+half)), s.speedup(uint64(max(0, float64(p.After)-half)))
		if touched == 0 {
			p.Because = ofNothing
			p.High = max(p.High, unsampled(edits))
		}
		return
	}
	after := float64(p.After)
	terms := []term{
		{math.Abs(float64(weaker) - after), ofNames},
		{modelError(edits)*after + math.Abs(s.Error())*float64(s.observed), ofModel},
		{residue * math.Abs(float64(s.alone)-after), ofResidue},
		{s.scatter(edits, h) * after, ofPace},
		{s.lighter(edits, h) * after, ofRecording},
		{s.kept() * math.Abs(float64(s.replayed)/s.speedup(p.After)-float64(s.recorded(edits, h))), ofRecording},
	}
	half := together(terms)
	slower, faster := s.powered(p.After, edits, h)
	warm := h
	warm.refill = refill
	faster = math.Hypot(faster, after-float64(s.with(edits, warm)))
	faster = math.Hypot(faster, math.Hypot(waiting, awaiting))
	overlapped := h
	overlapped.overlaps = true
	faster = math.Hypot(faster, after-float64(s.with(edits, overlapped)))
	looked := h
	looked.looks = true
	slower = math.Hypot(slower, float64(s.with(edits, looked))-after)
	crowded := h
	crowded.late = true
	slower = math.Hypot(slower, float64(s.with(edits, crowded))-after)
	linkLow, linkHigh := 0.0, 0.0
	if slices.ContainsFunc(edits, func(e Edit) bool { return e.Cause == cause.SyncCopy || e.Verb == Merge }) {
		linkLow, linkHigh = s.linked(edits, h, slowest)-after, after-s.linked(edits, h, fastest)
	}
	if slices.ContainsFunc(edits, func(e Edit) bool { return e.Cause != cause.Count }) {
		more, none := h, h
		more.maxMisattributed, none.maxMisattributed = mostStrays, 0
		faster, slower = math.Hypot(faster, after-float64(s.with(edits, more))),
			math.Hypot(
				slower,
				float64(s.with(edits, none))-after,
			)
	}
	link := ofLink
	if slices.ContainsFunc(edits, func(e Edit) bool { return e.Verb == Merge }) {
		link = ofMerge
	}
	unseen := min(mostWatched, s.unseen)
	faster = math.Hypot(faster, unseen*after)
	sides := term{max(slower, math.Sqrt(max(0, faster*faster-waiting*waiting-awaiting*awaiting))), ofOthers}
	terms = append(terms, term{waiting, ofWaits}, term{awaiting, ofWakers}, term{unseen * after, ofRecording},
		term{max(linkLow, linkHigh), link}, sides)
	slower, faster = math.Hypot(slower, linkLow), math.Hypot(faster, linkHigh)
	p.Low = s.speedup(uint64((after + math.Hypot(half, slower)) / (1 - unseen))) // it is no matter of chance
	p.High = s.speedup(uint64(max(0, after-math.Hypot(half, faster))))
	p.Because = because(p, terms)
}

// unsampled is what edits of functions bring at most that no sample shows.
func unsampled(edits []Edit) float64 {
	most := 1.0
	for _, e := range edits {
		switch {
		case e.Cause != cause.Count || e.Verb == Kernels || e.Verb == Merge: // kernels need no samples
		case e.Verb == Faster:
			most *= max(1, e.Factor)
		default:
			return MaxSpeedup
		}
	}
	return min(most, MaxSpeedup)
}

// scatter is half of the interval of a prediction that comes from chance, relative to it: blocks of the recording, each
// with its own speed-up, are a sample of what the program does. What slows a block before the change and after it
// alike, as other programs on its CPUs do, is no part of that: it is the standard error of a ratio of means (Cochran,
// "Sampling Techniques", 1977, 2.11). Where there are fewer than leastBlocks, the pace has to do.
func (s *Study) scatter(edits []Edit, h how) float64 {
	by := map[int][]replay.Block{} // of the threads that use the GPU, by their order
	for _, p := range s.parts {
		before, after := p.graph.Unchanged(), p.graph.Unchanged()
		s.alonePlan(p.graph, before)
		s.change(edits, h, p.graph, after)
		s.alonePlan(p.graph, after)
		for i, list := range p.graph.Blocks(max(1, blocks/len(s.parts)), before, after) {
			by[i] = append(by[i], list...)
		}
	}
	sum, weight := 0.0, 0.0
	for _, list := range by {
		if off, ok := ratioError(list); ok {
			w := 0.0
			for i := range list {
				w += list[i].Weight
			}
			sum, weight = sum+w*off, weight+w
		}
	}
	if weight == 0 {
		return sigmas * s.varies
	}
	return sum / weight
}

// leastBlocks is how many blocks say anything of how they differ.
const leastBlocks = 3

// ratioError returns half of the interval of the ratio of all blocks' time before to that after, relative to it; false
// where they are too few.
func ratioError(list []replay.Block) (off float64, ok bool) {
	n := float64(len(list))
	before, after := 0.0, 0.0
	for _, b := range list {
		before, after = before+b.Before, after+b.After
	}
	if len(list) < leastBlocks || before <= 0 || after <= 0 {
		return 0, false
	}
	squares := 0.0
	for _, b := range list {
		d := b.Before/before - b.After/after
		squares += d * d
	}
	return math.Hypot(student(n-1)*math.Sqrt(squares*n/(n-1)), sigmas*drift(list)), true
}

// thirds are compared to find out whether a program changes while it is recorded.
const thirds = 3

// drifts is how many times as much thirds differ as blocks in any order would make them, for that to be no chance: the
// upper tenth of F with 2 degrees of freedom and those of the blocks within their thirds.
func drifts(within float64) float64 { return within / 2 * (math.Pow(10, 2/within) - 1) }

// drift is the standard deviation of the speed-ups of a recording's thirds, relative to that of all. Where these differ
// by more than its blocks explain, the program changed meanwhile, and will be at any of these levels; else 0.
func drift(list []replay.Block) float64 {
	n := float64(len(list))
	if len(list) < 2*thirds {
		return 0
	}
	of := func(list []replay.Block) (ratio float64) {
		before, after := 0.0, 0.0
		for _, b := range list {
			before, after = before+b.Before, after+b.After
		}
		return before / max(after, 1)
	}
	all, between, within := of(list), 0.0, 0.0
	for k := range thirds {
		third := list[k*len(list)/thirds : (k+1)*len(list)/thirds]
		d := of(third)/all - 1
		between += d * d / (thirds - 1)
		for i := range third {
			d := of(third[i:i+1])/of(third) - 1
			within += d * d / (n - thirds)
		}
	}
	if between <= drifts(n-thirds)*within*thirds/n {
		return 0
	}
	return math.Sqrt(between)
}

// student is sigmas for means of few values, by their degrees of freedom: an expansion of the quantile of Student's t
// (Abramowitz and Stegun, 26.7.5).
func student(freedom float64) float64 {
	const z = sigmas
	return z + (z*z*z+z)/(4*freedom) + (5*z*z*z*z*z+16*z*z*z+3*z)/(96*freedom*freedom)
}

// watching is up to how much a call that is recorded costs the program, ns. It is part of what is predicted, before the
// change, after it, or both. 600 launches in 5.3 ms took 2.1 µs longer each while an H200 and its host recorded them
// (the twin of `launches`, test/gpu/twins.py).
const watching = 2_100

// mostWatched bounds that, as a share of the time.
const mostWatched = 0.25

// watchedShare is up to which share of the time recording may have cost beyond what is left out. Steps inside and
// outside of windows tell, or else what the overhead governor measured of a recording without windows; else it is that
// of the recorded calls of the thread with most of them.
func (s *Study) watchedShare(t *timeline.Timeline, spans []timeline.Span, windows *observer.Effect) float64 {
	if windows != nil && windows.Steps.High > 0 {
		return windows.Steps.High - windows.Steps.Mean
	}
	most := 0
	for i := range t.Threads {
		th, n := &t.Threads[i], 0
		if !s.launches[thread{t.Processes[th.Process].PID, th.TID}] {
			continue
		}
		for k := th.First; k < th.Last; k++ {
			if o := &t.Ops[k]; o.Outer() && spans[0].From <= o.Start && o.Start < spans[len(spans)-1].To {
				n++
			}
		}
		most = max(most, n)
	}
	share := min(mostWatched, watching*float64(most)/float64(spans[len(spans)-1].To-spans[0].From))
	gpu := t.Rec.Meta.GPU
	if o := t.Rec.Meta.Overhead; o != nil && o.Total.Basis == recording.CostMeasured && o.Total.High > 0 &&
		(gpu == nil || gpu.Mode == "continuous") {
		share = min(share, o.Total.High)
	}
	return share
}

// unseenShare is the share of the time that recording cost by the target's own progress, beyond what the recording shows
// and watchedShare allows for; 0 where the difference may be chance. In which code it was is not known.
func (s *Study) unseenShare(o *recording.Overhead) float64 {
	if o == nil || o.Total.Basis != recording.CostMeasured || o.Total.Low <= s.recorder.cost+s.watched {
		return 0
	}
	return o.Total.Share - s.recorder.cost - s.watched
}

// lighter is by how much a speed-up differs, relative to it, if each call cost the program as much more while it was
// recorded as it may have: those that the change leaves cost it after the change too.
func (s *Study) lighter(edits []Edit, h how) float64 {
	calls := 0.0
	for _, p := range s.parts {
		for _, n := range callsOf(p.graph) {
			calls += n
		}
	}
	if calls == 0 || s.watched == 0 {
		return 0
	}
	each := s.watched * float64(s.observed) / calls
	length := func(change func(*replay.Graph, *replay.Plan)) float64 {
		return float64(s.length(func(g *replay.Graph, plan *replay.Plan) {
			change(g, plan)
			lighten(g, plan, each)
			if !s.compared {
				lightenGraphs(g, plan)
			}
		}))
	}
	before := length(unchanged)
	after := length(func(g *replay.Graph, plan *replay.Plan) { s.change(edits, h, g, plan) })
	if before == 0 || after == 0 {
		return s.watched
	}
	return math.Abs(before/after/(float64(s.alone)/float64(max(1, s.with(edits, h)))) - 1)
}

// callsOf returns how many calls each thread makes.
func callsOf(g *replay.Graph) map[thread]float64 {
	out := map[thread]float64{}
	for i := range g.Whats {
		if w := &g.Whats[i]; w.Kind == replay.Call || w.Kind == replay.Sync {
			out[thread{w.PID, w.TID}] += float64(g.Times[i].Count)
		}
	}
	return out
}

// lighten takes so many ns from each call that a plan leaves, and where calls are shorter, from the way from one launch
// to the next.
func lighten(g *replay.Graph, plan *replay.Plan, each float64) {
	left, bursts := map[thread]float64{}, map[thread]float64{}
	for i := range g.Whats {
		w, own := &g.Whats[i], float64(g.Times[i].Own)
		th := thread{w.PID, w.TID}
		switch {
		case w.Kind == replay.Call || w.Kind == replay.Sync:
			cut := min(own, each*float64(g.Times[i].Count))
			if own > 0 {
				plan.Changes[i].Scale *= 1 - cut/own
			}
			left[th] += each*float64(g.Times[i].Count) - cut
		case w.Kind == replay.Run && w.Burst:
			bursts[th] += own
		}
	}
	for i := range g.Whats {
		w := &g.Whats[i]
		if th := (thread{w.PID, w.TID}); w.Kind == replay.Run && w.Burst && bursts[th] > 0 {
			plan.Changes[i].Scale *= 1 - min(1, left[th]/bursts[th])
		}
	}
}

// lightenGraphs takes from the delay before each node of a graph what recording it may have cost.
func lightenGraphs(g *replay.Graph, plan *replay.Plan) {
	for i := range g.Whats {
		if t := &g.Times[i]; g.Whats[i].Graph && t.Gap > 0 {
			plan.Changes[i].Gap *= 1 - min(1, graphNode*float64(t.Count)/float64(t.Gap))
		}
	}
}

// kept is the share of what the recording seems to have cost that may be the program's own, or of which as much may be
// missing: all of it, but where steps inside and outside of windows were compared.
func (s *Study) kept() float64 {
	if s.compared {
		return 0
	}
	return 1
}

// refill is by how much the computing after a wait, or after a time without a CPU, may be longer than where there was
// none, ns: caches are cold, and a CPU that was idle wakes up. Up to 100 µs and more, by how much memory the thread
// uses (Li, Ding, Shen, "Quantifying the cost of context switch", ExpCS 2007). None is expected: what it is after a
// wait of a given length is not known.
const refill = 100_000

// chilled is the share of a garbage collection that may go with the waits of its thread: it goes through all objects.
// Those of 10,000 objects took 3.0 ms without waits and 3.7 to 5.2 ms after 5 ms of waiting (programs with `collect` of
// testdata/scenarios), while native work in few kilobytes took the same.
const chilled = 0.33

// warmed lets threads whose waits are gone, or shorter, compute for less: by so many ns for each.
func warmed(g *replay.Graph, plan *replay.Plan, each float64) {
	type sums struct{ gone, ran, waited, shorter float64 }
	by := map[thread]*sums{}
	for i := range g.Whats {
		w, t, scale := &g.Whats[i], &g.Times[i], plan.Changes[i].Scale
		th := thread{w.PID, w.TID}
		b := by[th]
		if b == nil {
			b = &sums{}
			by[th] = b
		}
		switch w.Kind {
		case replay.Run, replay.Call:
			b.ran += scale * float64(t.Own)
		case replay.Wait, replay.External, replay.Ready:
			b.waited += float64(t.Own)
			if scale < 1 {
				b.gone += (1 - scale) * float64(t.Count)
				b.shorter += (1 - scale) * float64(t.Own)
			}
		}
	}
	for i := range g.Whats {
		w, c := &g.Whats[i], &plan.Changes[i]
		b := by[thread{w.PID, w.TID}]
		if w.Kind != replay.Run && w.Kind != replay.Call || b.gone == 0 || b.ran == 0 || each == 0 {
			continue
		}
		by := each * b.gone / b.ran
		if w.Cause == cause.GC {
			by = max(by, chilled*b.shorter/max(1, b.waited))
		}
		c.Scale *= 1 - min(1, by)
	}
}

// changed reports whether edits change the time of a What, or name it: what others do beside already stays as it is.
func (s *Study) changed(w *replay.What, c *replay.Change, edits []Edit) bool {
	named := func(e Edit) bool { return e.Cause == cause.Count && e.about(w) }
	return (*c != replay.Keep() || slices.ContainsFunc(edits, named)) && !s.names.isOurs(w)
}

// touched returns how much time edits change, how much of it is guessed, and by thread what share of the computing
// that they change may not be what it is called.
func (s *Study) touched(edits []Edit) (ns uint64, guessed float64, doubt map[thread]float64) {
	type sums struct{ hit, all, guessed float64 }
	by := map[thread]*sums{}
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		for _, e := range edits {
			s.apply(e, usual(), p.graph, plan)
		}
		for i := range p.graph.Whats {
			w, t := &p.graph.Whats[i], &p.graph.Times[i]
			hit := s.changed(w, &plan.Changes[i], edits)
			if hit {
				ns += t.Own
				guessed += float64(t.By[replay.Guess])
			}
			if w.Kind != replay.Run {
				continue
			}
			th := thread{w.PID, w.TID}
			if by[th] == nil {
				by[th] = &sums{}
			}
			by[th].all += float64(t.Own)
			if hit {
				by[th].hit += float64(t.Own)
				by[th].guessed += float64(t.By[replay.Guess])
			}
		}
	}
	doubt = map[thread]float64{}
	for th, b := range by {
		if b.hit > 0 {
			doubt[th] = min(1, s.spread(th, b.hit/b.all)+b.guessed/b.hit)
		}
	}
	return ns, guessed, doubt
}

// spread is half of the interval of a share of a thread's time that samples give, relative to it: binomial.
func (s *Study) spread(th thread, share float64) float64 {
	sm := s.sampled[th]
	if sm == nil || sm.n == 0 {
		return 1
	}
	return sigmas * math.Sqrt((1-share)/(share*sm.n))
}

// recorded is how long it takes with what recording cost, ns.
func (s *Study) recorded(edits []Edit, h how) uint64 {
	return s.replay(func(g *replay.Graph, plan *replay.Plan) {
		s.change(edits, h, g, plan)
		lessCrowded(g, plan, s.apart)
	})
}
