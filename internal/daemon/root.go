package daemon

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Limits of what is stored about one target. For a target that forks without end the oldest ended processes are
// dropped.
const (
	maxProcesses = 4096
	maxThreads   = 65536 // names in one recording
	maxLibraries = 1024  // of processes that are gone
	maxLate      = 1024
	maxLateRows  = 16 // processes that a recording names one by one
)

// root is a target: the process that was asked for, with its children.
type root struct {
	pid       uint32
	since     uint64 // ns: when all that was there at the start was followed; 0 before
	procs     map[proc.ID]*entry
	living    int
	pending   map[proc.ID]bool    // known to the watcher, not yet followed
	libraries []recording.Library // of programs that are gone
	unprobed  []unprobedInterval
	dropped   uint64 // of these, to make room
	asked     bool   // by Watch: its first change is still to come while it has no processes
	limited   bool   // only processes that run as owner are watched: a user asked for it
	owner     uint32
	released  bool              // on request: nothing of it is followed
	place     *api.Place        // where it runs; nil: not looked at yet
	found     bool              // by discovery: it is withdrawn when its recording has expired
	users     []recording.Owner // whose the events of its processes are: one, but where its pid was used again
}

// maxUsers bounds root.users: the oldest are forgotten.
const maxUsers = 8

// user returns the owner of p's events: that of the target's first process, or p's if that is unknown. A later setuid
// or exec changes nothing.
func (r *root) user(p *proc.Process) recording.Owner {
	o := recording.Owner{UID: p.UID, Target: r.pid}
	if p.PID != r.pid && len(r.users) > 0 {
		return r.users[len(r.users)-1]
	}
	if !slices.Contains(r.users, o) {
		r.users = append(r.users, o)
		r.users = r.users[max(0, len(r.users)-maxUsers):]
	}
	return o
}

// entry is one process of a root.
type entry struct {
	process    *proc.Process
	threads    []recording.Thread // of a process that is gone
	complaints map[string]string  // last error of each source
	exited     bool               // no longer counted as living
}

// unprobedInterval is an interval in which a library was mapped but not probed.
type unprobedInterval struct {
	pid         uint32
	from, until uint64 // ns
}

func newRoot(pid uint32) *root {
	return &root{pid: pid, procs: map[proc.ID]*entry{}, pending: map[proc.ID]bool{}}
}

// note stores the current state of p, and reports whether its owner has changed.
func (r *root) note(p *proc.Process) (another bool) {
	e := r.procs[p.ID()]
	another = e != nil && e.process.Owner != p.Owner
	if e == nil {
		if len(r.procs) >= maxProcesses {
			r.forgetOldest()
		}
		e = &entry{process: p, complaints: map[string]string{}}
		r.procs[p.ID()] = e
		r.pending[p.ID()] = true // until every source has seen it
		r.living++
	}
	if e.process = p; p.Died != 0 && !e.exited {
		e.exited = true
		r.living--
	}
	return another
}

// forgetOldest drops the quarter of the processes that ended first, except the root. Dropping a quarter at a time keeps
// a target that forks all the time cheap.
func (r *root) forgetOldest() {
	var dead []*proc.Process
	for _, e := range r.procs {
		if p := e.process; p.Died != 0 && p.PID != r.pid {
			dead = append(dead, p)
		}
	}
	slices.SortFunc(dead, func(a, b *proc.Process) int { return cmp.Compare(a.Died, b.Died) })
	for _, p := range dead[:min(len(dead), maxProcesses/4)] {
		delete(r.procs, p.ID())
	}
}

// complain returns whether err of source differs from the last one.
func (e *entry) complain(source string, err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	news := text != "" && e.complaints[source] != text
	e.complaints[source] = text
	return news
}

func (r *root) noteUnprobed(l unprobedInterval) {
	if len(r.unprobed) >= maxLate {
		r.unprobed = slices.Delete(r.unprobed, 0, maxLate/4)
		r.dropped += maxLate / 4
	}
	r.unprobed = append(r.unprobed, l)
}

func (r *root) keepLibraries(libraries []recording.Library) {
	r.libraries = mergeLibraries(r.libraries, libraries)
	if extra := len(r.libraries) - maxLibraries; extra > 0 {
		r.libraries = slices.Delete(r.libraries, 0, extra)
	}
}

// mergeLibraries adds the rows of more to known; a newer row replaces an older one.
func mergeLibraries(known, more []recording.Library) []recording.Library {
	for _, l := range more {
		i := slices.IndexFunc(known, func(k recording.Library) bool {
			return k.PID == l.PID && k.Inode == l.Inode && k.Path == l.Path && k.Mapped == l.Mapped
		})
		if i >= 0 {
			known[i] = l
			continue
		}
		known = append(known, l)
	}
	return known
}

// ended returns when the last process of the target ended, in ns; 0 while one runs.
func (r *root) ended() uint64 {
	if r.living > 0 {
		return 0
	}
	last := uint64(0)
	for _, e := range r.procs {
		last = max(last, e.process.Died)
	}
	return last
}

// main returns the process that was requested; nil before it appeared.
func (r *root) main() *proc.Process {
	for _, e := range r.procs {
		if e.process.PID == r.pid && e.process.Parent == 0 {
			return e.process
		}
	}
	return nil
}

// unprobedLosses returns the losses by late probes within [from, to].
func (r *root) unprobedLosses(from, to uint64) []loss.Loss {
	byPID := map[uint32]loss.Loss{}
	longest := map[uint32]uint64{}
	total, worst := uint64(0), uint64(0)
	for _, l := range r.unprobed {
		if l.until < from || l.from > to {
			continue
		}
		d := l.until - l.from
		total, worst, longest[l.pid] = total+1, max(worst, d), max(longest[l.pid], d)
		byPID[l.pid] = loss.Loss{
			Reason: loss.LateProbe, Count: byPID[l.pid].Count + 1, PID: l.pid, Where: fmt.Sprintf("pid %d", l.pid),
			Detail: "unprobed for " + format.Span(longest[l.pid]),
		}
	}
	if len(byPID) > maxLateRows {
		return []loss.Loss{{
			Reason: loss.LateProbe, Count: total,
			Detail: fmt.Sprintf("in %d processes, each unprobed for at most %s", len(byPID), format.Span(worst)),
		}}
	}
	out := make([]loss.Loss, 0, len(byPID))
	for _, l := range byPID {
		out = append(out, l)
	}
	return out
}
