package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// exposedWait is how much of the exposed communication is waiting for the straggler, ns; 0 where there is none.
// Communication that a kernel covers waits as well: the share of what is exposed is taken for that of the waits.
func (a *analysis) exposedWait() uint64 {
	p, ok := a.ranks.Straggler()
	if !ok {
		return 0
	}
	return min(a.total.exposed(), uint64(float64(a.ranks.Members[p].Held)*share(a.total.exposed(), a.total.talked)))
}

// rankName names a rank: "python3 rank 3 (59814)", and where its process has several GPUs, "python3 (59814) on GPU 1".
func (a *analysis) rankName(p int) string {
	m := &a.ranks.Members[p]
	x := &a.t.Processes[m.Process]
	name := fmt.Sprintf("%s (%d)", orElse(x.Comm, "process"), x.PID)
	for i := range a.ranks.Members {
		if i != p && a.ranks.Members[i].Process == m.Process {
			return format.Clean(fmt.Sprintf("%s on GPU %d", name, a.t.Devices[m.Device].ID))
		}
	}
	return format.Clean(name)
}

// stragglerTitle names who is waited for.
func (a *analysis) stragglerTitle() string {
	p, _ := a.ranks.Straggler()
	return "The other GPUs wait for that of " + a.rankName(p)
}

// late is the evidence about who came last to collectives.
func (a *analysis) late(d *Diagnosis, f *Finding) {
	r := a.ranks
	p, _ := r.Straggler()
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	m := &r.Members[p]
	f.PID = a.t.Processes[m.Process].PID
	add("In %s in which all %d ranks took part, %s came last %s; the others waited for it for %s in all, %s each time.",
		format.Plural(r.Sets, "collective", "collectives"), len(r.Members), a.rankName(p),
		format.Plural(m.Last, "time", "times"), format.Span(m.Held),
		format.Span(m.Held/uint64(max(1, m.Last*(len(r.Members)-1)))))
	own, others, n := 0.0, 0.0, 0
	for i := range d.Devices {
		compute := 0.0
		for _, part := range d.Devices[i].Breakdown.Parts {
			if part.Key == "compute" {
				compute = part.Share
			}
		}
		if int32(i) == m.Device {
			own = compute
			continue
		}
		others += compute
		n++
	}
	if n > 0 {
		add(
			"Its GPU computed for %s of the time, the others for %s on average.",
			format.Percent(own),
			format.Percent(others/float64(n)),
		)
	}
}
