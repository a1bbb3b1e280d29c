package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Thresholds of the verdict.
const (
	// third of the time idle: without it, the program would be half as fast again. From there on
	// the GPU is said to wait for the CPU; between a tenth and a third, neither side dominates.
	third = 1.0 / 3
	// leastTime is the least time, ns, in which all that a GPU did must have been seen: with five samples of a thread
	// at 99 Hz nothing can be told from anything.
	leastTime = 50_000_000
	// margin is the clock error, ns, above which a report warns: sync_error_margin_us, by default.
	margin = 1_000_000
)

// judge finds the verdict, if the evidence allows one.
func (a *analysis) judge(d *Diagnosis) {
	if a.stopped {
		d.Verdict = Stopped // as is a hang that it causes
		return
	}
	if len(a.hangs) > 0 {
		d.Verdict = Hung // whatever else is in doubt
		return
	}
	if a.subject == aboutCPU && a.total.Time > 0 {
		d.Verdict = CPUOnly
		return
	}
	d.Reasons = append(d.Reasons, a.doubts(d)...)
	if len(d.Reasons) > 0 {
		d.Verdict = NotEnough
		return
	}
	d.Verdict = a.class(d)
}

// class returns the verdict when there is enough evidence.
func (a *analysis) class(d *Diagnosis) Verdict {
	m := &a.total
	asked := a.asked()
	if a.noWork() > 0.5 {
		return Idle
	}
	copies := m.copies() + m.Idle[cause.SyncCopy]
	apart := m.exposed() + m.Idle[cause.PipelineBubble] // GPUs for each other
	waits := m.idle() - m.Idle[cause.NoWork] - m.Idle[cause.SyncCopy] - m.Idle[cause.PipelineBubble]
	switch {
	case share(apart, asked) >= third && apart >= waits && apart > copies:
		return CommunicationBound
	case copies > m.compute() && copies >= waits:
		return CopyBound
	case a.nearlyBusy():
		if a.couldWorkBetter(d) {
			return GPUBound
		}
		return Healthy
	case share(waits+m.Idle[cause.SyncCopy], asked) >= third:
		return CPUBound
	}
	return Balanced
}

// mostlyBusy is the share of the time from which on a GPU in which no cause stands out is called healthy.
const mostlyBusy = 0.8

// acquit makes the verdict healthy if the GPU works most of the time and there is no major finding.
func (a *analysis) acquit(d *Diagnosis) {
	accused := slices.ContainsFunc(
		d.Findings,
		func(f Finding) bool { return !f.Minor && f.Cost > 0 && f.Cause != cause.StartEnd.String() },
	)
	if d.Verdict == Balanced && !accused &&
		share(a.total.busy(), a.asked()) >= mostlyBusy {
		d.Verdict = Healthy
	}
}

// couldWorkBetter reports whether there is a finding about the time in which the GPU is busy.
func (a *analysis) couldWorkBetter(d *Diagnosis) bool {
	for i := range d.Findings {
		for id := cause.CopyNotOverlapped; id < cause.Count; id++ {
			if d.Findings[i].Cause == a.table[id].Key && d.Findings[i].Cost > 0 {
				return true
			}
		}
	}
	return false
}

// doubts are the losses and gaps in what was recorded that could make any verdict wrong, with what is missing; none
// of those that could not.
func (a *analysis) doubts(d *Diagnosis) []string {
	var out []string
	switch {
	case a.subject == aboutUnseen:
		return append(out, a.unseen())
	case a.total.Time == 0 && a.subject == aboutCPU:
		return append(
			out,
			"nothing shows what the program's main thread did: it is neither sampled nor are its waits recorded in this time",
		)
	}
	if short := a.tooShort(); short != "" {
		out = append(out, short)
	}
	if it := d.Iterations; it != nil && a.total.Time < it.P50 && !a.imported() {
		out = append(
			out,
			fmt.Sprintf(
				"the GPU was watched for %s, and one iteration takes %s: record for longer",
				format.Span(a.total.Time),
				format.Span(it.P50),
			),
		)
	}
	if other := a.otherUser(); other != "" {
		out = append(out, other)
	}
	if a.matters() && !a.isPlain() {
		out = append(out, a.unknown()...)
	}
	return out
}

// plainly is the share of the time from which on one cause that was seen directly is a verdict whatever else is in
// doubt.
const plainly = 0.9

// isPlain reports whether one cause holds so much of the time, by events of its own, that nothing which is missing
// could change the verdict.
func (a *analysis) isPlain() bool {
	for id, g := range a.groups {
		if g != nil && cause.ID(id) != cause.Unknown && share(g.sure[gap.Seen], a.total.Time) >= plainly {
			return true
		}
	}
	return false
}

// matters reports whether there is enough idle time for its cause to decide the verdict.
func (a *analysis) matters() bool {
	return share(a.total.idle(), a.total.Time) > 1-nearly
}

// unseen returns why no GPU activity was recorded.
func (a *analysis) unseen() string {
	if a.imported() {
		return noGPUImported
	}
	s := "the program uses a GPU, and what that did was not recorded"
	if gpu := a.t.Rec.Meta.GPU; gpu != nil {
		for i := range gpu.Agents {
			if x := &gpu.Agents[i]; x.State != "running" && x.Detail != "" {
				return s + ": " + format.Clean(x.Detail)
			}
		}
		for i := range gpu.Windows {
			if gpu.Windows[i].Dropped > 0 {
				return s + ": records were dropped in each window"
			}
		}
		return s + " in this time: record for longer, or with --gpu continuous"
	}
	return s + ": the daemon runs with --gpu off, or has no agent in it"
}

// otherUser names a process that launches work which nobody recorded: what looks idle may be busy.
func (a *analysis) otherUser() string {
	starts := a.inGroups("launch")
	for i := range a.t.Threads {
		th := &a.t.Threads[i]
		if int(th.Process) < len(a.t.Seen) && len(a.t.Seen[th.Process].Activity) > 0 {
			continue
		}
		for op := th.First; op < th.Last; op++ {
			if starts[a.t.Ops[op].Func] {
				p := &a.t.Processes[th.Process]
				return fmt.Sprintf(
					"process %d (%s) uses the GPU too, and what it did there was not recorded",
					p.PID,
					format.Clean(p.Comm),
				)
			}
		}
	}
	return ""
}

// unknown says what is missing where more of the idle time has no proven cause than the dearest cause has.
func (a *analysis) unknown() []string {
	open := a.total.Idle[cause.Unknown]
	for id, g := range a.groups {
		if g != nil && cause.ID(id) != cause.Unknown {
			open += g.sure[2]
		}
	}
	proven := uint64(0)
	for id, g := range a.groups {
		if g != nil && cause.ID(id) != cause.Unknown {
			proven = max(proven, g.cost-g.sure[2])
		}
	}
	lost := uint64(float64(a.total.Time) * a.lostShare())
	proven = max(proven, a.total.exposed()) // each kernel of which was recorded
	if open+lost <= proven || share(open+lost, a.total.Time) < leastShare {
		return a.clockDoubt()
	}
	var out []string
	if s := share(open, a.total.Time); s >= leastShare {
		out = append(out, fmt.Sprintf("for %s of the time nothing shows why the GPU was idle", format.Percent(s)))
	}
	return append(append(out, a.missing()...), a.clockDoubt()...)
}

// missing returns what would have shown it.
func (a *analysis) missing() []string {
	var out []string
	if a.gpu != nil && a.gpu.Links.Activities > 0 && a.gpu.Links.Share < 1-leastShare {
		out = append(
			out,
			fmt.Sprintf("the launches of %s of what the GPU did are not known", format.Percent(1-a.gpu.Links.Share)),
		)
	}
	if !a.cpu.Scheduled {
		out = append(out, a.either(noWaits, noWaitsImported))
	}
	if !a.cpu.Sampled && len(a.t.Index.Traced) == 0 {
		out = append(out, a.either(noCode, noCodeImported))
	}
	if slices.ContainsFunc(a.t.Rec.Meta.Objects, func(o recording.Object) bool { return o.Role == recording.Unclear }) {
		out = append(
			out,
			"who opened some of its connections is not known, so that waiting for a request cannot be told from waiting for an answer: "+
				"nobody listens on either end any more, or /proc/PID/net could not be read",
		)
	}
	if s := a.lostShare(); s >= leastShare {
		out = append(out, fmt.Sprintf("%s of the events were lost", format.Percent(s)))
	}
	return out
}

// clockDoubt returns a warning if the clock error is larger than the intervals of the main cause.
func (a *analysis) clockDoubt() []string {
	var dearest *group
	for _, g := range a.groups {
		if g != nil && g.id != cause.Unknown && (dearest == nil || g.cost > dearest.cost) {
			dearest = g
		}
	}
	if dearest == nil {
		return nil
	}
	each, c := dearest.cost/max(1, dearest.steps), &a.t.Clock
	bound := c.Bound
	if c.Error <= measuredClock { // the bound rests on waits: one in each window says little, and a trace can have none
		bound = min(bound, measuredClock)
	}
	if c.Error > each || bound > max(each, margin) {
		return []string{
			fmt.Sprintf(
				"the clocks of the GPU and the CPU are up to %s apart, and the times in question are %s long on average",
				format.Span(max(c.Error, bound)),
				format.Span(each),
			),
		}
	}
	return nil
}

// measuredClock is by how much CUPTI's times differ from CLOCK_MONOTONIC at most, ns, where nothing in a recording
// bounds it: the bounds of three recordings of an H200 with many synchronizations are 4.25, 5.23 and 11.7 µs
// (docs/examples). CUPTI converts all times of a process in one way.
const measuredClock = 20_000

// lostShare is the share of the events that were dropped where they would have shown what threads did.
func (a *analysis) lostShare() float64 {
	n := uint64(0)
	for _, l := range a.t.Rec.Meta.Losses {
		switch l.Reason {
		case loss.RingFull, loss.Malformed:
			n += l.Count
		}
	}
	return share(n, n+uint64(len(a.t.Rec.Events)))
}
