package diagnose

import (
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Busiest is the thread of a process that computed most in some intervals, or would have with a CPU.
type Busiest struct {
	Thread  string         // "asyncio (4711)"; "": none ran
	Running float64        // share of the stretches for which it was on a CPU or waited for one, as far as that is known
	Place   string         // "encode (infer.py:12)": where most of its samples are; "": too few are in one place
	Starved timeline.Spans // of the stretches: it waited for a CPU, or another thread of the process did and none had one
}

const (
	leastBusySamples = 5   // at a place that is named
	leastBusyShare   = 0.3 // of the samples of the thread
)

// Busiest returns what a process did in some intervals, as far as scheduling and samples show it.
func (w *Work) Busiest(list []threads.Thread, pid uint32, within timeline.Spans) Busiest {
	var best *threads.Thread
	most, seen := uint64(0), uint64(0)
	for i := range list {
		th := &list[i]
		if th.PID != pid {
			continue
		}
		if n, known := ran(th, within); n > most {
			best, most, seen = th, n, known
		}
	}
	if best == nil {
		return Busiest{}
	}
	out := Busiest{
		Thread:  w.a.who(threadKey(pid, best.TID)),
		Running: float64(most) / float64(seen),
		Starved: starved(list, best, within),
	}
	functions, samples := map[code]int{}, 0
	lines := map[code]int32{}
	for i := range w.a.t.Index.Samples {
		s := &w.a.t.Index.Samples[i]
		if s.PID != pid || s.TID != best.TID {
			continue
		}
		if at := within.At(s.TS); at == len(within) || within[at].From > s.TS {
			continue
		}
		samples++
		if n := w.a.places.of(uint64(s.Stack)); n != 0 {
			of := w.a.places.list[n].function()
			if functions[of]++; functions[of] == 1 {
				lines[of] = n
			}
		}
	}
	var hot code
	for of, n := range functions {
		if n > functions[hot] || n == functions[hot] && of.name < hot.name {
			hot = of
		}
	}
	if n := functions[hot]; n >= leastBusySamples && float64(n) >= leastBusyShare*float64(samples) {
		out.Place = w.a.places.list[lines[hot]].text()
	}
	return out
}

// starved returns when a thread waited for a CPU, or another one of its process did and none of them had one: the thread
// may wait for a lock that the other holds.
func starved(list []threads.Thread, of *threads.Thread, within timeline.Spans) timeline.Spans {
	var own, waiting, running []timeline.Span
	for i := range list {
		th := &list[i]
		if th.PID != of.PID {
			continue
		}
		for k := range th.Intervals {
			iv := &th.Intervals[k]
			span := timeline.Span{From: iv.From, To: iv.To}
			switch {
			case iv.State == threads.Running:
				running = append(running, span)
			case iv.State == threads.Runnable && th == of:
				own = append(own, span)
			case iv.State == threads.Runnable:
				waiting = append(waiting, span)
			}
		}
	}
	others := timeline.Join(waiting).Without(timeline.Join(running))
	return timeline.Join(append(own, others...)).Both(within)
}

// ran returns for how many ns a thread was on a CPU in some stretches, or waited for one, and for how many what it did
// is known.
func ran(th *threads.Thread, within timeline.Spans) (ran, known uint64) {
	at := 0
	for i := range th.Intervals {
		iv := &th.Intervals[i]
		for at < len(within) && within[at].To <= iv.From {
			at++
		}
		n := uint64(0)
		for k := at; k < len(within) && within[k].From < iv.To; k++ {
			n += min(iv.To, within[k].To) - max(iv.From, within[k].From)
		}
		switch iv.State {
		case threads.Running, threads.Runnable:
			ran, known = ran+n, known+n
		case threads.Blocked:
			known += n
		}
	}
	return ran, known
}
