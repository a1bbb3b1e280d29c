package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/target"
)

// Bounds of targets that are asked for while the daemon runs.
const (
	maxRoots    = 64 // as many as the command line may name
	maxOfOwner  = 8  // of one unprivileged user, living
	followEvery = 2 * time.Millisecond
)

// Watch makes a process a target. It implements api.Adder.
func (d *Daemon) Watch(ctx context.Context, r api.WatchRequest) error {
	if !r.AnyOwner && !ownedBy(r.PID, r.Owner) {
		return fault.New(fault.Permission, "ask as root (sudo), or for a process of yours that runs as nobody else",
			fmt.Errorf("pid %d does not belong to user %d alone", r.PID, r.Owner))
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
			return fault.New(fault.General, "look into the daemon's log", fmt.Errorf("pid %d is not followed yet: %w", r.PID, ctx.Err()))
		case <-d.follower.done:
			return errors.New("the daemon is stopping")
		case <-time.After(followEvery):
		}
	}
	return nil
}

// ownedBy says whether a process runs as uid and as nobody else: the kernel gives /proc/PID to
// root where a process has other ids, or capabilities, than the user who started it (proc(5),
// PR_SET_DUMPABLE).
func ownedBy(pid, uid uint32) bool {
	var st unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && st.Uid == uid
}

// include asks the watcher for a process. run must be running.
func (f *follower) include(r api.WatchRequest) error {
	if err := f.reserve(r); err != nil {
		return err
	}
	p, err := f.watcher.Add(int(r.PID))
	f.mu.Lock()
	defer f.mu.Unlock()
	root := f.root(r.PID)
	if err == nil && p.Root != r.PID {
		err = fault.New(fault.Usage, fmt.Sprintf("`inferscope report --pid %d` has it, too", p.Root),
			fmt.Errorf("pid %d is watched as a child of target %d", r.PID, p.Root))
	}
	if err != nil {
		f.withdraw(root)
		return fmt.Errorf("watching pid %d: %w", r.PID, err)
	}
	f.await(root)
	f.settle()
	return nil
}

// reserve makes the root of a target, so that its owner is known before its first change comes.
func (f *follower) reserve(r api.WatchRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	owned := 0
	var ended *root
	for _, k := range f.roots {
		switch {
		case k.pid == r.PID && (k.living > 0 || len(k.procs) == 0): // it is watched, or about to be
			return nil
		case k.pid == r.PID:
			ended = k
		case k.living == 0 && len(k.procs) > 0 && len(f.roots) >= maxRoots && ended == nil:
			ended = k
		case k.limited && k.owner == r.Owner && k.living > 0:
			owned++
		}
	}
	if ended != nil {
		f.withdraw(ended)
	}
	if len(f.roots) >= maxRoots || !r.AnyOwner && owned >= maxOfOwner {
		return fault.New(fault.General, "wait for one of them to end, or start a daemon of your own",
			fmt.Errorf("%w: it watches as many programs as it may", api.ErrBusy))
	}
	root := f.root(r.PID)
	root.asked, root.limited, root.owner = true, !r.AnyOwner, r.Owner
	return nil
}

// withdraw forgets a target that ended, or never came to be. From now on every recording is
// filtered: the recorder may still hold its events. The caller holds the lock.
func (f *follower) withdraw(r *root) {
	if r.living > 0 {
		return
	}
	for i, k := range f.roots {
		if k == r {
			f.roots = append(f.roots[:i], f.roots[i+1:]...)
			f.forgot = true
			return
		}
	}
}

// follows says whether everything that target pid had at its beginning is followed.
func (f *follower) follows(pid uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.roots {
		if r.pid == pid {
			return r.since != 0
		}
	}
	return false
}

// barred says whether a process is not to be watched: its target was released, or is a user's, and it has come to run
// as somebody else.
func (f *follower) barred(p *target.Process) bool {
	f.mu.Lock()
	r := f.root(p.Root)
	limited, owner, released := r.limited, r.owner, r.released
	f.mu.Unlock()
	return released || limited && p.Died == 0 && !ownedBy(p.PID, owner)
}
