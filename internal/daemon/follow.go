package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/logfield"
	"github.com/inferscope/inferscope/internal/recording"
)

// follower handles changes of processes: it calls the sources and stores what recordings need. Its goroutine handles
// one change at a time.
type follower struct {
	log     *zap.Logger
	watcher watcher
	sources []Source
	tables  tables // nil where no source has them
	counter counter
	clock   clockFunc

	recorder *recording.Recorder // nil in tests that record nothing
	guard    guardFunc

	turns chan func()   // done by its goroutine
	came  chan struct{} // holds a value when the sources began to follow a target, or something more of it
	ready chan struct{} // closed when every process that was there at the start is followed
	ended chan struct{} // closed when all of them, and all their children, are gone
	done  chan struct{} // closed when run has returned

	mu     sync.Mutex
	roots  []*root
	added  bool // all targets were asked for
	isGone bool
	forgot bool // a target was withdrawn: the recorder may hold events of it
}

func newFollower(
	log *zap.Logger,
	w watcher,
	sources []Source,
	tables tables,
	counter counter,
	clock clockFunc,
) *follower {
	return &follower{
		log: log, watcher: w, sources: sources, tables: tables, counter: counter, clock: clock, guard: guardOf,
		turns: make(chan func()), came: make(chan struct{}, 1),
		ready: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{}),
	}
}

// add adds targets. run must be running: their changes may come before add returns.
func (f *follower) add(pids []int) error {
	for _, pid := range pids {
		p, err := f.watcher.Add(pid)
		if err != nil {
			return fmt.Errorf("cannot watch the process: %w", err)
		}
		f.mu.Lock()
		f.await(f.makeRoot(p.Root))
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added = true
	f.settle()
	return nil
}

// await stores which processes of a target must be followed before the target counts as followed. The caller holds the
// lock.
func (f *follower) await(r *root) {
	for _, q := range f.watcher.Living(r.pid) {
		if r.procs[q.ID()] == nil {
			r.pending[q.ID()] = true
		}
	}
}

// root returns the target with this pid; nil if there is none, for example after it was withdrawn. The caller holds the
// lock.
func (f *follower) root(pid uint32) *root {
	for _, r := range f.roots {
		if r.pid == pid {
			return r
		}
	}
	return nil
}

// makeRoot returns the target with this pid, which it creates if needed. The caller holds the lock.
func (f *follower) makeRoot(pid uint32) *root {
	if r := f.root(pid); r != nil {
		return r
	}
	r := newRoot(pid)
	f.roots = append(f.roots, r)
	return r
}

// run handles changes until ctx is done or the watcher ends.
func (f *follower) run(ctx context.Context) {
	defer close(f.done)
	for {
		select {
		case <-ctx.Done():
			return
		case work := <-f.turns:
			work()
		case c, ok := <-f.watcher.Changes():
			if !ok {
				return
			}
			f.watcher.Spent(c.Process.Root, proc.CPUTime(func() { f.handle(c) }))
		}
	}
}

func (f *follower) handle(c proc.Change) {
	p := c.Process
	f.log.Debug("process "+c.Kind.String(), zap.Uint32("pid", p.PID), zap.String("comm", p.Comm),
		zap.Uint32("target", p.Root))
	f.mu.Lock()
	known := f.root(p.Root) != nil
	if !known && c.Kind == proc.Appeared && p.PID == p.Root { // it may come before Add returns
		f.makeRoot(p.Root)
		known = true
	}
	f.mu.Unlock()
	if !known { // its target was withdrawn meanwhile
		for _, s := range f.sources {
			s.Forget(p)
		}
		return
	}
	switch c.Kind {
	case proc.Appeared:
		if f.counter != nil {
			f.counter.Target(p.PID, p.Root)
		}
		f.note(p)
		f.assign(p)
		f.follow(p, c.At)
	case proc.Execed:
		f.keepLibraries(p)
		f.note(p)
		f.follow(p, c.At)
	case proc.Mapped:
		f.follow(p, c.At)
	case proc.Renewed:
		if f.note(p) {
			f.follow(p, c.At)
		}
	case proc.Exited:
		f.keepLibraries(p)
		f.note(p)
		f.keepThreads(p)
		f.unassign(p)
		for _, s := range f.sources {
			s.Forget(p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.root(p.Root); r != nil {
		delete(r.pending, p.ID())
	}
	f.settle()
}

// assign makes the recorder attribute the events of p to its target.
func (f *follower) assign(p *proc.Process) {
	if f.recorder == nil {
		return
	}
	f.mu.Lock()
	r := f.root(p.Root)
	var o recording.Owner
	if r != nil {
		o = r.user(p)
	}
	f.mu.Unlock()
	if r != nil {
		f.recorder.Assign(p.PID, p.Born, o)
	}
}

func (f *follower) unassign(p *proc.Process) {
	if f.recorder != nil {
		f.recorder.Unassign(p.PID)
	}
}

// note stores the current state of p, and reports whether its owner has changed.
func (f *follower) note(p *proc.Process) (another bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(p.Root)
	return r != nil && r.note(p)
}

// follow calls every source for p, which changed at the given time (ns).
func (f *follower) follow(p *proc.Process, at uint64) {
	if f.forbidden(p) {
		for _, s := range f.sources {
			s.Forget(p)
		}
		return
	}
	before := f.clock()
	for _, s := range f.sources {
		err := s.Follow(p)
		if err != nil && ended(p, err) {
			continue // Exited follows
		}
		if f.newComplaint(p, s.Name(), err) {
			// A new process maps its libraries one by one, and what remains uncovered is counted as a loss.
			f.log.Warn("a process is not covered, or only in part", zap.String("source", s.Name()),
				zap.Uint32("pid", p.PID), zap.String("comm", p.Comm), zap.Error(err), logfield.Reported())
		}
	}
	f.noteUnprobed(p, at, before)
	if p.PID == p.Root {
		select {
		case f.came <- struct{}{}:
		default:
		}
	}
}

// ended reports whether err only means that p has ended, which is usual for programs that start many short processes.
func ended(p *proc.Process, err error) bool {
	gone := clierror.CodeOf(err) == clierror.NoProcess || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist)
	return gone && !p.Alive()
}

// newComplaint reports whether err should be logged: Follow fails again at each change for the same reason.
func (f *follower) newComplaint(p *proc.Process, source string, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.root(p.Root); r != nil && r.procs[p.ID()] != nil {
		return r.procs[p.ID()].complain(source, err)
	}
	return err != nil
}

// noteUnprobed records the libraries of p that are probed only now although they were mapped at the time at: calls in
// between are missing.
func (f *follower) noteUnprobed(p *proc.Process, at, before uint64) {
	libraries := f.librariesOf(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(p.Root)
	if r == nil || r.since == 0 {
		return // the recording begins when the first processes are covered
	}
	for _, l := range libraries {
		if l.Probed >= before && l.Probed > at {
			r.noteUnprobed(unprobedInterval{pid: p.PID, from: at, until: l.Probed})
		}
	}
}

func (f *follower) libraries() []recording.Library {
	if f.tables == nil {
		return nil
	}
	return f.tables.Libraries()
}

func (f *follower) librariesOf(pid uint32) []recording.Library {
	return slices.DeleteFunc(slices.Clone(f.libraries()), func(l recording.Library) bool { return l.PID != pid })
}

// keepLibraries stores the mappings of p before its sources forget it.
func (f *follower) keepLibraries(p *proc.Process) {
	libraries := f.librariesOf(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.root(p.Root); r != nil {
		r.keepLibraries(libraries)
	}
}

// keepThreads stores the names of p's threads: the watcher forgets ended ones.
func (f *follower) keepThreads(p *proc.Process) {
	threads := f.watcher.Threads(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.root(p.Root); r != nil && r.procs[p.ID()] != nil {
		r.procs[p.ID()].threads = threads
	}
}

// settle updates whether all targets are followed, or have ended. The caller holds the lock.
func (f *follower) settle() {
	if !f.added {
		return
	}
	alive, all := 0, true
	for _, r := range f.roots {
		alive += r.living
		if len(r.pending) > 0 || r.asked && len(r.procs) == 0 {
			all = false
			continue
		}
		if r.since == 0 {
			r.since = f.clock()
			f.log.Debug("a target is followed", zap.Uint32("pid", r.pid))
		}
	}
	if !all {
		return
	}
	select {
	case <-f.ready:
	default:
		close(f.ready)
	}
	if alive == 0 && len(f.roots) > 0 && !f.isGone {
		f.isGone = true
		close(f.ended)
	}
}
