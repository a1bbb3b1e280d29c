package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// A collective operation ends when its last rank has taken part, at nearly one time on all of them; it begins on each
// when that one is ready. So the rank that begins last is the one that the others wait for, and the others wait from
// their own beginning until its (as in AMD's TraceLens: wait = the latest start - the own start).

// arrivals is who came last to the collectives in which all processes took part.
type arrivals struct {
	processes []int32  // indexes into Timeline.Processes
	sets      int      // collectives that were found on all
	last      []int    // by process: how often it came last
	held      []uint64 // by process: ns for which the others waited for it, summed over them
	wait      uint64   // ns for which processes waited for the last one, summed over processes
}

const (
	// leastSets is in how many collectives a rank must have been compared with the others.
	leastSets = 5
	// endsWithin is by how much the ends of one collective differ on its ranks, ns, and endsPart the part of its length:
	// what differs more is not the same one, or the clocks of the hosts do not fit.
	endsWithin = 100_000
	endsPart   = 4
)

// arrived compares when the processes began each collective; nil where there are not two that communicate.
func (a *analysis) arrived() *arrivals {
	talks := a.t.Communicates()
	if talks == nil {
		return nil
	}
	lists := make([][]timeline.Activity, len(a.t.Processes))
	for i := range a.t.Activities {
		act := &a.t.Activities[i]
		if k := a.t.KernelIndex(act); k != timeline.None && talks[k] && act.Start >= a.within.From && act.End <= a.within.To {
			p := a.t.Streams[act.Stream].Process
			lists[p] = append(lists[p], *act)
		}
	}
	out := &arrivals{}
	first := -1 // of those that communicate the one that does so least, which the others are compared with
	for p, list := range lists {
		if len(list) == 0 {
			continue
		}
		slices.SortFunc(list, func(x, y timeline.Activity) int { return int(int64(x.Start - y.Start)) })
		if first < 0 || len(list) < len(lists[out.processes[first]]) {
			first = len(out.processes)
		}
		out.processes = append(out.processes, int32(p))
	}
	if len(out.processes) < 2 {
		return nil
	}
	out.last, out.held = make([]int, len(out.processes)), make([]uint64, len(out.processes))
	a.compare(out, first, lists)
	return out
}

// compare finds the collectives of one process on all others.
func (a *analysis) compare(out *arrivals, first int, lists [][]timeline.Activity) {
	at := make([]int, len(out.processes)) // where each has come to
	set := make([]timeline.Activity, len(out.processes))
	for _, own := range lists[out.processes[first]] {
		whole := true
		for p, process := range out.processes {
			if set[p] = own; p == first {
				continue
			}
			list := lists[process]
			for at[p] < len(list) && list[at[p]].End <= own.Start {
				at[p]++
			}
			found := a.same(&own, list[at[p]:])
			if found < 0 {
				whole = false
				break
			}
			set[p] = list[at[p]+found]
		}
		if whole {
			out.take(set)
		}
	}
}

// same returns which of some activities is the same collective as another process's, -1 where none is: it has the same
// kernel, runs at the same time and ends with it.
func (a *analysis) same(own *timeline.Activity, list []timeline.Activity) int {
	for i := range list {
		x := &list[i]
		if x.Start >= own.End {
			return -1
		}
		apart := max(x.End, own.End) - min(x.End, own.End)
		if a.t.KernelIndex(x) == a.t.KernelIndex(own) && apart <= max(endsWithin, min(x.End-x.Start, own.End-own.Start)/endsPart) && x.End > own.Start {
			return i
		}
	}
	return -1
}

// take counts one collective.
func (r *arrivals) take(set []timeline.Activity) {
	last := 0
	for p := range set {
		if set[p].Start > set[last].Start {
			last = p
		}
	}
	r.sets++
	r.last[last]++
	for p := range set {
		n := set[last].Start - set[p].Start
		r.held[last] += n
		r.wait += n
	}
}

// straggler returns the index of the process that the others wait for: it comes last to most collectives, and most of the
// waiting is for it. False where it is now the one and now the other.
func (r *arrivals) straggler() (int, bool) {
	if r == nil || r.sets < leastSets {
		return 0, false
	}
	best := 0
	for p := range r.held {
		if r.held[p] > r.held[best] {
			best = p
		}
	}
	enough := r.sets/2 + 1
	if len(r.processes) == 2 { // one of two is last half of the time by chance
		enough = (4*r.sets + 4) / 5
	}
	return best, r.last[best] >= enough && 2*r.held[best] > r.wait
}

// exposedWait is how much of the exposed communication is waiting for the straggler, ns; 0 where there is none.
// Communication that a kernel covers waits as well: the share of what is exposed is taken for that of the waits.
func (a *analysis) exposedWait() uint64 {
	p, ok := a.ranks.straggler()
	if !ok {
		return 0
	}
	return min(a.total.exposed(), uint64(float64(a.ranks.held[p])*share(a.total.exposed(), a.total.talked)))
}

// rankName names a process of the arrivals: "python3 rank 3 (59814)".
func (a *analysis) rankName(p int) string {
	x := &a.t.Processes[a.ranks.processes[p]]
	return format.Clean(fmt.Sprintf("%s (%d)", orElse(x.Comm, "process"), x.PID))
}

// stragglerTitle names who is waited for.
func (a *analysis) stragglerTitle() string {
	p, _ := a.ranks.straggler()
	return "The other GPUs wait for that of " + a.rankName(p)
}

// late is the evidence about who came last to collectives.
func (a *analysis) late(d *Diagnosis, f *Finding) {
	r := a.ranks
	p, _ := r.straggler()
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	f.PID = a.t.Processes[r.processes[p]].PID
	add("In %s in which all %d processes took part, %s came last %s; the others waited for it for %s in all, %s each time.",
		format.Plural(r.sets, "collective", "collectives"), len(r.processes), a.rankName(p), format.Plural(r.last[p], "time", "times"),
		format.Span(r.held[p]), format.Span(r.held[p]/uint64(max(1, r.last[p]*(len(r.processes)-1)))))
	own, others, n := 0.0, 0.0, 0
	for i := range d.Devices {
		compute := 0.0
		for _, part := range d.Devices[i].Breakdown.Parts {
			if part.Key == "compute" {
				compute = part.Share
			}
		}
		if d.Devices[i].PID == f.PID {
			own = compute
			continue
		}
		others += compute
		n++
	}
	if n > 0 {
		add("Its GPU computed for %s of the time, the others for %s on average.", format.Percent(own), format.Percent(others/float64(n)))
	}
}
