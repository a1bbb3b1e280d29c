package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/threads"
)

// slept is one time that a thread was blocked.
type slept struct {
	threads.Wait
	from, to uint64 // the part of it that lies in the window
	activity threads.Activity
}

// sleeps gathers every blocked interval, in the order of threads and time.
func (a *analysis) sleeps() []slept {
	n := 0
	for i := range a.threads {
		for k := range a.threads[i].Intervals {
			if a.threads[i].Intervals[k].State == threads.Blocked {
				n++
			}
		}
	}
	out := make([]slept, 0, n) // there can be a million: growing copies them all
	for i := range a.threads {
		for _, iv := range a.threads[i].Intervals {
			if iv.State != threads.Blocked {
				continue
			}
			if w, ok := a.details.Of(iv); ok {
				out = append(out, slept{Wait: w, from: iv.From, to: iv.To, activity: a.classifier.Of(w.Stack)})
			}
		}
	}
	a.spread(out)
	return out
}

// futex is one lock or condition of a process.
type futex struct {
	pid  uint32
	text string
}

// spread gives waits whose stack tells nothing the activity of those at the same futex
// whose stack does: native callers are known of some waits only, and a futex that is
// the GIL once is the GIL always.
func (a *analysis) spread(list []slept) {
	votes, telling := map[futex]int{}, map[uint64]bool{}
	for i := range list {
		w := &list[i]
		if _, ok := telling[w.Stack]; !ok {
			telling[w.Stack] = hasCallers(threads.Frames(a.rec, w.Stack))
		}
		switch {
		case w.Reason != threads.Futex || !telling[w.Stack]:
		case w.activity == threads.GIL:
			votes[futex{w.PID, w.Text}]++
		default:
			votes[futex{w.PID, w.Text}]--
		}
	}
	for i := range list {
		if w := &list[i]; w.Reason == threads.Futex && !telling[w.Stack] && votes[futex{w.PID, w.Text}] > 0 {
			w.activity = threads.GIL
		}
	}
}

// hasCallers says whether a stack has native frames beside the one on top.
func hasCallers(frames []record.Frame) bool {
	n := 0
	for i := range frames {
		if frames[i].Kind == record.NativeFrame {
			n++
		}
	}
	return n > 1
}

// group is what waits of one row have in common.
type group struct {
	key
	reason   threads.Reason
	activity threads.Activity
	place    string
	object   string // of files; futexes are told apart by place
}

// waits makes the rows of Summary.Waits.
func (a *analysis) waits() []Wait {
	groups := map[group][]*slept{}
	for i := range a.slept {
		s := &a.slept[i]
		g := group{key: key{s.PID, s.TID}, reason: s.Reason, activity: s.activity, place: a.place(s.Stack)}
		if s.Reason != threads.Futex {
			g.object = s.Text
		}
		if s.activity == threads.GIL {
			g.place = "" // any Python code may have to wait for it: one row of a thread is enough
		}
		groups[g] = append(groups[g], s)
	}
	a.adopt(groups)
	type row struct {
		wait Wait
		list []*slept
	}
	rows := make([]row, 0, len(groups))
	for g, list := range groups {
		rows = append(rows, row{a.wait(g, list), list})
	}
	slices.SortFunc(rows, func(i, j row) int {
		x, y := &i.wait, &j.wait
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID),
			cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Place, y.Place), cmp.Compare(x.Text, y.Text))
	})
	out := []Wait{}
	for i := range rows[:min(len(rows), maxWaits)] {
		rows[i].wait.By = a.wakers(rows[i].list)
		out = append(out, rows[i].wait)
	}
	return out
}

// adopt adds waits without a stack to the one row of the same thread, reason and
// object that has a place, if there is just one.
func (a *analysis) adopt(groups map[group][]*slept) {
	with := map[group][]group{}
	for g := range groups {
		if g.place != "" && g.activity != threads.GIL {
			bare := g
			bare.place = ""
			with[bare] = append(with[bare], g)
		}
	}
	for bare, rows := range with {
		if lost := groups[bare]; lost != nil && len(rows) == 1 {
			groups[rows[0]] = append(groups[rows[0]], lost...)
			delete(groups, bare)
		}
	}
}

func (a *analysis) wait(g group, list []*slept) Wait {
	slices.SortStableFunc(list, func(x, y *slept) int { return cmp.Compare(x.from, y.from) })
	w := Wait{PID: g.pid, TID: g.tid, Thread: a.names[g.key], Reason: g.reason.String(), Place: g.place}
	if g.activity != threads.Other {
		w.Activity = g.activity.String()
	}
	var places tally
	for _, s := range list {
		d := s.to - s.from
		places.add(a.place(s.Stack), d)
		w.Count++
		w.Time += d
		if d > w.Longest || w.Text == "" {
			w.Longest, w.Text = max(w.Longest, d), s.Text
		}
	}
	if g.activity == threads.GIL {
		w.Place = places.most()
	}
	w.Share = share(w.Time, a.length())
	return w
}
