package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/threads"
)

// state gathers one activity.
type state struct {
	Activity
	threads map[key]*tally // ns by place; a sample stands for the time between two
}

func (s *state) add(k key, place string, ns uint64) {
	if s.threads[k] == nil {
		s.threads[k] = &tally{}
	}
	s.threads[k].add(place, ns)
}

// most returns the thread that spent most on it.
func (s *state) most() key {
	var best key
	for k, t := range s.threads {
		n := uint64(0)
		if b := s.threads[best]; b != nil {
			n = b.all
		}
		if t.all > n || t.all == n && (k.pid < best.pid || k.pid == best.pid && k.tid < best.tid) {
			best = k
		}
	}
	return best
}

// activities makes the rows of Summary.States: what samples and waits prove.
func (a *analysis) activities() []Activity {
	all := make([]state, threads.Activities)
	for i := range all {
		all[i].Name, all[i].threads = threads.Activity(i).String(), map[key]*tally{}
	}
	a.countSamples(all)
	for i := range a.slept {
		s := &a.slept[i]
		st := &all[s.activity]
		d := s.to - s.from
		st.Waits++
		st.Blocked += d
		st.add(key{s.PID, s.TID}, a.place(s.Stack), d)
	}
	a.holders(&all[threads.GIL])
	out := []Activity{}
	for i := 1; i < len(all); i++ { // the first is what proves nothing
		if st := &all[i]; st.Samples > 0 || st.Blocked > 0 {
			out = append(out, st.result(a))
		}
	}
	slices.SortStableFunc(out, func(x, y Activity) int {
		return cmp.Compare(y.Blocked+y.Samples*a.period(), x.Blocked+x.Samples*a.period())
	})
	return out
}

func (a *analysis) countSamples(all []state) {
	period := a.period()
	for k, list := range a.hot.samples {
		for _, i := range list {
			stack := a.rec.Events[i].Args[0]
			st := &all[a.classifier.Of(stack)]
			st.Samples++
			st.add(k, a.place(stack), period)
		}
	}
}

// period returns how much running time a sample stands for, in ns: that of all threads by their samples.
func (a *analysis) period() uint64 {
	ran := uint64(0)
	for i := range a.threads {
		ran += a.threads[i].Totals[threads.Running]
	}
	if n := a.hot.origins.Samples; n > 0 && ran > 0 {
		return ran / n
	}
	return 10_000_000 // nobody knows: about 99 Hz
}

func (s *state) result(a *analysis) Activity {
	out := s.Activity
	out.Share = share(out.Samples, a.hot.origins.Samples)
	best := s.most()
	out.TID, out.Thread = best.tid, a.names[best]
	if t := s.threads[best]; t != nil {
		out.Place = t.most()
	}
	return out
}

// holders finds who held the GIL while the thread that waited most for it did.
func (a *analysis) holders(gil *state) {
	if gil.Blocked == 0 {
		return
	}
	waiter := gil.most()
	finder := threads.NewHolders(a.rec, a.classifier)
	count, places := map[key]uint64{}, map[key]*tally{}
	for i := range a.slept {
		s := &a.slept[i]
		if s.activity != threads.GIL || (key{s.PID, s.TID}) != waiter {
			continue
		}
		h, ok := finder.Of(s.PID, s.TID, s.from, s.to)
		if !ok {
			continue
		}
		k := key{s.PID, h.TID}
		count[k] += s.to - s.from
		if places[k] == nil {
			places[k] = &tally{}
		}
		places[k].add(a.place(h.Stack), s.to-s.from)
	}
	var best key
	for k, n := range count {
		if n > count[best] || n == count[best] && k.tid < best.tid {
			best = k
		}
	}
	if best.tid != 0 {
		gil.HolderTID, gil.Holder, gil.HolderAt = best.tid, a.names[best], places[best].most()
	}
}
