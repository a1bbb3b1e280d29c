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

	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/target"
)

// follower turns what happens to processes into work for the sources, and
// remembers it for recordings. Its own goroutine handles one change at a time.
type follower struct {
	log     *zap.Logger
	watcher Watcher
	sources []Source
	tables  Tables // nil where no source has them
	counter Counter
	clock   Clock

	turns chan func()   // done by its goroutine
	ready chan struct{} // closed when every process that was there at the start is followed
	gone  chan struct{} // closed when all of them, and all their children, are gone
	done  chan struct{} // closed when run has returned

	mu     sync.Mutex
	roots  []*root
	added  bool // all targets were asked for
	isGone bool
	forgot bool // a target was withdrawn: the recorder may hold events of it
}

func newFollower(log *zap.Logger, w Watcher, sources []Source, tables Tables, counter Counter, clock Clock) *follower {
	return &follower{
		log: log, watcher: w, sources: sources, tables: tables, counter: counter, clock: clock,
		turns: make(chan func()), ready: make(chan struct{}), gone: make(chan struct{}), done: make(chan struct{}),
	}
}

// add asks for targets. run must be running: their changes may come before add returns.
func (f *follower) add(pids []int) error {
	for _, pid := range pids {
		p, err := f.watcher.Add(pid)
		if err != nil {
			return fmt.Errorf("watching pid %d: %w", pid, err)
		}
		f.mu.Lock()
		f.await(f.root(p.Root))
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added = true
	f.settle()
	return nil
}

// await notes which processes of a target are to be followed before it is. The caller holds the lock.
func (f *follower) await(r *root) {
	for _, q := range f.watcher.Processes() {
		if q.Root == r.pid && q.Died == 0 && r.procs[q.ID()] == nil {
			r.pending[q.ID()] = true
		}
	}
}

// root returns the target with this pid. The caller holds the lock.
func (f *follower) root(pid uint32) *root {
	for _, r := range f.roots {
		if r.pid == pid {
			return r
		}
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
			f.handle(c)
		}
	}
}

func (f *follower) handle(c target.Change) {
	p := c.Process
	f.log.Debug("process "+c.Kind.String(), zap.Uint32("pid", p.PID), zap.String("comm", p.Comm), zap.Uint32("target", p.Root))
	switch c.Kind {
	case target.Appeared:
		f.counter.Target(p.PID, p.Root)
		f.note(p)
		f.follow(p, c.At)
	case target.Execed:
		f.keepLibraries(p)
		f.note(p)
		f.follow(p, c.At)
	case target.Mapped:
		f.follow(p, c.At)
	case target.Exited:
		f.keepLibraries(p)
		f.note(p)
		f.keepThreads(p)
		for _, s := range f.sources {
			s.Forget(p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.root(p.Root).pending, p.ID())
	f.settle()
}

// note remembers how p is now.
func (f *follower) note(p *target.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root(p.Root).note(p)
}

// follow lets every source look at p, which changed at the given time (ns).
func (f *follower) follow(p *target.Process, at uint64) {
	if f.barred(p) {
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
			f.log.Warn("a process is not covered, or not wholly", zap.String("source", s.Name()),
				zap.Uint32("pid", p.PID), zap.String("comm", p.Comm), zap.Error(err))
		}
	}
	f.noteLate(p, at, before)
}

// ended says whether err only means that p has ended: programs that start many short ones are usual.
func ended(p *target.Process, err error) bool {
	gone := fault.CodeOf(err) == fault.NoProcess || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist)
	return gone && !p.Alive()
}

// newComplaint says whether err is worth a line: Follow fails again at each change for the same reason.
func (f *follower) newComplaint(p *target.Process, source string, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.root(p.Root).procs[p.ID()]
	if e == nil {
		return err != nil
	}
	return e.complain(source, err)
}

// noteLate remembers which libraries of p got their probes only now although they
// were there since at: calls in between are missing.
func (f *follower) noteLate(p *target.Process, at, before uint64) {
	libraries := f.librariesOf(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(p.Root)
	if r.since == 0 {
		return // the recording begins when the first processes are covered
	}
	for _, l := range libraries {
		if l.Probed >= before && l.Probed > at {
			r.noteLate(late{pid: p.PID, from: at, until: l.Probed})
		}
	}
}

func (f *follower) libraries() []record.Library {
	if f.tables == nil {
		return nil
	}
	return f.tables.Libraries()
}

func (f *follower) librariesOf(pid uint32) []record.Library {
	return slices.DeleteFunc(slices.Clone(f.libraries()), func(l record.Library) bool { return l.PID != pid })
}

// keepLibraries remembers what p has mapped before its sources forget it.
func (f *follower) keepLibraries(p *target.Process) {
	libraries := f.librariesOf(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root(p.Root).keepLibraries(libraries)
}

// keepThreads remembers the names of p's threads: the watcher forgets the dead.
func (f *follower) keepThreads(p *target.Process) {
	threads := f.watcher.Threads(p.PID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.root(p.Root).procs[p.ID()]; e != nil {
		e.threads = threads
	}
}

// settle looks whether everything is followed, or gone. The caller holds the lock.
func (f *follower) settle() {
	if !f.added {
		return
	}
	alive := 0
	for _, r := range f.roots {
		if len(r.pending) > 0 || r.asked && len(r.procs) == 0 {
			return
		}
		alive += r.living
	}
	for _, r := range f.roots {
		if r.since == 0 {
			r.since = f.clock()
		}
	}
	select {
	case <-f.ready:
	default:
		close(f.ready)
	}
	if alive == 0 && len(f.roots) > 0 && !f.isGone {
		f.isGone = true
		close(f.gone)
	}
}
