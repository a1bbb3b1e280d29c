package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// wakers are those who ended the waits of one row.
type wakers struct {
	a     *analysis
	found map[wakerKey]*waker
	order []*waker
	last  *waker
}

// wakerKey identifies a waker: no one, interrupts, or a thread.
type wakerKey struct {
	pid, tid          uint32
	nobody, interrupt bool
}

// waker gathers the waits that one thread ended.
type waker struct {
	wakerKey
	count, time uint64
	places      tally // its samples meanwhile
	reasons     [threads.Reasons]uint64
	ran         uint64
	blocked     uint64

	self    *threads.Thread // nil where nothing is known of it
	samples []int32         // of it
	at      int             // near which of its intervals the last wait began
	sample  int             // the same for its samples
}

func newWakers(a *analysis) *wakers { return &wakers{a: a, found: map[wakerKey]*waker{}} }

// wake deals the waits out to those who ended them, for rows that are asked for.
func (a *analysis) wake(rows []*row) {
	for i := range a.threads {
		intervals := a.threads[i].Intervals
		for _, s := range a.slept[i] {
			r := rows[s.row]
			if r.into != nil {
				r = r.into
			}
			if r.wakers != nil {
				r.wakers.add(&intervals[s.interval])
			}
		}
	}
}

// add notes one wait.
func (ws *wakers) add(iv *threads.Interval) {
	w := ws.of(wakerOf(&ws.a.rec.Events[iv.Wait]))
	w.count++
	w.time += iv.Dur()
	w.meanwhile(ws.a, iv.From, iv.To)
}

func wakerOf(e *event.Event) wakerKey {
	switch {
	case e.Flags&event.Open != 0 || e.Args[0] == 0:
		return wakerKey{nobody: true}
	case e.Flags&event.FromIRQ != 0:
		return wakerKey{interrupt: true} // who ran at the time has nothing to do with it
	case e.Args[1] == 0:
		return wakerKey{nobody: true} // that it was woken then is from the kernel's account, which has no waker
	}
	return wakerKey{pid: uint32(e.Args[1] >> 32), tid: uint32(e.Args[1])}
}

func (ws *wakers) of(k wakerKey) *waker {
	if ws.last != nil && ws.last.wakerKey == k {
		return ws.last
	}
	w := ws.found[k]
	if w == nil {
		w = &waker{wakerKey: k}
		if k.tid != 0 {
			id := key{k.pid, k.tid}
			w.self = ws.a.byID[id]
			if h := ws.a.hot.byThread[id]; h != nil {
				w.samples = h.samples
			}
		}
		ws.found[k] = w
		ws.order = append(ws.order, w)
	}
	ws.last = w
	return w
}

// result returns who ended waits, the most important first, and what each did while
// the others waited for it: its samples, and where it was blocked itself.
func (ws *wakers) result() []Waker {
	slices.SortStableFunc(ws.order,
		func(x, y *waker) int { return cmp.Or(cmp.Compare(y.time, x.time), cmp.Compare(x.tid, y.tid)) })
	out := []Waker{}
	for _, w := range ws.order[:min(len(ws.order), maxWakers)] {
		out = append(out, w.result(ws.a))
	}
	return out
}

// meanwhile adds what the waker did during one wait.
func (w *waker) meanwhile(a *analysis, from, to uint64) {
	if len(w.samples) > 0 {
		all := a.events.Samples
		w.sample = threads.Gallop(len(w.samples), w.sample, func(i int) bool { return all[w.samples[i]].TS < from })
		for i := w.sample; i < len(w.samples) && all[w.samples[i]].TS <= to; i++ {
			w.places.add(a.stacks.place(a.stacks.number(uint64(all[w.samples[i]].Stack))), 1)
		}
	}
	if w.self == nil {
		return
	}
	list := w.self.Intervals
	w.at = threads.Gallop(len(list), w.at, func(i int) bool { return list[i].To <= from })
	for i := w.at; i < len(list) && list[i].From < to; i++ {
		iv := &list[i]
		d := min(iv.To, to) - max(iv.From, from)
		switch iv.State {
		case threads.Running:
			w.ran += d
		case threads.Blocked:
			w.blocked += d
			w.reasons[iv.Reason] += d
		}
	}
}

func (w *waker) result(a *analysis) Waker {
	out := Waker{
		Nobody:    w.nobody,
		Interrupt: w.interrupt,
		Count:     w.count,
		Time:      w.time,
		Running:   share(w.ran, w.time),
		Samples:   w.places.all,
	}
	if !w.nobody && !w.interrupt {
		who := a.details.Who(w.pid, w.tid)
		out.PID, out.TID, out.Name, out.OtherThread = who.PID, who.TID, who.Name, who.OtherThread
		if out.Name == "" {
			out.Name = a.names[key{w.pid, w.tid}]
		}
	}
	switch place := w.places.most(a.stacks.words); {
	case w.blocked > w.time/2:
		out.Doing = "waiting itself: " + w.mostReason().String()
	case place != 0:
		out.Doing, out.AtDoing = a.stacks.words.text(place), w.places.count[place]
	}
	return out
}

// mostReason returns the reason of most of its own waits; of equals the first.
func (w *waker) mostReason() threads.Reason {
	best := threads.None
	for r, ns := range w.reasons {
		if ns > w.reasons[best] {
			best = threads.Reason(r)
		}
	}
	return best
}
