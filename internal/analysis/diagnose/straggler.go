package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
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
	if text := a.before(p); text != "" {
		add("%s", text)
	}
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

// leastReason is the share of the waiting from which on a cause of idle time is named as that of coming late.
const leastReason = 0.2

// before says what a rank did while the others waited for it: what its GPU did, and why it ran nothing.
func (a *analysis) before(p int) string {
	m := &a.ranks.Members[p]
	late := timeline.Join(slices.Clone(m.Late))
	all := late.Total()
	if all == 0 {
		return ""
	}
	var busy, computing []timeline.Span
	talks := a.t.Communicates()
	for i := range a.t.Activities {
		act := &a.t.Activities[i]
		if s := &a.t.Streams[act.Stream]; s.Device != m.Device || s.Process != m.Process {
			continue
		}
		one := timeline.Span{From: act.Start, To: act.End}
		busy = append(busy, one)
		if k := a.t.KernelIndex(act); act.Kind == timeline.Kernel && (k == timeline.None || !talks[k]) {
			computing = append(computing, one)
		}
	}
	text := fmt.Sprintf("While the others waited for it, its GPU computed for %s of the time and ran nothing for %s",
		format.Percent(share(timeline.Join(computing).Both(late).Total(), all)),
		format.Percent(share(all-timeline.Join(busy).Both(late).Total(), all)))
	if id, place, n := a.idleIn(m.Device, late); share(n, all) >= leastReason {
		text += fmt.Sprintf(", for %s because of %s", format.Percent(share(n, all)), cause.Of(id).Title)
		if place != "" {
			text += " in " + place
		}
	}
	return text + "."
}

// idleIn returns the cause and place for which a device ran nothing for most of some time, and for how long, ns.
func (a *analysis) idleIn(device int32, within timeline.Spans) (id cause.ID, place string, most uint64) {
	type why struct {
		id    cause.ID
		place int32
	}
	by := map[why][]timeline.Span{}
	for i := range a.w.Gaps {
		g := &a.w.Gaps[i]
		if g.Device != device {
			continue
		}
		for _, s := range a.w.Steps[g.First:g.Last] {
			k := why{s.Cause, a.places.of(s.Stack)}
			by[k] = append(by[k], timeline.Span{From: s.From, To: s.To})
		}
	}
	best := why{}
	for k, list := range by {
		n := timeline.Join(list).Both(within).Total()
		if n > most || n == most && n > 0 && (k.id < best.id || k.id == best.id && k.place < best.place) {
			best, most = k, n
		}
	}
	if best.place != 0 {
		place = a.places.list[best.place].text()
	}
	return best.id, place, most
}
