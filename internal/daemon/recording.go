package daemon

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/sched/pressure"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// held is one target's part of a snapshot.
type held struct {
	meta     recording.Meta
	snapshot *recording.Snapshot
	want     func(*event.Event) bool // nil: all events are the target's
	rows     []event.Event           // of what had no event yet
	stackAt  map[uint64]uint64       // number of a stack -> Args[0] in the recording; nil: no samples
	kernelAt map[int32]int32         // number of a kernel -> Ret in the recording
	rangeAt  map[int32]int32         // likewise of a named range

	scopeAt, attributeAt map[int32]int32 // likewise of a scope and of its attributes (Args[3])

	refs *references // nil: not looked for yet
}

// references are the numbers that the events of a recording refer to.
type references struct {
	samples           map[uint64]uint64 // of each stack
	stacks            []uint64          // in the order in which they come up
	kernels, ranges   map[int32]bool
	names, attributes map[int32]bool // of scopes
}

// references scans all events once: a minute of a busy target has millions, which must be unpacked for it.
func (r *held) references() *references {
	if r.refs != nil {
		return r.refs
	}
	r.refs = &references{
		samples: map[uint64]uint64{}, kernels: map[int32]bool{},
		ranges: map[int32]bool{}, names: map[int32]bool{}, attributes: map[int32]bool{},
	}
	for batch := range r.snapshot.Events(r.want) {
		for i := range batch {
			r.refs.add(&batch[i])
		}
	}
	for i := range r.rows {
		if r.want == nil || r.want(&r.rows[i]) {
			r.refs.add(&r.rows[i])
		}
	}
	return r.refs
}

func (r *references) add(e *event.Event) {
	switch e.Kind {
	case event.Sample, event.Allocation, event.OutOfMemory:
		n := e.Args[0]
		if n == 0 {
			return
		}
		if r.samples[n]++; r.samples[n] == 1 {
			r.stacks = append(r.stacks, n)
		}
	case event.Kernel:
		r.kernels[e.Ret] = true
	case event.Range:
		switch e.Func {
		case event.NVTXRange:
			r.ranges[e.Ret] = true
		case event.ScopeRange:
			r.names[e.Ret] = true
			r.attributes[int32(e.Args[3])] = true
		}
	}
}

// Meta returns everything but the events.
func (r *held) Meta() recording.Meta { return r.meta }

// Events yields the events in the order of their arrival.
func (r *held) Events() iter.Seq[[]event.Event] {
	events := with(r.snapshot.Events(r.want), r.rows, r.want)
	if r.stackAt == nil && r.meta.GPU == nil {
		return events
	}
	return renumbered(events, r.renumber)
}

// Release returns the memory to the recorder.
func (r *held) Release() { r.snapshot.Release() }

// Record returns the retained events of target pid up to now: from the time from (ns) if that is not 0, else of the
// last interval of that length, else all. The window never begins before the target was followed. For an ended target
// the interval counts from its end, so that its last actions are still served. The result must be released.
func (d *Daemon) Record(
	ctx context.Context,
	a api.Asker,
	pid uint32,
	last time.Duration,
	from uint64,
) (api.Recording, error) {
	d.follower.awaitFollowed(ctx, pid)
	now := d.clock() // before the rings are emptied, so that nothing up to it is still in them
	rows := d.evidence.complete(now)
	d.flush(ctx, pid)
	if err := d.drainer.upTo(ctx, now); err != nil {
		return nil, fmt.Errorf("waiting for the rings to be emptied: %w", err)
	}
	v, err := d.follower.viewFor(a, pid)
	if err != nil {
		return nil, err
	}
	from = min(d.begin(v, now, last, from), now)
	snap := d.recorder.Snapshot(from, now, v.users...)
	rec := &held{snapshot: snap, want: v.owns}
	rec.meta = d.meta(v, max(from, min(snap.Since(), now)), now)
	// A source that was paused reports waits that ended then for as long as recorders hold events.
	rec.rows = slices.DeleteFunc(rows, func(e event.Event) bool { return e.End() < rec.meta.From })
	rec.meta.Losses = ordered(slices.Concat(rec.meta.Losses, snap.Losses()))
	d.evidence.name(&rec.meta, &v)
	rec.meta.RAS = d.ras.of(ctx, &v)
	rec.nameStacks(d.stacker)
	rec.nameGPU(d.activity, &v)
	rec.nameScopes(d.ranger)
	rec.meta.Overhead = d.overheadOf(v.pid, rec.meta.From, rec.meta.To)
	return rec, nil
}

// begin returns the time (ns) at which a window begins.
func (d *Daemon) begin(v view, now uint64, last time.Duration, from uint64) uint64 {
	if from == 0 {
		if last <= 0 || last > d.opts.Keep {
			last = d.opts.Keep
		}
		end := now
		if v.ended != 0 {
			end = min(now, v.ended)
		}
		from = end - min(end, uint64(last))
	}
	return max(from, v.since)
}

func (d *Daemon) meta(v view, from, now uint64) recording.Meta {
	m := recording.Meta{
		Schema: recording.SchemaVersion, Version: version.String(), Host: d.host, Target: v.pid,
		From: from, To: now, WallFrom: time.Now().UnixNano() - int64(now-from),
		Processes: v.processes(now), Threads: v.threads(d.watcher.Threads), Libraries: v.libraries,
		Sources: d.sourceStates(),
	}
	m.Host.GPUs = pressure.GPUs() // the driver learns their UUIDs as programs use them
	if d.tables != nil {
		m.Functions = d.tables.Functions()
	}
	for _, l := range d.history.within(now, from, now) {
		if v.concerns(l) {
			m.Losses = append(m.Losses, l)
		}
	}
	m.Losses = append(m.Losses, v.unprobedLosses(from, now)...)
	if v.withheld > 0 {
		m.Losses = append(m.Losses, loss.Loss{Reason: loss.OthersWithheld, Count: uint64(v.withheld)})
	}
	return m
}

// view is a copy of what the follower knows about a target.
type view struct {
	pid            uint32
	since          uint64
	ended          uint64 // ns; 0: some process runs
	released       bool
	found          bool
	place          *api.Place
	entries        []entry
	members        map[uint32]bool // of entries: a target has many processes, and what is asked of them is many too
	withheld       int             // processes that the asker may not see, or not all of the time
	libraries      []recording.Library
	unprobedLosses func(from, to uint64) []loss.Loss
	owns           func(*event.Event) bool // nil: there is no other target
	users          []recording.Owner       // whose events the recorder holds for it; none where owns is nil: everybody's
}

// view returns the data of target pid without regard to the asker.
func (f *follower) view(pid uint32) (view, bool) {
	return f.viewOf(api.Asker{Any: true}, pid, nil)
}

// viewFor returns the data of target pid that the asker may see.
func (f *follower) viewFor(a api.Asker, pid uint32) (view, error) {
	var latest []proc.Process
	if !a.Any {
		latest = f.watcher.Processes() // knows a moment earlier than this follower that a process runs as somebody else now
	}
	v, ok := f.viewOf(a, pid, latest)
	switch {
	case !ok:
		return v, clierror.New(clierror.NoProcess, "`inferscope targets` lists what is watched",
			fmt.Errorf("pid %d is not a target of this daemon", pid))
	case !a.Any && !f.mayAsk(a, v):
		return v, clierror.New(clierror.Permission, "ask as root (sudo)",
			fmt.Errorf("pid %d does not belong to user %d alone", pid, a.UID))
	}
	return v, nil
}

// mayAsk reports whether a target belongs to the asker now; of a living target the process is checked.
func (f *follower) mayAsk(a api.Asker, v view) bool {
	i := slices.IndexFunc(v.entries, func(e entry) bool { return e.process.PID == v.pid && e.process.Parent == 0 })
	if i < 0 {
		return false
	}
	p := v.entries[i].process
	if p.Owner != a.UID || p.Died != 0 {
		return p.Owner == a.UID
	}
	guard, err := f.guard(p, a.UID)
	if err != nil {
		return clierror.CodeOf(err) == clierror.NoProcess // it has just ended, and was the asker's
	}
	return guard.Close() == nil
}

func (f *follower) viewOf(a api.Asker, pid uint32, latest []proc.Process) (view, bool) {
	libraries := f.libraries()
	now := map[proc.ID]*proc.Process{}
	for i := range latest {
		now[latest[i].ID()] = &latest[i]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(pid)
	if r == nil {
		return view{}, false
	}
	v := view{
		pid: pid, since: r.since, ended: r.ended(), released: r.released, found: r.found, place: r.place,
		members: map[uint32]bool{},
	}
	for _, e := range r.procs {
		e := *e
		if p := now[e.process.ID()]; p != nil {
			e.process = p
		}
		if !a.Any {
			mine := e.process.Spans(a.UID)
			if len(mine) == 0 || len(mine) < len(e.process.Owned) {
				v.withheld++
			}
			if len(mine) == 0 {
				continue
			}
			if e.process.Owner != a.UID {
				hidden := *e.process
				hidden.Cmdline = ""
				e.process = &hidden
			}
		}
		v.entries = append(v.entries, e)
		v.members[e.process.PID] = true
	}
	slices.SortFunc(v.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.process.Born, b.process.Born), cmp.Compare(a.process.PID, b.process.PID))
	})
	own := slices.DeleteFunc(slices.Clone(r.libraries),
		func(l recording.Library) bool { return !a.Any && !v.has(l.PID) })
	v.libraries = mergeLibraries(own,
		slices.DeleteFunc(slices.Clone(libraries), func(l recording.Library) bool { return !v.has(l.PID) }))
	copied := root{
		unprobed: slices.DeleteFunc(slices.Clone(r.unprobed), func(l unprobedInterval) bool { return !v.has(l.pid) }),
	}
	v.unprobedLosses = copied.unprobedLosses
	if len(f.roots) > 1 || f.forgot || !a.Any {
		v.owns, v.users = v.filter(a), slices.Clone(r.users)
	}
	return v, true
}

func (v *view) has(pid uint32) bool { return v.members[pid] }

func (v *view) hasProcess(id proc.ID) bool {
	return slices.ContainsFunc(v.entries, func(e entry) bool { return e.process.ID() == id })
}

// threads returns the names of the target's threads; living returns those of a running process.
func (v *view) threads(living func(pid uint32) []recording.Thread) []recording.Thread {
	var out []recording.Thread
	for _, e := range v.entries {
		threads := e.threads
		if e.process.Died == 0 {
			threads = living(e.process.PID)
		}
		out = append(out, threads[:min(len(threads), maxThreads-len(out))]...)
	}
	slices.SortStableFunc(out, func(a, b recording.Thread) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
	return slices.CompactFunc(out, func(a, b recording.Thread) bool { return a.PID == b.PID && a.TID == b.TID })
}

// concerns reports whether a loss belongs in this target's recording: one that names a process must name one of the
// target's.
func (v *view) concerns(l loss.Loss) bool {
	return l.PID == 0 || v.has(l.PID)
}

func (v *view) processes(to uint64) []recording.Process {
	out := make([]recording.Process, 0, len(v.entries))
	for _, e := range v.entries {
		if p := e.process; p.Born <= to {
			out = append(out, describe(&e, v.libraries))
		}
	}
	return out
}

func describe(e *entry, libraries []recording.Library) recording.Process {
	p := e.process
	out := recording.Process{
		PID: p.PID, Parent: p.Parent, UID: p.UID, Comm: p.Comm, Cmdline: p.Cmdline,
		Born: p.Born, Died: p.Died, ExitCode: p.ExitCode,
	}
	if p.NSPID != p.PID {
		out.NSPID = p.NSPID
	}
	for _, l := range libraries {
		if l.PID == p.PID && l.Probed >= p.Born && (out.Probed == 0 || l.Probed < out.Probed) {
			out.Probed = l.Probed
		}
	}
	return out
}

// filter returns a test of whether an event belongs to the target. The pid is not enough: it may have been reused.
func (v *view) filter(a api.Asker) func(*event.Event) bool {
	type life struct{ born, died uint64 }
	lives := map[uint32][]life{}
	for _, e := range v.entries {
		p := e.process
		died := p.Died
		if died == 0 {
			died = math.MaxUint64
		}
		spans := [][2]uint64{{0, math.MaxUint64}}
		if !a.Any {
			spans = p.Spans(a.UID)
		}
		for _, s := range spans {
			lives[p.PID] = append(lives[p.PID], life{max(p.Born, s[0]), min(died, s[1])})
		}
	}
	var pid uint32 // events of one process come in runs: look its lives up once
	var own []life
	return func(e *event.Event) bool {
		if e.PID != pid {
			pid, own = e.PID, lives[e.PID]
		}
		return slices.ContainsFunc(own, func(l life) bool { return e.TS >= l.born && e.TS <= l.died })
	}
}
