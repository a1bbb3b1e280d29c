package daemon

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/version"
)

// recording is one target's part of a snapshot.
type recording struct {
	meta     record.Meta
	snapshot *record.Snapshot
	want     func(*event.Event) bool // nil: all events are the target's
	rows     []event.Event           // of what had no event yet
	stackAt  map[uint64]uint64       // number of a stack -> Args[0] in the recording; nil: no samples
	kernelAt map[int32]int32         // number of a kernel -> Ret in the recording
	rangeAt  map[int32]int32         // likewise of a named range

	scopeAt, attributeAt map[int32]int32 // likewise of a scope and of its attributes (Args[3])
}

// Meta returns everything but the events.
func (r *recording) Meta() record.Meta { return r.meta }

// Events yields the events in the order of their arrival.
func (r *recording) Events() iter.Seq[[]event.Event] {
	events := with(r.snapshot.Events(r.want), r.rows, r.want)
	if r.stackAt == nil && r.meta.GPU == nil {
		return events
	}
	return renumbered(events, r.renumber)
}

// Release gives the memory back to the recorder.
func (r *recording) Release() { r.snapshot.Release() }

// Record returns what is kept of target pid, up to now: from the time from on
// (ns) if that is not 0, else of the last so long, else of as long as is kept. The
// window never begins before the target was followed. For a target that is gone
// "the last so long" counts from its end, so that what it did last is still served.
// It must be released.
func (d *Daemon) Record(ctx context.Context, pid uint32, last time.Duration, from uint64) (api.Recording, error) {
	now := d.clock() // before the rings are emptied, so that nothing up to it is still in them
	rows := d.evidence.complete(now)
	d.flush(ctx, pid)
	if err := d.drainer.upTo(ctx, now); err != nil {
		return nil, fmt.Errorf("waiting for the rings to be emptied: %w", err)
	}
	v, ok := d.follower.view(pid)
	if !ok {
		return nil, fault.New(fault.NoProcess, "`inferscope targets` lists what is watched", fmt.Errorf("pid %d is not a target of this daemon", pid))
	}
	from = min(d.begin(v, now, last, from), now)
	snap := d.recorder.Snapshot(from, now)
	rec := &recording{snapshot: snap, want: v.owns, rows: rows}
	rec.meta = d.meta(v, max(from, min(snap.Since(), now)), now)
	rec.meta.Losses = ordered(slices.Concat(rec.meta.Losses, snap.Losses()))
	d.evidence.name(&rec.meta, &v)
	rec.nameStacks(d.stacker)
	rec.nameGPU(d.activity, &v)
	rec.nameScopes(d.ranger)
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

func (d *Daemon) meta(v view, from, now uint64) record.Meta {
	m := record.Meta{
		Schema: record.SchemaVersion, Version: version.String(), Host: d.host, Target: v.pid,
		From: from, To: now, WallFrom: time.Now().UnixNano() - int64(now-from),
		Processes: v.processes(now), Threads: v.threads(d.watcher.Threads), Libraries: v.libraries,
		Sources: d.sourceStates(),
	}
	if d.tables != nil {
		m.Functions = d.tables.Functions()
	}
	for _, l := range d.history.within(now, from, now) {
		if v.concerns(l) {
			m.Losses = append(m.Losses, l)
		}
	}
	m.Losses = append(m.Losses, v.late(from, now)...)
	return m
}

// view is what the follower knows of one target at a moment: a copy.
type view struct {
	pid       uint32
	since     uint64
	ended     uint64 // ns; 0: some process runs
	released  bool
	entries   []entry
	libraries []record.Library
	late      func(from, to uint64) []loss.Loss
	owns      func(*event.Event) bool // nil: there is no other target
}

// view copies what is known of target pid.
func (f *follower) view(pid uint32) (view, bool) {
	libraries := f.libraries()
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.roots, func(r *root) bool { return r.pid == pid })
	if i < 0 {
		return view{}, false
	}
	r := f.roots[i]
	v := view{pid: pid, since: r.since, ended: r.ended(), released: r.released}
	for _, e := range r.procs {
		v.entries = append(v.entries, *e)
	}
	slices.SortFunc(v.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.process.Born, b.process.Born), cmp.Compare(a.process.PID, b.process.PID))
	})
	v.libraries = mergeLibraries(slices.Clone(r.libraries), slices.DeleteFunc(slices.Clone(libraries), func(l record.Library) bool { return !v.has(l.PID) }))
	copied := root{late: slices.Clone(r.late)}
	v.late = copied.lateLosses
	if len(f.roots) > 1 || f.forgot {
		v.owns = v.filter()
	}
	return v, true
}

func (v *view) has(pid uint32) bool {
	return slices.ContainsFunc(v.entries, func(e entry) bool { return e.process.PID == pid })
}

// threads returns the names of the target's threads; living asks for those of a process that runs.
func (v *view) threads(living func(pid uint32) []record.Thread) []record.Thread {
	var out []record.Thread
	for _, e := range v.entries {
		threads := e.threads
		if e.process.Died == 0 {
			threads = living(e.process.PID)
		}
		out = append(out, threads[:min(len(threads), maxThreads-len(out))]...)
	}
	slices.SortStableFunc(out, func(a, b record.Thread) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
	return slices.CompactFunc(out, func(a, b record.Thread) bool { return a.PID == b.PID && a.TID == b.TID })
}

// concerns says whether a loss may stand in this target's recording: one that
// names a process must name one of the target's.
func (v *view) concerns(l loss.Loss) bool {
	var pid uint32
	if n, _ := fmt.Sscanf(l.Where, "pid %d", &pid); n != 1 {
		return true
	}
	return v.has(pid)
}

func (v *view) processes(to uint64) []record.Process {
	out := make([]record.Process, 0, len(v.entries))
	for _, e := range v.entries {
		if p := e.process; p.Born <= to {
			out = append(out, describe(&e, v.libraries))
		}
	}
	return out
}

func describe(e *entry, libraries []record.Library) record.Process {
	p := e.process
	out := record.Process{
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

// filter returns whether an event is the target's. A pid alone does not say: it
// may have been another target's process before.
func (v *view) filter() func(*event.Event) bool {
	type life struct{ born, died uint64 }
	lives := map[uint32][]life{}
	for _, e := range v.entries {
		died := e.process.Died
		if died == 0 {
			died = math.MaxUint64
		}
		lives[e.process.PID] = append(lives[e.process.PID], life{e.process.Born, died})
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
