// Package whatif says how much faster a program would be with something changed: it replays a recording with that time
// shortened, moved off the path or not waited for, and looks at when the work would have ended. It is a pure function
// of a timeline.
package whatif

import (
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
)

// Study is a recording that can be replayed with changes. Its methods may be called from one goroutine at a time.
type Study struct {
	parts    []part
	observed uint64 // ns: how long the work of all parts took
	replayed uint64 // ns: what the replay without changes says
	alone    uint64 // ns: what it says without what recording cost
	names    *namer
	sampled  map[thread]*sampled
	// by an edit's pattern: see launchingOf
	launching map[string]map[thread]launchingShare
	launches  map[thread]bool // threads that launched anything
	scratch   []uint64
	varies    float64 // see variation
	learned   float64 // see Learned
	power     power
	link      float64              // see linkRate
	pins      [replay.Engines]gain // what pinned memory brings to copies, by direction
	watched   float64              // see watchedShare
	unseen    float64              // see unseenShare
	compared  bool                 // steps inside and outside of windows were
	recorder  recorder
	apart     *recorder // where what it computes takes no CPU from the program (see contradicts); else nil
	wakes     map[thread]wakeUps
	uneven    float64 // see missed
	torch     bool    // PyTorch's operators run in the program
	cpus      int     // of the host; 0: not known, or it is not known when threads ran
	// how many CPUs of the host nobody took on average, or only programs of lower priority; nil: not known
	free *float64
}

// part is a stretch of time in which all was seen.
type part struct{ graph *replay.Graph }

type thread struct{ pid, tid uint32 }

// sampled is what the names of a thread's time rest on.
type sampled struct {
	n         float64            // samples
	launching map[uint32]float64 // samples on the way from one launch to the next, by stack
}

const (
	// leastPart is the least length of a stretch that says anything, ns: some iterations of the shortest kind.
	leastPart = 1_000_000
	// mostParts bounds the work for a recording that is made of pieces.
	mostParts = 4096
)

// New prepares a recording. It takes O(n) for n events that are in order.
func New(t *timeline.Timeline, scheduled []threads.Thread) *Study {
	return Some(t, scheduled, nil, timeline.Span{From: t.From, To: t.To}, math.MaxInt, nil)
}

// Some prepares the beginning of a stretch of a recording: about as much of it as has so many calls and activities.
// Where the walk over its gaps is made, that takes no longer than as much deserves; nil where it is not. What windows
// of GPU records add is left out as far as it is known; nil where it is not.
func Some(
	t *timeline.Timeline,
	scheduled []threads.Thread,
	walk *gap.Walk,
	in timeline.Span,
	much int,
	windows *observer.Effect,
) *Study {
	s := &Study{
		sampled: map[thread]*sampled{}, launches: map[thread]bool{}, launching: map[string]map[thread]launchingShare{},
	}
	spans := cut(spansOf(t, in), float64(much)/float64(len(t.Ops)+len(t.Activities)+len(t.Index.OffCPU)+1))
	if len(spans) == 0 {
		return s
	}
	names := newNamer(t, scheduled, walk, timeline.Span{From: spans[0].From, To: spans[len(spans)-1].To})
	s.names = names
	for _, span := range spans {
		g := replay.Build(t, scheduled, span, names)
		if g.Observed() == 0 {
			continue
		}
		s.parts = append(s.parts, part{g})
		s.observed += g.Observed()
	}
	s.wakes = wakeUpsOf(scheduled, names)
	s.torch = slices.ContainsFunc(t.Rec.Meta.Frames, func(f recording.Frame) bool {
		return f.Kind == recording.NativeFrame && strings.HasPrefix(f.File, "libtorch")
	})
	s.recorder = recorderOf(t, names)
	s.recorder.spread(s.parts)
	s.recorder.learned(t, s.parts, windows)
	s.replayed, s.alone = s.replay(unchanged), s.length(unchanged)
	if s.recorder.cost = s.recordingCost(); s.recorder.contradicts(windows, s.recorder.cost) {
		s.apart = &s.recorder
		s.alone = s.length(unchanged)
		s.recorder.cost = s.recordingCost()
	}
	s.countSamples(t)
	s.findLaunchers(t)
	s.compared = windows != nil && windows.Steps.High > 0
	s.power, s.watched = powerOf(t, spans), s.watchedShare(t, spans, windows)
	s.unseen = s.unseenShare(t.Rec.Meta.Overhead)
	s.pins, s.link = pinnedGains(t, spans), linkRate(t)
	if len(scheduled) > 0 {
		s.cpus, s.free = t.Rec.Meta.Host.CPUs, freeCPUs(t.Rec)
	}
	s.varies = s.variation()
	s.learned = s.crossValidate()
	s.uneven = s.missed(windows)
	return s
}

// cut keeps a share of spans, from the first on.
func cut(spans []timeline.Span, share float64) []timeline.Span {
	total := uint64(0)
	for _, s := range spans {
		total += s.To - s.From
	}
	if share >= 1 {
		return spans
	}
	left := uint64(share * float64(total))
	for i := range spans {
		n := spans[i].To - spans[i].From
		if n >= left {
			spans[i].To = spans[i].From + left
			return spans[:i+1]
		}
		left -= n
	}
	return spans
}

// spansOf returns when all GPUs of the target were seen in a stretch of time; all of it where there is none.
func spansOf(t *timeline.Timeline, in timeline.Span) []timeline.Span {
	all := timeline.Join([]timeline.Span{in})
	for _, c := range gap.Covered(t) {
		all = all.Both(c)
	}
	var out []timeline.Span
	for _, s := range all {
		if s.To-s.From >= leastPart && len(out) < mostParts {
			out = append(out, s)
		}
	}
	return out
}

// blocks is how many pieces of a recording are compared with each other.
const blocks = 10

// variation is by how much the pace of the program varied within the recording, relative to it: the standard deviation
// of the nodes of GPU work, or of all, that ended in a tenth of the time.
func (s *Study) variation() float64 {
	var counts []float64
	for _, p := range s.parts {
		counts = append(counts, p.graph.Pace(max(1, blocks/len(s.parts)))...)
	}
	mean, sum := 0.0, 0.0
	for _, c := range counts {
		mean += c / float64(len(counts))
	}
	for _, c := range counts {
		sum += (c - mean) * (c - mean)
	}
	if mean == 0 || len(counts) < 2 {
		return 1
	}
	return math.Sqrt(sum/float64(len(counts)-1)) / mean
}

// countSamples counts what the names of each thread's computing rest on.
func (s *Study) countSamples(t *timeline.Timeline) {
	var last thread
	var near *sampled // of last
	of := func(k thread) *sampled {
		if near == nil || k != last {
			if s.sampled[k] == nil {
				s.sampled[k] = &sampled{launching: map[uint32]float64{}}
			}
			last, near = k, s.sampled[k]
		}
		return near
	}
	for i := range t.Index.Samples {
		at := &t.Index.Samples[i]
		k := thread{at.PID, at.TID}
		th := of(k)
		th.n++
		if s.names.launched(k, at.TS) {
			th.launching[at.Stack]++
		}
	}
}

func (s *Study) findLaunchers(t *timeline.Timeline) {
	launches, left := make([]bool, len(t.Threads)), len(t.Threads)
	last := &timeline.Thread{}
	for i := 0; i < len(t.Activities) && left > 0; i++ {
		op := t.Activities[i].Op
		if op == timeline.None || op >= last.First && op < last.Last {
			continue
		}
		n := t.ThreadOf(op)
		if last = &t.Threads[n]; !launches[n] {
			launches[n] = true
			left--
		}
	}
	for i := range t.Threads {
		if launches[i] {
			s.launches[thread{t.Processes[t.Threads[i].Process].PID, t.Threads[i].TID}] = true
		}
	}
	if pid := t.Rec.Meta.Target; len(s.launches) == 0 {
		s.launches[thread{pid, pid}] = true // without a GPU the main thread is what it is about
	}
}

// Any reports whether there is anything to replay.
func (s *Study) Any() bool { return s.observed > 0 }

// Error is by how much the replay without changes is off, as a share of the observed time: what every answer rests on.
func (s *Study) Error() float64 {
	if s.observed == 0 {
		return 1
	}
	return float64(s.replayed)/float64(s.observed) - 1
}

// Learned is by how much a replay is off that knows what waited for what, but takes how long everything took from the
// other half of the recording (replay.CrossValidate): the larger of the two. Unlike Error it is not 0 by construction.
func (s *Study) Learned() float64 { return s.learned }

func (s *Study) crossValidate() float64 {
	var graphs []*replay.Graph
	for _, p := range s.parts {
		graphs = append(graphs, p.graph)
	}
	second, first := replay.CrossValidate(graphs)
	if math.Abs(first) > math.Abs(second) {
		return first
	}
	return second
}

// Unexplained is the share of the observed time that is delays far above what is usual for their kind, on the critical
// path: of them nothing is known, so that no change is known to keep or remove them.
func (s *Study) Unexplained() float64 {
	if s.observed == 0 {
		return 1
	}
	n := s.replay(func(_ *replay.Graph, p *replay.Plan) { p.Usual = true })
	return max(0, 1-float64(n)/float64(s.observed))
}

// Observed returns how long the work took that is replayed, ns.
func (s *Study) Observed() uint64 { return s.observed }

// Nodes returns how many nodes a replay has.
func (s *Study) Nodes() int {
	n := 0
	for _, p := range s.parts {
		n += p.graph.Nodes()
	}
	return n
}

// length replays all parts with changes and without what recording them cost, and returns how long they take together,
// ns.
func (s *Study) length(change func(*replay.Graph, *replay.Plan)) uint64 {
	return s.replay(func(g *replay.Graph, plan *replay.Plan) {
		change(g, plan)
		s.alonePlan(g, plan)
	})
}

// alonePlan leaves out of a plan what recording cost.
func (s *Study) alonePlan(g *replay.Graph, plan *replay.Plan) {
	s.recorder.leaveOut(g, plan)
	lessCrowded(g, plan, s.apart)
	s.recorder.yield(g, plan)
}

// replay replays all parts with changes, and returns how long they take together, ns.
func (s *Study) replay(change func(*replay.Graph, *replay.Plan)) uint64 {
	sum := uint64(0)
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		change(p.graph, plan)
		var n uint64
		n, s.scratch = p.graph.Replay(plan, s.scratch)
		sum += n
	}
	return sum
}

func unchanged(*replay.Graph, *replay.Plan) {}

func (s *Study) recordingCost() float64 { return 1 - float64(s.alone)/float64(max(s.replayed, 1)) }

// Recording is the share of the observed time that recording it cost, as far as the recording shows it.
func (s *Study) Recording() float64 { return s.recorder.cost }
