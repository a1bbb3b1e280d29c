package gpu

import (
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of the lists in a Summary, which is printed and sent around.
const (
	maxKernels = 200
	maxStreams = 200
	maxSyncs   = 100
	maxRanges  = 100
)

// Summarize reads the GPU's side of a timeline; nil where the recording has none.
func Summarize(t *timeline.Timeline) *Summary {
	return SummarizeWith(t, func(int, int32, int32) {})
}

// SummarizeWith is Summarize that also calls a function with each batch of a device's activities, while they and their
// events are in the CPU's cache.
func SummarizeWith(t *timeline.Timeline, also func(device int, first, last int32)) *Summary {
	meta := t.Rec.Meta.GPU
	if meta == nil {
		return nil
	}
	a := &analysis{t: t, also: also}
	s := &Summary{
		Mode: meta.Mode, Outside: t.Doubts.Outside,
		Activity: cover(t, either(t, activityOf), all(t)),
		Calls:    cover(t, either(t, callsOf), all(t)),
		Clock:    clock(t.Clock),
		Agents:   append([]recording.Agent{}, meta.Agents...),
	}
	s.Recorded = s.Activity.Time > 0
	w := &work{kernels: newKernels(a), copies: newCopies(a), asked: newAsked(a.t)}
	a.devices(s, w)
	var beside sync.WaitGroup
	var queue queue
	beside.Go(func() { queue = w.asked.result(a.t) }) // nothing else needs what it reads from now on
	w.result(s)
	s.Peers = peers(t)
	s.Launches = a.launches(s.Calls)
	s.Syncs = a.syncs()
	s.Overhead = a.overheads()
	s.Ranges = a.ranges()
	beside.Wait()
	s.Queue = queue
	return s
}

// analysis holds what the parts of a summary share.
type analysis struct {
	t       *timeline.Timeline
	busy    uint64   // of all devices, ns: whenever something was recorded
	anyTime []uint64 // the same of each
	known   knownOps
	names   []string // of kernels, shortened
	also    func(device int, first, last int32)
}

// work gathers what is said of all activities.
type work struct {
	kernels *kernels
	copies  *copies
	asked   *asked
	links   linkCount
}

// add adds the activity at index i. The activities of a device come in the order of their beginnings.
func (w *work) add(i int32, act *timeline.Activity) {
	w.links.add(act.Link, w.asked.t.Confidence(i))
	w.asked.add(i, act)
	w.copies.before(act.Start)
	switch act.Kind {
	case timeline.Kernel:
		w.kernels.add(act)
		w.copies.kernel(act)
	case timeline.Copy:
		if !act.Exchange { // those are in the collectives
			w.copies.add(act)
		}
	case timeline.Set:
		w.copies.set(act)
	}
}

func (w *work) result(s *Summary) {
	q := w.asked
	s.Links = w.links.result()
	s.Kernels, s.Graphs = w.kernels.result(s.Activity)
	s.Copies, s.Sets = w.copies.result(s.Activity)
	s.Graphs.Launches, s.Graphs.Nodes = q.graphs, share(q.nodes, q.graphs)
	s.Latency = latency{
		Coverage: s.Activity,
		Count:    q.latency.Count,
		P50:      q.latency.Percentile(50),
		P99:      q.latency.Percentile(99),
		Max:      q.latency.Max,
	}
}

// linkCount counts how calls were found.
type linkCount struct {
	n   [timeline.Links]uint64
	sum float64
}

func (l *linkCount) add(how timeline.Link, confidence float32) {
	l.n[how]++
	l.sum += float64(confidence)
}

func (l *linkCount) result() Links {
	r := Links{
		ByID:    l.n[timeline.ByID],
		ByGraph: l.n[timeline.ByGraph],
		ByOrder: l.n[timeline.ByOrder],
		None:    l.n[timeline.Unlinked],
	}
	found := r.ByID + r.ByGraph + r.ByOrder
	r.Activities = found + r.None
	r.Share = share(found, r.Activities)
	if found > 0 {
		r.Confidence = l.sum / float64(found)
	}
	return r
}

// top sorts rows and keeps the first n of them.
func top[T any](rows []T, n int, compare func(x, y *T) int) []T {
	slices.SortStableFunc(rows, func(x, y T) int { return compare(&x, &y) })
	return append([]T{}, rows[:min(len(rows), n)]...)
}
