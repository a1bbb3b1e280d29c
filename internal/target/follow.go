package target

import (
	"fmt"
	"os"

	"github.com/inferscope/inferscope/internal/event"
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
	w.adopt(p, monotonic())
	w.addDescendants()
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
	w.wake()
	w.table.add(p)
	w.queue.push(Change{Appeared, p, at})
}

// maxScans bounds the search for descendants. Each round but the last finds a
// process that the kernel did not follow, which only a fork from before Add can be.
const maxScans = 64

// addDescendants looks through /proc until there is no process left that is a
// child of a watched one and not watched itself.
func (w *Watcher) addDescendants() {
	for range maxScans {
		children, err := w.fs.children()
		if err != nil {
			w.failed = fmt.Sprintf("looking for children: %v", err)
			return
		}
		found := false
		for _, e := range w.table.list() {
			found = w.addChildren(e.p, children) || found
		}
		if !found {
			return
		}
	}
}

// addChildren adds p's children, theirs, and so on, as the lists have them.
func (w *Watcher) addChildren(p *Process, children map[uint32][]uint32) (found bool) {
	pending := []*Process{p}
	for len(pending) > 0 {
		parent := pending[0]
		pending = pending[1:]
		for _, pid := range children[parent.PID] {
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
	if parent := w.table.latest(p.Parent); parent != nil {
		p.Root, p.Cmdline = parent.p.Root, parent.p.Cmdline
	}
	p.pidfd, p.NSPID = w.fs.grasp(id)
	w.adopt(p, e.TS)
}

// grasp opens the pidfd of a process if it still runs.
func (fs *procfs) grasp(id ID) (pidfd *os.File, nspid uint32) {
	pidfd, err := openPidfd(id.PID)
	if err != nil {
		return nil, 0
	}
	s, err := fs.stat(id.PID)
	more, moreErr := fs.status(id.PID)
	if err != nil || moreErr != nil || s.start != id.StartTime {
		_ = pidfd.Close()
		return nil, 0
	}
	return pidfd, more.nspid
}

// execed takes a new program: its name from the kernel, the rest from /proc if
// the process still runs.
func (w *Watcher) execed(e event.Event) {
	x := w.table.live[e.PID]
	if x == nil {
		return
	}
	cmdline := w.fs.cmdline(e.PID)
	more, err := w.fs.status(e.PID)
	x.change(func(p *Process) {
		p.Comm = comm(e.Args[1:3])
		if err == nil && p.Alive() {
			p.Cmdline, p.UID, p.NSPID = cmdline, more.uid, more.nspid
		}
	})
	w.queue.push(Change{Execed, x.p, e.TS})
}
