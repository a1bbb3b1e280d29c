package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// observe finds the part of the window in which calls could be seen.
func observe(t *timeline.Timeline) Window {
	w := Window{
		From:         t.From,
		To:           t.To,
		WallFrom:     t.Rec.Meta.WallFrom,
		Length:       t.To - t.From,
		ObservedFrom: t.From,
		ObservedTo:   t.To,
	}
	first, last, alive := uint64(0), uint64(0), len(t.Processes) == 0
	for i := range t.Processes {
		p := &t.Processes[i]
		if p.Probed != 0 && (first == 0 || p.Probed < first) {
			first = p.Probed
		}
		alive = alive || p.Died == 0
		last = max(last, p.Died)
	}
	if first != 0 {
		w.ObservedFrom = min(max(first, w.From), w.To)
	}
	if !alive {
		w.ObservedTo = min(max(last, w.From), w.To)
	}
	// Whatever was recorded was observed, also where the tables say otherwise.
	for i := range t.Threads {
		op := &t.Ops[t.Threads[i].First]
		start, _ := t.Clip(op)
		w.ObservedFrom = min(w.ObservedFrom, start)
		_, end := t.Clip(&t.Ops[t.Threads[i].Last-1])
		w.ObservedTo = max(w.ObservedTo, end)
	}
	w.ObservedTo = max(w.ObservedTo, w.ObservedFrom)
	w.Observed = w.ObservedTo - w.ObservedFrom
	return w
}

func (a *analysis) processes() []Process {
	out := make([]Process, 0, len(a.t.Processes))
	for i := range a.t.Processes {
		p := &a.t.Processes[i]
		out = append(out, Process{
			PID: p.PID, NSPID: p.NSPID, Parent: p.Parent, Comm: p.Comm, Cmdline: p.Cmdline,
			Born: p.Born, Probed: p.Probed, Died: p.Died, ExitCode: p.ExitCode, Count: a.perProc[i],
		})
	}
	return out
}

// Libraries puts the mappings of one file in several processes together. The
// probes are the same for each; an error in one process is shown for the file.
func Libraries(in []recording.Library) []Library {
	type key struct {
		path  string
		inode uint64
	}
	place := map[key]int{}
	out := []Library{}
	for _, l := range in {
		k := key{l.Path, l.Inode}
		i, ok := place[k]
		if !ok {
			i = len(out)
			place[k] = i
			out = append(out, Library{
				Path: l.Path, Inode: l.Inode, BuildID: l.BuildID, Kind: l.Kind,
				Found: l.Found, Points: l.Points, Cheap: l.Cheap, Mode: l.Mode, Error: l.Error,
			})
		}
		out[i].Error = cmp.Or(out[i].Error, l.Error)
		if l.Points > out[i].Points {
			out[i].Found, out[i].Points, out[i].Cheap, out[i].Mode = l.Found, l.Points, l.Cheap, l.Mode
		}
		if !slices.Contains(out[i].PIDs, l.PID) {
			out[i].PIDs = append(out[i].PIDs, l.PID)
		}
	}
	return out
}

func sortThreads(in []thread) []thread {
	out := append([]thread{}, in...)
	slices.SortStableFunc(out, func(x, y thread) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(y.Time, x.Time))
	})
	return out
}

// share returns part of whole, 0 where there is no whole.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// perSecond returns the rate of n in a stretch of ns.
func perSecond(n, ns uint64) float64 { return share(n, ns) * 1e9 }
