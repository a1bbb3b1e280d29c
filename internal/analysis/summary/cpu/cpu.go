package cpu

import (
	"cmp"
	"maps"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of the lists in a Summary, which is printed and sent around.
const (
	maxFunctions = 100
	maxWaits     = 100
	maxTakers    = 20
	maxWakers    = 5
)

// Summarize reads a recording. A recording without samples or scheduling events has
// an empty Summary. Its time and memory grow with the number of events: a full
// recorder of 1.5 million takes some tenths of a second and twice its own size.
func Summarize(rec *recording.Recording) *Summary {
	t := timeline.Build(rec)
	return SummarizeThreads(t, t.Index.Threads())
}

// SummarizeThreads is Summarize where the timeline and the threads of the recording are known already; it leaves them
// as they are.
func SummarizeThreads(t *timeline.Timeline, scheduled []threads.Thread) *Summary {
	rec := t.Rec
	a := &analysis{
		rec:      rec,
		timeline: t,
		events:   t.Index,
		threads:  scheduled,
		details:  t.Index.Waits(),
		stacks:   newStacks(rec),
	}
	a.index()
	s := &Summary{Length: a.length(), CPUs: rec.Meta.Host.CPUs, Scheduled: len(a.threads) > 0}
	a.hot = newHot(a)
	a.hot.summarize(s)
	s.Threads = a.states()
	s.Waits, s.Summed = a.waits(), a.summed()
	s.States = a.activities()
	s.Pressure = a.pressure()
	return s
}

// analysis holds what the parts of a summary share.
type analysis struct {
	rec      *recording.Recording
	timeline *timeline.Timeline
	events   *threads.Index
	threads  []threads.Thread
	byID     map[key]*threads.Thread
	names    map[key]string
	details  *threads.Waits
	stacks   *stacks
	hot      *hot
	slept    [][]slept // every blocked interval, by index into threads
}

// key tells threads apart.
type key struct{ pid, tid uint32 }

func (a *analysis) index() {
	a.byID, a.names = map[key]*threads.Thread{}, map[key]string{}
	for _, t := range a.rec.Meta.Threads {
		a.names[key{t.PID, t.TID}] = t.Name
	}
	for _, p := range a.rec.Meta.Processes { // of one that lived shortly nobody read the names of threads
		if k := (key{p.PID, p.PID}); a.names[k] == "" {
			a.names[k] = p.Comm
		}
	}
	for i := range a.threads {
		t := &a.threads[i]
		a.byID[key{t.PID, t.TID}] = t
	}
	a.slept = a.sleeps()
	a.spread()
}

func (a *analysis) length() uint64 { return max(a.rec.Meta.From, a.rec.Meta.To) - a.rec.Meta.From }

// states makes the rows of threads: of those with scheduling events, and of those
// that were only sampled.
func (a *analysis) states() []Thread {
	out := []Thread{}
	for i := range a.threads {
		t := &a.threads[i]
		row := Thread{
			PID: t.PID, TID: t.TID, Name: a.names[key{t.PID, t.TID}], Running: t.Totals[threads.Running],
			Runnable: t.Totals[threads.Runnable],
			Blocked:  t.Totals[threads.Blocked], Absent: t.Totals[threads.Absent],
			Voluntary: t.Switches.Voluntary, Involuntary: t.Switches.Involuntary, Migrations: t.Switches.Migrations,
		}
		row.Node, row.NodeShare = a.home(t)
		if all := reasonsOf(t); mainReason(all) != threads.None {
			r := mainReason(all)
			row.Reason, row.ReasonNS = r.String(), all[r]
		}
		row.GIL = a.gil(i)
		out = append(out, row)
	}
	known := len(out)
	for k := range a.hot.byThread {
		if a.byID[k] == nil {
			out = append(out, Thread{PID: k.pid, TID: k.tid, Name: a.names[k], Node: -1})
		}
	}
	slices.SortFunc(out[known:],
		func(x, y Thread) int { return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID)) })
	polling := a.polling()
	for i := range out {
		k := key{out[i].PID, out[i].TID}
		out[i].Polling = polling[k]
		if h := a.hot.byThread[k]; h != nil {
			out[i].Samples, out[i].Hottest = h.places.all, a.most(&h.places)
		}
	}
	slices.SortStableFunc(out, func(x, y Thread) int {
		return cmp.Or(cmp.Compare(y.Running+y.Runnable, x.Running+x.Runnable), cmp.Compare(y.Samples, x.Samples))
	})
	return out
}

// reasonsOf returns for how long a thread was blocked by reason, short waits that were summed included.
func reasonsOf(t *threads.Thread) map[threads.Reason]uint64 {
	if len(t.Summed.Reasons) == 0 {
		return t.Reasons
	}
	all := maps.Clone(t.Reasons)
	for r, ns := range t.Summed.Reasons {
		all[r] += ns
	}
	return all
}

// mainReason returns the reason of most of the time; of equals the first.
func mainReason(list map[threads.Reason]uint64) threads.Reason {
	best := threads.None
	for r := threads.None; r < threads.Reasons; r++ {
		if list[r] > list[best] {
			best = r
		}
	}
	return best
}

func (a *analysis) summed() uint64 {
	total := uint64(0)
	for i := range a.threads {
		total += a.threads[i].Summed.Blocked + a.threads[i].Summed.Runnable
	}
	return total
}

func (a *analysis) most(t *tally) string { return a.stacks.words.text(t.most(a.stacks.words)) }
