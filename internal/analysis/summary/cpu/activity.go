package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// state gathers one activity.
type state struct {
	Activity
	threads map[key]*tally // ns by place; a sample stands for the time between two
}

func (s *state) add(k key, place word, ns uint64) {
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
	a.eachSleep(func(t *threads.Thread, s *slept, iv *threads.Interval) {
		if s.activity == threads.Other {
			return
		}
		st := &all[s.activity]
		st.Waits++
		st.Blocked += iv.Dur()
		st.add(key{t.PID, t.TID}, a.stacks.place(s.stack), iv.Dur())
	})
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
	for k, h := range a.hot.byThread {
		for _, i := range h.samples {
			at := a.stacks.of(a.stacks.number(uint64(a.events.Samples[i].Stack)))
			if at.activity != threads.Other {
				st := &all[at.activity]
				st.Samples++
				st.add(k, at.place, period)
			}
		}
	}
}

// period returns how much running time a sample stands for, in ns: that of all threads by their samples.
func (a *analysis) period() uint64 {
	ran := uint64(0)
	for i := range a.threads {
		if !a.threads[i].IsRecorder() {
			ran += a.threads[i].Totals[threads.Running]
		}
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
		out.Place = a.most(t)
	}
	return out
}

// holders finds who held the GIL while the thread that waited most for it did.
func (a *analysis) holders(gil *state) {
	if gil.Blocked == 0 {
		return
	}
	waiter := gil.most()
	finder := a.events.Holders(a.stacks.classifier)
	places := map[key]*tally{}
	a.eachSleep(func(t *threads.Thread, s *slept, iv *threads.Interval) {
		if s.activity != threads.GIL || (key{t.PID, t.TID}) != waiter {
			return
		}
		h, ok := finder.Of(t.PID, t.TID, iv.From, iv.To)
		if !ok {
			return
		}
		k := key{t.PID, h.TID}
		if places[k] == nil {
			places[k] = &tally{}
		}
		places[k].add(a.stacks.place(a.stacks.number(h.Stack)), iv.Dur())
	})
	best, most := key{}, &tally{}
	for k, t := range places {
		if t.all > most.all || t.all == most.all && k.tid < best.tid {
			best, most = k, t
		}
	}
	if best.tid != 0 {
		gil.HolderTID, gil.Holder, gil.HolderAt = best.tid, a.names[best], a.most(most)
	}
}
