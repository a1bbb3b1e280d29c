package diagnose

import (
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// Predictor says what remedies would bring to what is broken down (Work.Within). It depends on the same recording
// alone, so that a diagnosis stays a pure function of it.
type Predictor interface {
	// Together predicts the gain of several remedies together; false if it cannot.
	Together(remedies ...cause.Remedy) (Gain, bool)
	// Next returns the cause with the largest gain after a first remedy; false if none has much.
	Next(first cause.Remedy) (cause.ID, bool)
}

// apart is the share of the time by which two predicted gains must differ to be told apart: what predictions of package
// whatif are off by even where every name is right (docs/accuracy.md).
const apart = 0.05

// Bounds of what is a finding and not minor.
const (
	// leastFinding is the share of the time from which on a cause is a finding whatever its remedy would bring.
	leastFinding = 0.05
	// leastUnproven is the same for one whose remedy may bring nothing: its interval holds 1. A GPU that is busy for nine
	// tenths of the time has no such cause.
	leastUnproven = 1 - nearly
)

// predicted adds the predicted gain of the remedy of each finding.
func (a *analysis) predicted(list []ranked, predict Predictor) []ranked {
	for i := range list {
		if a.waitsIdle(list[i].id) {
			continue
		}
		list[i].Gain = a.gainOf(predict, cause.Remedy{Cause: list[i].id})
		list[i].Less = a.gainOf(predict, cause.Remedy{Cause: list[i].id, Less: true})
		list[i].Merge = a.mergeGain(predict, list[i].id)
	}
	return list
}

// gainOf returns the gain of a remedy, nil if unknown.
func (a *analysis) gainOf(predict Predictor, r cause.Remedy) *Gain {
	g, ok := predict.Together(r)
	if !ok {
		return nil
	}
	a.bounded(&g)
	return &g
}

// mergeGain returns what making one copy or kernel of many would bring, of causes whose many small ones it can be; nil
// where it is not sure to bring anything. It changes how long copies and kernels take, so that these do not bound it.
func (a *analysis) mergeGain(predict Predictor, id cause.ID) *Gain {
	switch id {
	case cause.SyncCopy, cause.HostSync, cause.LaunchOverhead:
	default:
		return nil
	}
	if g, ok := predict.Together(cause.Remedy{Cause: id, Merge: true}); ok && g.Low > 1 {
		return &g
	}
	return nil
}

// bounded keeps a gain within what the kernels allow over the whole of what was recorded, which may be more than what a
// prediction was made from: no remedy that is predicted changes them.
func (a *analysis) bounded(g *Gain) {
	most := a.total.most()
	if g.High <= most {
		return
	}
	g.High = most
	g.Low = min(g.Low, most)
	if g.Speedup >= most {
		g.Speedup = most
		g.Limit = fmt.Sprintf("the kernels, which take %.0f%% of the time as they are", 100/most)
	}
}

// demoted makes minor what is too little to be accused. What is minor and would bring less than could be measured goes.
func (a *analysis) demoted(list []ranked) []ranked {
	for i := range list {
		if f := &list[i]; f.rank == timeLost && !f.id.Busy() && f.id != cause.NoWork && f.isSmall(a.subject) {
			f.rank = leftOver
		}
	}
	return slices.DeleteFunc(list, func(f ranked) bool {
		return f.rank == leftOver && (doubtful(f) || f.Gain != nil && f.saves() < leastShare)
	})
}

// isSmall reports whether neither the cost of a finding nor what is predicted proves that it matters.
func (f *ranked) isSmall(of subject) bool {
	least := leastFinding
	switch {
	case of != aboutGPUs && of != aboutCPU:
		return false
	case f.Gain != nil && (f.Gain.Low > 1 || f.Less != nil && f.Less.Low > 1 || f.Merge != nil):
		return false
	case f.Gain != nil && of == aboutGPUs:
		least = leastUnproven
	}
	return f.Share < least
}

// ordered orders findings: by rank, and within one by the time that their remedies win back. A cause may cost much and
// hide another that would cost the same were it gone; and a remedy may win more than its cause costs, because it makes
// something else unnecessary, which is a finding of its own.
func (a *analysis) ordered(list []ranked) []ranked {
	slices.SortStableFunc(list, func(x, y ranked) int { return int(x.rank) - int(y.rank) })
	out := make([]ranked, 0, len(list))
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].rank == list[0].rank {
			n++
		}
		out = append(out, firstThings(payMost(slices.Clone(list[:n])), a.preventsGraph)...)
		list = list[n:]
	}
	return out
}

// payMost takes again and again the first of those findings that win back as much as the best, or nearly, or that may
// win back clearly more: a prediction that is not sure is no reason to put what costs more behind what costs less.
func payMost(list []ranked) []ranked {
	var out []ranked
	for len(list) > 0 {
		most := 0.0
		for i := range list {
			most = max(most, list[i].wins())
		}
		first := -1
		for i := range list {
			alike := isAlike(list[i].wins(), most) || list[i].mayWin() > most && !isAlike(list[i].mayWin(), most)
			if alike && (first < 0 || list[i].before(&list[first])) {
				first = i
			}
		}
		out = append(out, list[first])
		list = slices.Delete(list, first, first+1)
	}
	return out
}

// relative is how much of the larger of two shares the smaller one is where they cannot be told apart: small ones
// differ by less than apart whatever they are.
const relative = 0.75

// isAlike reports whether two shares of the time are too close to be distinguished.
func isAlike(x, y float64) bool {
	return math.Abs(x-y) <= apart && min(x, y) >= relative*max(x, y)
}

// surer is the difference in confidence that counts.
const surer = 0.1

// before reports whether of two findings that win back as much f comes first: it costs more, else is surer, else takes
// less to change.
func (f *ranked) before(o *ranked) bool {
	switch {
	case !isAlike(f.Share, o.Share):
		return f.Share > o.Share
	case f.Confidence >= o.Confidence+surer || o.Confidence >= f.Confidence+surer:
		return f.Confidence > o.Confidence
	case effort(f.id) != effort(o.id):
		return effort(f.id) < effort(o.id)
	}
	return f.Share > o.Share
}

// effort is how much a remedy takes: a setting of the host or of the program, a change at one place, a change to how
// the program works.
func effort(id cause.ID) int {
	switch id {
	case cause.NoCPU, cause.Throttled, cause.Disk, cause.Network, cause.Worker, cause.Allocation, cause.PageFaults:
		return 0
	case cause.HostSync,
		cause.SyncCopy,
		cause.CopyNotOverlapped,
		cause.Sleep,
		cause.GC,
		cause.Lock,
		cause.Serialization:
		return 1
	}
	return 2
}

// isExternal reports whether a cause is outside of the program's code, so that the code is not the first place to look.
func isExternal(id cause.ID) bool {
	switch id {
	case cause.NoCPU, cause.Throttled, cause.PageFaults, cause.Disk, cause.Network:
		return true
	}
	return false
}

// leastGain is the speed-up from which on a remedy is worth anything: below it, an external cause is hidden by another.
const leastGain = 1.02

// wins is the share of the time that counts for the order of a finding: what its remedy saves, but no more than it
// costs, and of an external cause whose remedy saves anything all of its cost.
func (f *ranked) wins() float64 {
	if isExternal(f.id) && (f.Gain == nil || f.Gain.Speedup >= leastGain) {
		return f.Share
	}
	return min(f.Share, f.saves())
}

// mayWin is wins at the upper end of the interval of what is predicted.
func (f *ranked) mayWin() float64 {
	if f.Gain == nil {
		return f.wins()
	}
	best := f.Gain.High
	for _, g := range []*Gain{f.Less, f.Merge} {
		if g != nil {
			best = max(best, g.High)
		}
	}
	return max(f.wins(), min(f.Share, saved(best)))
}

// saves returns the share of the time that the better remedy of a finding saves. Without a prediction it is the cost of
// the finding, which is an upper bound.
func (f *ranked) saves() float64 {
	if f.Gain == nil || f.Gain.Speedup <= 0 {
		return f.Share
	}
	best := f.Gain.Speedup
	for _, g := range []*Gain{f.Less, f.Merge} {
		if g != nil {
			best = max(best, g.Speedup)
		}
	}
	return saved(best)
}

// saved returns the share of the time that a speed-up saves.
func saved(speedup float64) float64 {
	if speedup <= 1 {
		return 0
	}
	return 1 - 1/speedup
}

// comparable is how much of what launch-overhead wins back the synchronizations have to that split the launches: where
// they win less, launching is slow with them and without.
const comparable = 0.15

// firstThings moves what prevents the remedy of launch-overhead in front of it.
func firstThings(list []ranked, prevents func(cause.ID) bool) []ranked {
	at := slices.IndexFunc(list, func(f ranked) bool { return f.id == cause.LaunchOverhead })
	if at < 0 {
		return list
	}
	for i := at + 1; i < len(list); i++ {
		if prevents(list[i].id) && (list[i].id != cause.HostSync || list[i].saves() >= comparable*list[at].wins()) {
			f := list[i]
			f.Before = list[at].Cause
			list = slices.Insert(slices.Delete(list, i, i+1), at, f)
			at++
		}
	}
	return list
}
