package cpu

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/threads"
)

// pressure says what the host and the cgroup did.
func (a *analysis) pressure() Pressure {
	p := Pressure{Takers: []Taker{}, GPUNode: -1}
	ran := uint64(0)
	takers := map[Taker]*Taker{}
	for i := range a.threads {
		t := &a.threads[i]
		p.Voluntary += t.Switches.Voluntary
		p.Involuntary += t.Switches.Involuntary
		p.Migrations += t.Switches.Migrations
		p.Runnable += t.Totals[threads.Runnable]
		ran += t.Totals[threads.Running]
		for _, iv := range t.Intervals {
			if iv.State != threads.Runnable || iv.Wait < 0 || a.rec.Events[iv.Wait].Flags&event.Preempted == 0 {
				continue // the details of a wait cost more than all the rest
			}
			if w, ok := a.details.Of(iv); ok && w.Preempted {
				note(takers, &w, iv.Dur())
			}
		}
	}
	p.Share = share(p.Runnable, p.Runnable+ran)
	for _, t := range takers {
		p.Takers = append(p.Takers, *t)
	}
	slices.SortFunc(p.Takers, func(x, y Taker) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID))
	})
	p.Takers = p.Takers[:min(len(p.Takers), maxTakers)]
	a.counters(&p)
	return p
}

func note(takers map[Taker]*Taker, w *threads.Wait, d uint64) {
	id := Taker{PID: w.By.PID, TID: w.By.TID, Name: w.By.Name, Stranger: w.By.Stranger}
	if w.Throttled {
		id = Taker{Throttled: true}
	}
	t := takers[id]
	if t == nil {
		row := id
		t = &row
		takers[id] = t
	}
	t.Count++
	t.Time += d
}

// counters takes the differences between the first and the last reading of the window.
func (a *analysis) counters(p *Pressure) {
	list := a.rec.Meta.Pressure
	if len(list) == 0 {
		return
	}
	first, last := list[0], list[len(list)-1]
	p.GPUNode, p.Pages = last.GPUNode, maps.Clone(last.RemotePages)
	total, local := uint64(0), p.Pages[strconv.Itoa(p.GPUNode)]
	for _, n := range p.Pages {
		total += n
	}
	if p.GPUNode >= 0 && len(p.Pages) > 0 {
		p.RemoteShare = share(total-local, total)
	}
	if len(list) < 2 {
		return
	}
	since := func(now, then uint64) uint64 { return now - min(now, then) } // a counter of another cgroup may be lower
	p.Known = true
	p.Throttled, p.Periods = since(last.Throttled, first.Throttled), since(last.Periods, first.Periods)
	p.MemoryStall, p.MajorFaults = since(last.MemoryStall, first.MemoryStall), since(last.MajorFaults, first.MajorFaults)
}
