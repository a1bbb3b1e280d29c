package diagnose

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/gap"
)

// leastShare is the share of the time from which on something is a finding. Below, it cannot be told from what the
// product costs itself (a budget of 2% by default) and from the error of a short window's samples (a percent or so:
// 99 samples a second of one thread for 30 s give a share of 3% to within 0.3%, for 3 s to within 1%).
const leastShare = 0.03

// nearly is the share of the time from which on a GPU is busy nearly all of it: whatever the rest is for, without it
// the program would be 11% faster at most.
const nearly = 0.9

// rank orders findings before their cost.
type rank uint8

const (
	standstill rank = iota // nothing goes on
	timeLost               // time that the GPU lost
	workPoor               // work that it could do better: its cost is that of the work, not what can be gained
	leftOver               // time that a GPU lost which works nearly all of the time
	paidOnce               // time that no iteration takes
	justAHint              // without a cost
)

// ranked is a finding with its cause and rank.
type ranked struct {
	Finding
	id   cause.ID
	rank rank
}

// findings returns the findings, the most expensive of each rank first.
func (a *analysis) findings(d *Diagnosis) []ranked {
	a.takeCopies()
	a.takeBubbles()
	var list []ranked
	add := func(id cause.ID, cost uint64, r rank) {
		if cost > 0 && share(cost, a.total.Time) >= leastShare {
			if f := a.finding(d, id, cost); f.Share >= leastShare { // by what is recorded all the time too
				list = append(list, ranked{f, id, r})
			}
		}
	}
	for id := cause.Unknown + 1; id < cause.Count; id++ {
		if !id.Busy() &&
			(id != cause.HostSync || a.seen()) { // a GPU that nobody watched may be busy while a thread waits for it
			add(id, a.cost(id), a.rankOf(id))
		}
	}
	if a.subject == aboutGPUs {
		add(a.freeCopies(), a.cost(a.freeCopies()), timeLost)
		if a.stages == nil {
			a.ranks = collectives.Arrive(a.t, a.within)
		}
		wait := a.exposedWait()
		add(cause.Straggler, wait, timeLost)
		uneven := a.exposedImbalance()
		add(cause.Imbalance, uneven, timeLost)
		add(cause.ExposedCommunication, a.total.exposed()-wait-uneven-a.bubbled, timeLost)
		add(cause.LowClocks, a.lostToClocks(), timeLost)
		poor := workPoor
		if a.nearlyBusy() {
			poor = timeLost // there is no other time
		}
		for id, cost := range a.poorKernels() {
			add(id, cost, poor)
		}
	}
	if a.once != nil && share(d.Start.length()+d.End.length(), a.t.To-a.t.From) >= leastShare {
		list = append(list, ranked{a.startEnd(d), cause.StartEnd, paidOnce})
	}
	if f, ok := a.remote(d); ok {
		list = append(list, ranked{f, cause.RemoteMemory, justAHint})
	}
	for i := range a.hangs {
		list = append(list, ranked{a.hang(d, &a.hangs[i]), cause.Hang, standstill})
	}
	if f, ok := a.gpuError(d); ok {
		a.stopped = true
		list = append(list, ranked{f, cause.GPUError, standstill})
	}
	list = slices.DeleteFunc(list, doubtful)
	slices.SortFunc(list, func(x, y ranked) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(y.Cost, x.Cost), cmp.Compare(x.Cause, y.Cause))
	})
	return list
}

// likely is the confidence from which on a finding is no longer called unlikely: medium, in reports.
const likely = 0.5

// doubtful reports whether a finding is left out because it may be wrong and is of little use if it is not.
func doubtful(f ranked) bool { return f.rank == leftOver && f.Confidence < likely }

// plain returns the findings without rank and cause.
func plain(list []ranked) []Finding {
	out := make([]Finding, len(list))
	for i := range list {
		out[i] = list[i].Finding
		out[i].Minor = list[i].rank == leftOver
	}
	return out
}

// takeCopies adds the time in which copies ran and no kernel did to the causes that they belong to: of those that hold
// their caller the idle time around them has the same cause.
func (a *analysis) takeCopies() {
	take := func(id cause.ID, n uint64, by *copiers) {
		if n == 0 {
			return
		}
		g := a.group(id)
		g.cost += n
		g.sure[gap.Seen] += n
		g.linked += n
		g.threads.merge(&by.threads)
		g.calls.merge(&by.calls)
	}
	take(cause.SyncCopy, a.total.held(), &a.total.heldBy)
	take(a.freeCopies(), a.total.free(), &a.total.freeBy)
}

// rankOf says what the time of a cause is. Of a GPU that is busy nearly all of the time nobody is accused for a part of
// the rest: it is what is left to gain.
func (a *analysis) rankOf(id cause.ID) rank {
	if a.subject == aboutGPUs && a.nearlyBusy() && id != cause.NoWork && share(a.cost(id), a.total.Time) < 1-nearly {
		return leftOver
	}
	return timeLost
}

// cost returns the cost of a cause.
func (a *analysis) cost(id cause.ID) uint64 {
	if a.groups[id] == nil {
		return 0
	}
	return a.groups[id].cost
}

// nearlyBusy reports whether the GPU works nearly all of the time for which anybody asked it for something.
func (a *analysis) nearlyBusy() bool {
	return share(a.total.busy(), a.asked()) >= nearly
}

// freeCopies says what copies are that need not hold anybody and run while no kernel does: where copies take longer
// than kernels, no overlap can hide them.
func (a *analysis) freeCopies() cause.ID {
	if a.total.copied > a.total.compute() {
		return cause.CopyBound
	}
	return cause.CopyNotOverlapped
}

// poorKernels returns the kinds of kernels that could do better and make up most of the kernels' time, with that time.
// Any program has some of each kind: only where they are the most of it, something would change with them.
func (a *analysis) poorKernels() map[cause.ID]uint64 {
	out := map[cause.ID]uint64{}
	for id, what := range map[cause.ID]doing{cause.BandwidthBound: memoryKernel, cause.SmallBatch: smallKernel, cause.TinyKernels: tinyKernel} {
		if n := a.total.Did[what]; 2*n > a.total.compute() {
			out[id] = n
		}
	}
	return out
}

// finding creates one finding.
func (a *analysis) finding(d *Diagnosis, id cause.ID, cost uint64) Finding {
	g := a.groups[id]
	if g == nil {
		g = newGroup(id) // kernels
	}
	return a.write(d, g, Finding{Cost: cost, Share: share(cost, a.total.Time)})
}

// startEnd is the finding about what the program does once. Its cost is that of the phases, whether anything shows what
// was done in them or not.
func (a *analysis) startEnd(d *Diagnosis) Finding {
	cost := d.Start.length() + d.End.length()
	return a.write(d, a.once, Finding{Cost: cost, Share: share(cost, a.t.To-a.t.From)})
}

// write completes a finding about a group of steps.
func (a *analysis) write(d *Diagnosis, g *group, f Finding) Finding {
	row := a.table[g.id]
	f.Cause, f.Because, f.Evidence, f.Changes = row.Key, []string{}, []Evidence{}, []Change{}
	w := a.facts(g)
	if g.id != cause.StartEnd { // which goes through many
		f.Place = w.place
	}
	if top := g.threads.most(); 10*top.time >= 9*g.cost && g.cost > 0 { // one thread's, but for a few
		f.PID, f.TID = uint32(top.key>>32), uint32(top.key)
		f.Thread = a.names[top.key]
	}
	f.Title = a.title(d, w)
	a.evidence(d, &f, g, w)
	f.Confidence, f.Because = a.confidence(g, &f)
	a.throughout(&f, g.id)
	var basis *Evidence
	if f.Batch, basis = a.twiceTheBatch(g.id); basis != nil {
		f.Evidence = append(f.Evidence, *basis)
	}
	f.Changes = a.changes(d, row, w)
	return f
}

// remote is what is said of memory on another NUMA node than the GPU. What that costs cannot be seen without
// hardware counters, so that nothing is claimed.
func (a *analysis) remote(d *Diagnosis) (Finding, bool) {
	p := &a.cpu.Pressure
	far := max(p.RemoteRunning, p.RemoteShare)
	launchers := a.remoteLaunchers()
	some := p.GPUNode >= 0 && len(p.Nodes) > 0 && far > 0.5 // most of it is far away
	if !some && len(launchers) == 0 || a.subject != aboutGPUs || a.nearlyBusy() {
		return Finding{}, false
	}
	row := a.table[cause.RemoteMemory]
	f := Finding{
		Cause: row.Key, Title: "Threads or memory are on another NUMA node than the GPU", Confidence: 0.3,
		Because:  []string{"where threads run and pages lie is known; what that costs is not measured"},
		Evidence: launchers,
	}
	if len(launchers) > 0 {
		f.Title = "Threads launch from another NUMA node than that of their GPU"
	}
	if some {
		f.Evidence = append(f.Evidence, Evidence{Text: a.remoteText()})
	}
	f.Changes = a.changes(d, row, facts{})
	return f, true
}
