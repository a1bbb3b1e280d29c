package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/threads"
)

// waker gathers the waits that one thread ended.
type waker struct {
	Waker
	places  tally // its samples meanwhile
	reasons map[threads.Reason]uint64
	ran     uint64
	blocked uint64
}

// wakers returns who ended waits, the most important first, and what each did while
// the others waited for it: its samples, and where it was blocked itself.
func (a *analysis) wakers(list []*slept) []Waker {
	found := map[Waker]*waker{}
	var order []*waker
	for _, s := range list {
		id := Waker{PID: s.By.PID, TID: s.By.TID, Name: s.By.Name, Stranger: s.By.Stranger}
		switch {
		case s.Open || s.By.Unknown:
			id = Waker{Nobody: true}
		case s.By.Interrupt:
			id = Waker{Interrupt: true} // who ran at the time has nothing to do with it
		}
		w := found[id]
		if w == nil {
			w = &waker{Waker: id, reasons: map[threads.Reason]uint64{}}
			found[id] = w
			order = append(order, w)
		}
		w.Count++
		w.Time += s.to - s.from
		if w.TID != 0 {
			a.meanwhile(w, s)
		}
	}
	slices.SortStableFunc(order, func(x, y *waker) int { return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.TID, y.TID)) })
	out := []Waker{}
	for _, w := range order[:min(len(order), maxWakers)] {
		out = append(out, w.result())
	}
	return out
}

// meanwhile adds what the waker did during one wait.
func (a *analysis) meanwhile(w *waker, s *slept) {
	k := key{w.PID, w.TID}
	samples := a.hot.samples[k]
	i, _ := slices.BinarySearchFunc(samples, s.from, func(i int32, ts uint64) int { return cmp.Compare(a.rec.Events[i].TS, ts) })
	for ; i < len(samples) && a.rec.Events[samples[i]].TS <= s.to; i++ {
		w.places.add(a.place(a.rec.Events[samples[i]].Args[0]), 1)
	}
	t := a.byID[k]
	if t == nil {
		return
	}
	n, _ := slices.BinarySearchFunc(t.Intervals, s.from, func(iv threads.Interval, ts uint64) int { return cmp.Compare(iv.To, ts) })
	for ; n < len(t.Intervals) && t.Intervals[n].From < s.to; n++ {
		iv := &t.Intervals[n]
		if iv.To <= s.from {
			continue
		}
		d := min(iv.To, s.to) - max(iv.From, s.from)
		switch iv.State {
		case threads.Running:
			w.ran += d
		case threads.Blocked:
			w.blocked += d
			w.reasons[iv.Reason] += d
		}
	}
}

func (w *waker) result() Waker {
	out := w.Waker
	out.Running = share(w.ran, w.Time)
	out.Samples = w.places.all
	switch place := w.places.most(); {
	case w.blocked > w.Time/2:
		out.Doing = "waiting itself: " + mostReason(w.reasons).String()
	case place != "":
		out.Doing, out.AtDoing = place, w.places.count[place]
	}
	return out
}
