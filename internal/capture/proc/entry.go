package proc

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// entry is what the watcher keeps about a process.
type entry struct {
	p       *Process          // replaced, never changed
	threads map[uint32]string // names seen so far, also of threads that have ended
	tasks   uint64            // number of threads when threads was last read
	exec    uint64            // KiB mapped executable, where mappings are polled
	missed  int               // sweeps that found it dead without an exit event

	// What is put off until its target has budget again.
	untold bool   // nobody has been told that it appeared
	execed uint64 // ns: it runs another program since, of which nobody has been told; 0: it does not
	mapped uint64 // ns: likewise of a mapping

	execs      int    // programs that it began
	execsSince uint64 // since then, ns
}

// A process that begins programs one after the other is looked at when one of them stays: what sources do for each is
// more than the kernel does to start it. Wrappers, of which each starts the next, are few.
const (
	maxExecs    = 8              // within execsWithin, that are told at once
	execsWithin = 10_000_000_000 // ns
	execStays   = 50_000_000     // ns: how long a program of a process that begins more must run to be told
)

// begins notes that the process begins a program.
func (e *entry) begins(at uint64) {
	if at-min(at, e.execsSince) > execsWithin {
		e.execs, e.execsSince = 0, at
	}
	e.execs++
}

// hastens reports whether what the process began last is to be looked at only if it stays.
func (e *entry) hastens(now uint64) bool {
	return e.execs > maxExecs && now < e.execed+execStays
}

// table holds the processes of all targets: the living by pid, the dead for a while.
type table struct {
	live      map[uint32]*entry
	living    map[uint32]int // processes of each target among live
	dead      []*entry       // in the order in which they died
	keep      time.Duration
	maxDead   int
	forgotten uint64 // dead that made room before their time
}

func newTable(keep time.Duration, maxDead int) *table {
	return &table{live: make(map[uint32]*entry), living: make(map[uint32]int), keep: keep, maxDead: maxDead}
}

func (t *table) add(p *Process) *entry {
	e := &entry{p: p, threads: make(map[uint32]string)}
	t.live[p.PID] = e
	t.living[p.Root]++
	return e
}

// change replaces e's process by a changed copy, since the old one is in others' hands.
func (e *entry) change(f func(p *Process)) {
	p := *e.p
	f(&p)
	e.p = &p
}

// bury moves a process to the dead.
func (t *table) bury(e *entry, at uint64, code int32) {
	e.change(func(p *Process) { p.Died, p.ExitCode = at, code })
	t.drop(e)
	t.dead = append(t.dead, e)
	t.expire(at)
	if over := len(t.dead) - t.maxDead; over > 0 {
		t.dead = slices.Delete(t.dead, 0, over)
		t.forgotten += uint64(over)
	}
}

// drop takes a process out of the living.
func (t *table) drop(e *entry) {
	delete(t.live, e.p.PID)
	if t.living[e.p.Root]--; t.living[e.p.Root] <= 0 {
		delete(t.living, e.p.Root)
	}
}

// expire drops the dead of whom no recording will speak any more.
func (t *table) expire(now uint64) {
	old := 0
	for old < len(t.dead) && t.dead[old].p.Died+uint64(t.keep) < now {
		old++
	}
	t.dead = slices.Delete(t.dead, 0, old)
}

// list returns the living, so that the table may change while they are gone through.
func (t *table) list() []*entry { return slices.Collect(maps.Values(t.live)) }

// roots returns the targets of all processes, living and dead.
func (t *table) roots() map[uint32]bool {
	roots := map[uint32]bool{}
	for root := range t.living {
		roots[root] = true
	}
	for _, e := range t.dead {
		roots[e.p.Root] = true
	}
	return roots
}

// latest returns the process that has the pid, or had it last.
func (t *table) latest(pid uint32) *entry {
	if e := t.live[pid]; e != nil {
		return e
	}
	for _, e := range slices.Backward(t.dead) {
		if e.p.PID == pid {
			return e
		}
	}
	return nil
}

// snapshot returns all processes, ordered by birth, then pid.
func (t *table) snapshot() []Process {
	all := make([]Process, 0, len(t.live)+len(t.dead))
	for _, e := range t.dead {
		all = append(all, *e.p)
	}
	for _, e := range t.live {
		all = append(all, *e.p)
	}
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Born, b.Born), cmp.Compare(a.PID, b.PID))
	})
	return all
}
