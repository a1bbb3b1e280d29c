package cpu

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// pressure summarizes the pressure of the host and the cgroup.
func (a *analysis) pressure() Pressure {
	p := Pressure{Takers: []taker{}, GPUNode: -1}
	takers := map[takerKey]*taker{}
	for i := range a.threads {
		t := &a.threads[i]
		if t.IsRecorder() {
			continue
		}
		p.Voluntary += t.Switches.Voluntary
		p.Involuntary += t.Switches.Involuntary
		p.Migrations += t.Switches.Migrations
		p.Runnable += t.Totals[threads.Runnable]
		p.Ran += t.Totals[threads.Running]
		p.Crossings += t.Switches.Crossings
		for n := range t.Intervals {
			if iv := &t.Intervals[n]; iv.State == threads.Runnable && iv.Wait >= 0 {
				note(takers, &a.rec.Events[iv.Wait], iv.Dur())
			}
		}
	}
	p.Share = share(p.Runnable, p.Runnable+p.Ran)
	for k, t := range takers {
		who := a.details.Who(k.pid, k.tid)
		if who.Own || threads.IsRecorder(who.Name) {
			p.OwnTime += t.Time
			p.OwnCount += t.Count
			continue
		}
		t.PID, t.TID, t.Name, t.OtherThread, t.Throttled = who.PID, who.TID, who.Name, who.OtherThread, k.throttled
		p.Takers = append(p.Takers, *t)
	}
	slices.SortFunc(p.Takers, func(x, y taker) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID))
	})
	p.Takers = p.Takers[:min(len(p.Takers), maxTakers)]
	a.counters(&p)
	a.nodes(&p)
	return p
}

// takerKey identifies who took the CPU; throttled is no one.
type takerKey struct {
	pid, tid  uint32
	throttled bool
}

// note notes who took the CPU in this event, if anybody did.
func note(takers map[takerKey]*taker, e *event.Event, d uint64) {
	if e.Flags&event.Preempted == 0 || e.Flags&event.Mark != 0 {
		return
	}
	k := takerKey{pid: uint32(e.Args[1] >> 32), tid: uint32(e.Args[1]), throttled: e.Args[1] == 0}
	t := takers[k]
	if t == nil {
		t = &taker{}
		takers[k] = t
	}
	t.Count++
	t.Time += d
}

// counters adds the differences of counters over the window.
func (a *analysis) counters(p *Pressure) {
	list := a.rec.Meta.Pressure
	if len(list) == 0 {
		return
	}
	last := list[len(list)-1]
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
	p.Known = true
	grown := func(counter func(*recording.Pressure) uint64) uint64 {
		now, then := at(list, a.rec.Meta.To, counter), at(list, a.rec.Meta.From, counter)
		return now - min(now, then) // a counter of another cgroup may be lower
	}
	p.Throttled = grown(func(s *recording.Pressure) uint64 { return s.Throttled })
	p.Periods = grown(func(s *recording.Pressure) uint64 { return s.Periods })
	p.MemoryStall = grown(func(s *recording.Pressure) uint64 { return s.MemoryStall })
	p.MajorFaults = grown(func(s *recording.Pressure) uint64 { return s.MajorFaults })
}

// at returns what a counter stood at then: between two readings on the line through them,
// outside of them what the nearest one says. Readings are a second apart, which is long
// beside a short window.
func at(list []recording.Pressure, ts uint64, counter func(*recording.Pressure) uint64) uint64 {
	i, _ := slices.BinarySearchFunc(list, ts,
		func(s recording.Pressure, ts uint64) int { return cmp.Compare(s.TS, ts) })
	switch {
	case i == 0:
		return counter(&list[0])
	case i == len(list):
		return counter(&list[i-1])
	}
	x, y := &list[i-1], &list[i]
	before, after := counter(x), counter(y)
	if ts <= x.TS || y.TS < ts { // they are in no order
		return before
	}
	return before + uint64(float64(ts-x.TS)/float64(y.TS-x.TS)*float64(after-min(after, before))+0.5)
}
