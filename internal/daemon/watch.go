package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Limits for targets that are added while the daemon runs.
const (
	maxRoots    = 64  // as many as the command line may name, running
	maxEnded    = 256 // that have ended, whose recordings are still served
	maxOfOwner  = 8   // of one unprivileged user, living
	followEvery = 2 * time.Millisecond
)

// Watch makes a process a target.
func (d *Daemon) Watch(ctx context.Context, r api.WatchRequest) error {
	if !r.AnyOwner {
		if err := belongs(r.PID, r.Owner); err != nil {
			return err
		}
	}
	if err := d.follower.include(r); err != nil {
		return err
	}
	if err := d.follower.turn(ctx, func() error { return d.follower.resume(r.PID) }); err != nil {
		return err
	}
	for !d.follower.follows(r.PID) {
		select {
		case <-ctx.Done():
			return clierror.New(clierror.General, "look into the daemon's log",
				fmt.Errorf("pid %d is not followed yet: %w", r.PID, ctx.Err()))
		case <-d.follower.done:
			return errors.New("the daemon is stopping")
		case <-time.After(followEvery):
		}
	}
	return nil
}

// belongs returns an error if a process does not run only as uid.
func belongs(pid, uid uint32) error {
	p, err := proc.Describe(int(pid))
	if err == nil {
		defer func() { _ = p.Close() }()
		if p.Owner == uid {
			return nil
		}
		_, err = p.CurrentOwner()
	}
	why := fmt.Errorf("pid %d does not belong to user %d alone", pid, uid)
	if err != nil &&
		clierror.CodeOf(
			err,
		) != clierror.NoProcess { // whether there is such a process is no business of a user who may not see it
		why = fmt.Errorf("%w: %w", why, err)
	}
	return clierror.New(clierror.Permission,
		"ask as root (sudo), or for a process of yours that runs as nobody else", why)
}

// include adds a process to the watcher. run must be running.
func (f *follower) include(r api.WatchRequest) error {
	if err := f.reserve(r); err != nil {
		return err
	}
	p, err := f.watcher.Add(int(r.PID))
	f.mu.Lock()
	defer f.mu.Unlock()
	root := f.makeRoot(r.PID)
	if err == nil && p.Root != r.PID {
		err = clierror.New(clierror.Usage, fmt.Sprintf("`inferscope report --pid %d` has it, too", p.Root),
			fmt.Errorf("pid %d is watched as a child of target %d", r.PID, p.Root))
	}
	if err != nil {
		f.withdraw(root)
		return fmt.Errorf("cannot watch the process: %w", err)
	}
	if !r.AnyOwner && p.Owner != r.Owner { // it is another user's since it was looked at
		return clierror.New(clierror.Permission, "ask as root (sudo)",
			fmt.Errorf("pid %d does not belong to user %d alone", r.PID, r.Owner))
	}
	f.await(root)
	f.settle()
	return nil
}

// reserve creates the root of a target, so that its owner is known before its first change.
func (f *follower) reserve(r api.WatchRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	owned, running, over := 0, 0, 0
	var same, oldest *root
	for _, k := range f.roots {
		switch {
		case k.pid == r.PID && (k.living > 0 || len(k.procs) == 0): // it is watched, or about to be
			return nil
		case k.pid == r.PID:
			same = k
		case k.living == 0 && len(k.procs) > 0:
			if over++; oldest == nil {
				oldest = k
			}
		default:
			running++
			if k.limited && k.owner == r.Owner && k.living > 0 {
				owned++
			}
		}
	}
	if same != nil {
		f.withdraw(same)
	}
	if over >= maxEnded {
		f.withdraw(oldest)
	}
	if running >= maxRoots || !r.AnyOwner && owned >= maxOfOwner {
		return clierror.New(clierror.General, "wait for one of them to end, or start a daemon of your own",
			fmt.Errorf("%w: it watches as many programs as it may", api.ErrBusy))
	}
	root := f.makeRoot(r.PID)
	root.asked, root.limited, root.owner, root.found = true, !r.AnyOwner, r.Owner, r.Found
	return nil
}

// withdraw removes a target that ended or never appeared. From now on every recording is filtered, because the recorder
// may still hold its events. The caller holds the lock.
func (f *follower) withdraw(r *root) {
	if r.living > 0 {
		return
	}
	if i := slices.Index(f.roots, r); i >= 0 {
		f.roots = slices.Delete(f.roots, i, i+1)
		f.forgot = true
		if f.counter != nil {
			f.counter.Forget(r.pid)
		}
	}
}

// follows reports whether all initial processes of target pid are followed.
func (f *follower) follows(pid uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(pid)
	return r != nil && r.since != 0
}

// attachTime bounds how long a request waits until its target is followed.
const attachTime = 5 * time.Second

// awaitFollowed returns when a new target is followed, or after attachTime.
func (f *follower) awaitFollowed(ctx context.Context, pid uint32) {
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	for {
		f.mu.Lock()
		r := f.root(pid)
		waits := r != nil && r.since == 0
		f.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(followEvery):
		}
	}
}

// forbidden reports whether a process must not be watched: its target was released, or belongs to a user and the
// process now runs as another one.
func (f *follower) forbidden(p *proc.Process) bool {
	f.mu.Lock()
	r := f.root(p.Root)
	if r == nil { // withdrawn meanwhile
		f.mu.Unlock()
		return true
	}
	limited, owner, released := r.limited, r.owner, r.released
	f.mu.Unlock()
	if released || !limited || p.Died != 0 {
		return released
	}
	guard, err := f.guard(p, owner)
	if err != nil {
		return true
	}
	_ = guard.Close()
	return p.Owner != owner
}
