package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Release removes probes and agents from a target that runs on, and waits until the agents have left. Its recording
// is still served, and Watch watches it again.
func (d *Daemon) Release(ctx context.Context, r api.WatchRequest) error {
	if err := d.follower.turn(ctx, func() error { return d.follower.release(r) }); err != nil {
		return err
	}
	return d.departed(ctx, r.PID)
}

// turn runs work in the goroutine that follows processes, between two changes.
func (f *follower) turn(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	select {
	case f.turns <- func() { done <- work() }:
		return <-done
	case <-f.done:
		return errors.New("the daemon is stopping")
	case <-ctx.Done():
		return clierror.New(clierror.General, "look into the daemon's log",
			fmt.Errorf("the daemon is busy: %w", ctx.Err()))
	}
}

func (f *follower) release(r api.WatchRequest) error {
	living, err := f.free(r)
	if err != nil {
		return err
	}
	for _, p := range living {
		f.keepLibraries(p)
		for _, s := range f.sources {
			s.Forget(p)
		}
	}
	return nil
}

// free marks a target as released, and returns its running processes.
func (f *follower) free(r api.WatchRequest) ([]*proc.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.root(r.PID)
	if k == nil || k.living == 0 {
		return nil, clierror.New(clierror.NoProcess, "inferscope targets lists those that are",
			fmt.Errorf("no target with pid %d runs", r.PID))
	}
	if !r.AnyOwner && (!k.limited || k.owner != r.Owner) {
		return nil, clierror.New(clierror.Permission, "ask as root (sudo), or as the user who had it watched",
			fmt.Errorf("user %d has not asked for pid %d to be watched", r.Owner, r.PID))
	}
	k.released = true
	return k.alive(), nil
}

// resume follows a released target again; it does nothing for others.
func (f *follower) resume(pid uint32) error {
	f.mu.Lock()
	var living []*proc.Process
	if k := f.root(pid); k != nil && k.released {
		k.released = false
		living = k.alive()
	}
	f.mu.Unlock()
	for _, p := range living {
		f.follow(p, f.clock())
	}
	return nil
}

// alive returns the running processes of a target. The caller holds the lock.
func (r *root) alive() []*proc.Process {
	var out []*proc.Process
	for _, e := range r.procs {
		if e.process.Died == 0 {
			out = append(out, e.process)
		}
	}
	return out
}
