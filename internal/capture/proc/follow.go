package proc

import (
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// add is Add, in the loop.
func (w *Watcher) add(pid int) (*Process, error) {
	p, err := w.fs.target(pid)
	if err != nil {
		return nil, err
	}
	if e := w.known(p.ID()); e != nil {
		_ = p.Close()
		return e.p, nil
	}
	p.Parent, p.Root = 0, p.PID
	// Into the kernel's map first and then to /proc: what is forked from now on
	// is an event, and what was forked before is in /proc.
	if err := w.hold(p); err != nil {
		return nil, err
	}
	w.budgets.open(p)
	w.adopt(p, monotonic())
	w.addDescendants(p.Root)
	return p, nil
}

// known returns the entry of exactly that process, and puts away one whose pid
// it has taken over without a word from the kernel.
func (w *Watcher) known(id ID) *entry {
	e := w.table.live[id.PID]
	if e == nil || e.p.ID() == id {
		return e
	}
	w.lateDead++
	w.bury(e, monotonic(), 0)
	return nil
}

// hold makes the kernel follow p. A process that ended before the kernel knew it
// would never be heard of again, so it must be alive afterwards. (If it is just
// ending, so that its exit event is over but it is alive for us, sweep finds it.)
func (w *Watcher) hold(p *Process) error {
	err := w.kernel.watch(p.ID())
	if err == nil && !p.Alive() {
		w.kernel.unwatch(p.ID())
		err = w.fs.explainDead(p.PID)
	}
	if err != nil {
		_ = p.Close()
	}
	return err
}

func (w *Watcher) adopt(p *Process, at uint64) {
	p.Payer = w.budgets.payerOf(p.Root)
	w.wake()
	w.table.add(p)
	w.queue.push(Change{Appeared, p, at})
}

// maxScans bounds the search for descendants. Each round but the last finds a
// process that the kernel did not follow, which only a fork from before Add can be.
const maxScans = 64

// addDescendants looks through /proc until there is no process left that is a child of one of a target's, 0: of any
// target's, and not watched itself.
func (w *Watcher) addDescendants(root uint32) {
	for range maxScans {
		children, err := w.fs.children()
		if err != nil {
			w.failed = fmt.Sprintf("looking for children: %v", err)
			return
		}
		found := false
		for _, e := range w.table.list() {
			if root == 0 || e.p.Root == root {
				found = w.addChildren(e.p, children) || found
			}
		}
		if !found {
			return
		}
	}
}

// addChildren adds p's children, theirs, and so on, as the lists have them.
func (w *Watcher) addChildren(p *Process, children func(parent uint32) []uint32) (found bool) {
	pending := []*Process{p}
	for len(pending) > 0 {
		parent := pending[0]
		pending = pending[1:]
		for _, pid := range children(parent.PID) {
			if child := w.addChild(parent, pid); child != nil {
				pending = append(pending, child)
				found = true
			}
		}
	}
	return found
}

// addChild adds one process, unless it is no child of parent's (any more), or
// the kernel follows it already and has its fork event under way.
func (w *Watcher) addChild(parent *Process, pid uint32) *Process {
	if w.table.live[pid] != nil {
		return nil
	}
	p, err := w.fs.describe(pid)
	if err != nil {
		return nil
	}
	if p.Parent != parent.PID || w.kernel.isWatched(p.ID()) || w.hold(p) != nil {
		_ = p.Close()
		return nil
	}
	p.Root = parent.Root
	w.adopt(p, monotonic())
	return p
}

// forked takes a birth. The child may be gone already, and its pid another's: it
// is what the kernel said it was, and only held if it is still there.
func (w *Watcher) forked(e event.Event) {
	id := ID{e.PID, e.Args[1] / nsPerTick}
	if w.known(id) != nil {
		return // found in /proc as well
	}
	p := &Process{
		PID: e.PID, StartTime: id.StartTime, Born: e.TS,
		Parent: uint32(e.Args[0]), UID: uint32(e.Ret), Comm: comm(e.Args[2:4]),
	}
	p.own(e.TS, ownerAt(e))
	if parent := w.table.latest(p.Parent); parent != nil {
		p.Root, p.Cmdline = parent.p.Root, parent.p.Cmdline
	}
	if w.table.living[p.Root] >= maxLiving {
		w.kernel.unwatch(id)
		w.skipped[p.Root]++
		return
	}
	if !w.may(p.Root) {
		p.Payer = w.budgets.payerOf(p.Root)
		x := w.table.add(p)
		x.untold = true
		w.putOffUntilLater(x)
		return
	}
	w.charged(p.Root, func() {
		w.fs.grasp(p)
		w.adopt(p, e.TS)
	})
}

// ownerAt returns the one user that a process ran as at an event, as far as the kernel's program can see.
func ownerAt(e event.Event) uint32 {
	if e.Dur != 0 {
		return Root
	}
	return uint32(e.Ret)
}

// restrict takes who owns a process a moment after what is noted of it: it is nobody's alone where both differ.
func (p *Process) restrict(owner uint32) {
	if owner != p.Owner {
		p.own(p.Owned[len(p.Owned)-1].From, Root)
	}
}

// grasp opens the pidfd of a process if it still runs.
func (fs *procfs) grasp(p *Process) {
	pidfd, err := openPidfd(p.PID)
	if err != nil {
		return
	}
	s, err := fs.stat(p.PID)
	more, moreErr := fs.status(p.PID)
	if err != nil || moreErr != nil || s.start != p.StartTime {
		_ = pidfd.Close()
		return
	}
	owner, _ := fs.ownerOf(p.PID, more)
	p.restrict(owner)
	p.pidfd, p.NSPID = pidfd, more.nspid
}

// execed takes a new program: its name and owner from the kernel, the rest from /proc if the process still runs and
// there is time for it.
func (w *Watcher) execed(e event.Event) {
	x := w.table.live[e.PID]
	if x == nil {
		return
	}
	before := x.p.Owner
	x.change(func(p *Process) {
		p.Comm, p.UID, p.Execs = comm(e.Args[1:3]), uint32(e.Ret), p.Execs+1
		p.own(e.TS, ownerAt(e))
	})
	if x.execed != 0 && !x.untold {
		w.skipped[x.p.Root]++ // the program before
	}
	x.execed = e.TS
	x.begins(e.TS)
	switch {
	case w.may(x.p.Root) && !x.untold && x.execs <= maxExecs:
		w.charged(x.p.Root, func() { w.tellExec(x) })
		return
	case x.p.Owner != before && !x.untold: // who may see it is told at once, whatever it costs
		w.queue.push(Change{Renewed, x.p, e.TS})
	}
	w.putOffUntilLater(x)
}

// tellExec tells of the last program that a process has begun to run.
func (w *Watcher) tellExec(x *entry) {
	pid := x.p.PID
	cmdline := w.fs.cmdline(pid)
	more, err := w.fs.status(pid)
	owner, _ := w.fs.ownerOf(pid, more)
	x.change(func(p *Process) {
		if err == nil && p.Alive() {
			p.Cmdline, p.UID, p.NSPID = cmdline, more.uid, more.nspid
			p.restrict(owner)
		}
	})
	w.queue.push(Change{Execed, x.p, x.execed})
	x.execed, x.mapped = 0, 0
}

// noteMapped notes that a process may have mapped a file executable, or will.
func (w *Watcher) noteMapped(x *entry, at uint64) {
	switch {
	case x.untold || x.execed != 0: // it is looked at as a whole
	case w.may(x.p.Root):
		w.queue.push(Change{Mapped, x.p, at})
		x.mapped = 0
	default:
		if x.mapped == 0 {
			x.mapped = at
		}
		w.putOffUntilLater(x)
	}
}

// catchUpInterval is how often it is looked whether targets have budget again.
const catchUpInterval = 100 * time.Millisecond

func (w *Watcher) putOffUntilLater(x *entry) {
	if len(w.putOff) == 0 {
		w.later.Reset(catchUpInterval)
	}
	w.putOff[x.p.PID] = x
}

// catchUp publishes what was put off, as far as budgets go.
func (w *Watcher) catchUp() {
	w.drainEvents() // most of what a storm has made is gone by now
	for pid, x := range w.putOff {
		if !w.may(x.p.Root) || x.hastens(monotonic()) {
			continue
		}
		delete(w.putOff, pid)
		w.charged(x.p.Root, func() { w.tellLate(x) })
	}
	if len(w.putOff) > 0 {
		w.later.Reset(catchUpInterval)
	}
}

func (w *Watcher) tellLate(x *entry) {
	switch {
	case x.untold:
		x.untold, x.execed, x.mapped = false, 0, 0
		at := x.p.Owned[len(x.p.Owned)-1].From // whose it was before its last program is nobody's business
		x.change(w.fs.grasp)
		if x.p.Alive() {
			cmdline := w.fs.cmdline(x.p.PID)
			x.change(func(p *Process) { p.Cmdline = cmdline })
		}
		w.queue.push(Change{Appeared, x.p, at})
	case x.execed != 0:
		w.tellExec(x)
	case x.mapped != 0:
		w.queue.push(Change{Mapped, x.p, x.mapped})
		x.mapped = 0
	}
}

// maxAhead bounds the changes of a target that wait for the consumer: what they will cost is known when it has had
// them.
const maxAhead = 1024

// may reports whether anything may be done for a target now.
func (w *Watcher) may(root uint32) bool {
	return w.queue.waiting[root] < maxAhead && w.budgets.may(root)
}

// charged does something for a target, which pays for it.
func (w *Watcher) charged(root uint32, f func()) { w.budgets.spend(root, CPUTime(f)) }
