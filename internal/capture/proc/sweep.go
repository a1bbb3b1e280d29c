package proc

import (
	"maps"

	"golang.org/x/sys/unix"
)

// sweep looks, once a second, for what no event has told: deaths without an exit
// event, births that the ring had no room for, CPUs that came online; and keeps
// the names of threads.
func (w *Watcher) sweep() {
	if w.maps.refresh() || w.allDue {
		w.allDue = false
		w.allMapped()
	}
	if now := monotonic(); now >= w.lostDue {
		w.lostDue = now + uint64(float64(CPUTime(w.adoptLost))/budgetShare)
	}
	roots := map[uint32]bool{}
	for _, e := range w.table.list() {
		if w.isGone(e) {
			w.lateDead++
			w.kernel.unwatch(e.p.ID())
			w.bury(e, monotonic(), 0)
			continue
		}
		roots[e.p.Root] = true
		if e.untold || !w.budgets.may(e.p.Root) {
			continue
		}
		w.charged(e.p.Root, func() {
			w.fs.renewThreads(e)
			if w.fs.renew(e) {
				w.queue.push(Change{Renewed, e.p, monotonic()})
			}
		})
	}
	w.budgets.forget(roots)
	w.table.expire(monotonic())
	w.forgetSkipped()
}

// forgetSkipped ends what is counted of targets of which nothing is known any more: by now it was read.
func (w *Watcher) forgetSkipped() {
	if len(w.skipped) == 0 {
		return
	}
	known := w.table.roots()
	maps.DeleteFunc(w.skipped, func(root uint32, _ uint64) bool { return !known[root] })
}

// isGone reports a death whose exit event did not come within a sweep.
func (w *Watcher) isGone(e *entry) bool {
	if e.untold {
		return !w.kernel.isWatched(e.p.ID()) // it is held when it is told of
	}
	if e.p.Alive() || w.graspAgain(e) {
		return false
	}
	e.missed++
	return e.missed > 1
}

// graspAgain tries once more to hold a process that could not be held when it
// was born, for want of a file descriptor.
func (w *Watcher) graspAgain(e *entry) bool {
	if e.p.pidfd != nil {
		return false
	}
	e.change(w.fs.grasp)
	return e.p.Alive()
}

// adoptLost finds the births that the kernel counted as lost. They are in its
// map all the same, so that their own children are followed; only we do not know
// them. Deaths that were lost are found by isGone.
func (w *Watcher) adoptLost() {
	now := w.kernel.losses()
	if now == w.seen {
		return
	}
	ids, err := w.kernel.watched()
	if err != nil {
		w.failed = err.Error()
		return
	}
	w.seen = now
	w.drainEvents() // births that are only on their way
	for _, id := range ids {
		if w.known(id) == nil && w.kernel.isWatched(id) {
			w.adoptUntold(id)
		}
	}
	w.addDescendants(0)
	w.allMapped()
}

// adoptUntold takes in a process that only the kernel's map knows. Its parent
// may be gone; then it counts as the child of nobody, of the oldest target.
func (w *Watcher) adoptUntold(id ID) {
	p, err := w.fs.describe(id.PID)
	if err != nil {
		return
	}
	if p.ID() != id {
		_ = p.Close()
		return
	}
	if parent := w.table.latest(p.Parent); parent != nil {
		p.Root = parent.p.Root
	} else {
		p.Parent, p.Root = 0, w.table.oldestRoot()
	}
	w.adopt(p, p.Born)
}

// renew follows what a process changes about itself without a new program:
// servers name their workers after the fork (setproctitle), and give up root.
// Costs 40 µs.
func (fs *procfs) renew(e *entry) (changed bool) {
	s, err := fs.stat(e.p.PID)
	more, moreErr := fs.status(e.p.PID)
	if err != nil || moreErr != nil {
		return false
	}
	owner, _ := fs.ownerOf(e.p.PID, more)
	if s.comm == e.p.Comm && more.uid == e.p.UID && owner == e.p.Owner {
		return false
	}
	cmdline := fs.cmdline(e.p.PID)
	if !e.p.Alive() {
		return false
	}
	e.change(func(p *Process) {
		p.Comm, p.Cmdline, p.UID = s.comm, cmdline, more.uid
		p.own(monotonic(), owner)
	})
	return true
}

func (t *table) oldestRoot() uint32 {
	for _, p := range t.snapshot() {
		if p.Root == p.PID {
			return p.PID
		}
	}
	return 0
}

func linkCount(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return uint64(st.Nlink), err
}
