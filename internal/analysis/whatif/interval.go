package whatif

import (
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// modelError is the share of the remaining time by which a prediction is off even where every name is right: what
// changes does not change alone (caches, the length of waits). Half of the predictions that it was chosen by were off
// by more than 3.5% to 4.7%, which 1.64 standard deviations of 5% to 7% are behind; this is what the other terms of an
// interval leave of that.
const modelError = 0.07

// sigmas is how many standard deviations hold 9 of 10 values of a normal distribution.
const sigmas = 1.64

// interval widens a prediction by what it rests on: the replay's own error, the model's, how much the program's pace
// varied by itself, how well one half of the recording predicts the other, and for the time that is changed how sure
// its names are: two standard deviations of the share that samples give, and all that is guessed. A GPU that has more
// to do may be slower, and a thread that waits no more faster; and what recording cost the program is in it.
func (s *Study) interval(p *Prediction, edits []Edit, h how) {
	touched, guessed, doubt := s.touched(edits)
	p.Touched = touched
	if touched > 0 {
		p.Doubt = guessed / float64(touched)
	}
	less := h
	less.strength = func(w *replay.What) float64 {
		if w.Kind != replay.Run {
			return 1
		}
		return 1 - doubt[thread{w.PID, w.TID}]
	}
	weaker := s.with(edits, less)
	if p.After == s.alone && weaker == s.alone { // nothing was changed that matters
		half := math.Abs(s.Error()) * float64(s.observed)
		p.Low, p.High = s.speedup(uint64(float64(p.After)+half)), s.speedup(uint64(max(0, float64(p.After)-half)))
		return
	}
	after := float64(p.After)
	terms := []term{
		{math.Abs(float64(weaker) - after), ofNames},
		{modelError*after + math.Abs(s.Error())*float64(s.observed), ""},
		{sigmas * s.varies * after, ofPace},
		{math.Abs(s.learned) * after, ofHalves},
		{s.watched * after, ofRecording},
		{math.Abs(float64(s.replayed)/s.speedup(p.After) - float64(s.recorded(edits, h))), ofRecording},
	}
	half := together(terms)
	slower, faster := s.powered(p.After, edits, h)
	warm := h
	warm.refill = refill
	faster = math.Hypot(faster, after-float64(s.with(edits, warm)))
	if slices.ContainsFunc(edits, func(e Edit) bool { return e.Cause == cause.SyncCopy }) {
		slower = math.Hypot(slower, s.linked(edits, h, slowest)-after)
		faster = math.Hypot(faster, after-s.linked(edits, h, fastest))
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
	p.Low = s.speedup(uint64(after + math.Hypot(half, slower)))
	p.High = s.speedup(uint64(max(0, after-math.Hypot(half, faster))))
	p.Because = because(p, append(terms, term{max(slower, faster), ofOthers}))
}

// watching is up to how much a call that is recorded costs the program, ns. It is part of what is predicted, before the
// change, after it, or both. 600 launches in 5.3 ms took 2.1 µs longer each while an H200 and its host recorded them
// (the twin of `launches`, test/gpu/twins.py).
const watching = 2_100

// mostWatched bounds that, as a share of the time.
const mostWatched = 0.25

// watchedShare is the share of the time of the thread with most calls that recording them may have cost.
func (s *Study) watchedShare(t *timeline.Timeline, spans []timeline.Span) float64 {
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
	return min(mostWatched, watching*float64(most)/float64(spans[len(spans)-1].To-spans[0].From))
}

// refill is by how much the computing after a wait, or after a time without a CPU, may be longer than where there was
// none, ns: caches are cold, and a CPU that was idle wakes up. Up to 100 µs and more, by how much memory the thread
// uses (Li, Ding, Shen, "Quantifying the cost of context switch", ExpCS 2007). None is expected: what it is after a
// wait of a given length is not known.
const refill = 100_000

// warmed lets threads whose waits are gone compute for less, by so many ns for each.
func warmed(g *replay.Graph, plan *replay.Plan, each float64) {
	gone, ran := map[thread]float64{}, map[thread]float64{}
	for i := range g.Whats {
		w, c := &g.Whats[i], &plan.Changes[i]
		th := thread{w.PID, w.TID}
		switch w.Kind {
		case replay.Run, replay.Call:
			ran[th] += c.Scale * float64(g.Times[i].Own)
		case replay.Wait, replay.External, replay.Ready:
			if c.Scale == 0 {
				gone[th] += float64(g.Times[i].Count)
			}
		}
	}
	for i := range g.Whats {
		w := &g.Whats[i]
		th := thread{w.PID, w.TID}
		if (w.Kind == replay.Run || w.Kind == replay.Call) && gone[th] > 0 && ran[th] > 0 {
			plan.Changes[i].Scale *= 1 - min(1, each*gone[th]/ran[th])
		}
	}
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
			hit := plan.Changes[i] != replay.Keep()
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

// spread is two standard deviations of a share of a thread's time that samples give, relative to it: binomial.
func (s *Study) spread(th thread, share float64) float64 {
	sm := s.sampled[th]
	if sm == nil || sm.n == 0 {
		return 1
	}
	return 2 * math.Sqrt((1-share)/(share*sm.n))
}

// recorded is how long it takes with what recording cost, ns.
func (s *Study) recorded(edits []Edit, h how) uint64 {
	return s.replay(func(g *replay.Graph, plan *replay.Plan) {
		s.change(edits, h, g, plan)
		lessCrowded(g, plan, s.apart)
	})
}
