package gpu

import (
	"slices"

	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/timeline"
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
	meta := t.Rec.Meta.GPU
	if meta == nil {
		return nil
	}
	a := &analysis{t: t}
	s := &Summary{
		Mode: meta.Mode, Outside: t.Doubts.Outside,
		Activity: cover(t, either(t, activityOf), all(t)),
		Calls:    cover(t, either(t, callsOf), all(t)),
		Clock:    Clock(t.Clock),
		Agents:   append([]record.Agent{}, meta.Agents...),
	}
	s.Recorded = s.Activity.Time > 0
	a.devices(s)
	a.work(s)
	s.Launches = a.launches(s.Calls)
	s.Syncs = a.syncs()
	s.Overhead = a.overheads()
	s.Ranges = a.ranges()
	return s
}

// analysis holds what the parts of a summary share.
type analysis struct {
	t       *timeline.Timeline
	busy    uint64   // of all devices, ns: whenever something was recorded
	anyTime []uint64 // the same of each
	known   knownOps
	names   []string // of kernels, shortened
}

// work makes the parts that go through all activities.
func (a *analysis) work(s *Summary) {
	k, c, l, q := newKernels(a), newCopies(a), &linkCount{}, newAsked(a.t)
	for d := range a.t.Devices {
		dev := &a.t.Devices[d]
		c.device(dev)
		list := a.t.Activities[dev.First:dev.Last]
		for i := range list {
			act := &list[i]
			l.add(act)
			q.add(act)
			switch act.Kind {
			case timeline.Kernel:
				k.add(act)
			case timeline.Copy:
				c.add(act)
			case timeline.Set:
				c.set(act)
			}
		}
	}
	s.Links = l.result()
	s.Kernels, s.Graphs = k.result(s.Activity)
	s.Copies, s.Sets = c.result(s.Activity)
	s.Graphs.Launches, s.Graphs.Nodes = q.graphs, share(q.nodes, q.graphs)
	s.Latency = Latency{Coverage: s.Activity, Count: q.latency.count, P50: q.latency.percentile(50), P99: q.latency.percentile(99), Max: q.latency.max}
	both := either(a.t, func(s *timeline.Seen) timeline.Spans { return s.Activity.Both(s.Calls) })
	s.Queue = q.queue(cover(a.t, both, all(a.t)), both)
}

// linkCount counts how calls were found.
type linkCount struct {
	n   [timeline.Links]uint64
	sum float64
}

func (l *linkCount) add(act *timeline.Activity) {
	l.n[act.Link]++
	l.sum += float64(act.Confidence)
}

func (l *linkCount) result() Links {
	r := Links{ByID: l.n[timeline.ByID], ByGraph: l.n[timeline.ByGraph], ByOrder: l.n[timeline.ByOrder], None: l.n[timeline.Unlinked]}
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
