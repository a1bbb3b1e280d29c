package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// defaultWindow is the window of a report about a process that was not watched before.
const defaultWindow = 10 * time.Second

// attachTime bounds the wait for a daemon that attaches to a process.
const attachTime = time.Minute

// connection is a daemon and the target of a command.
type connection struct {
	*api.Client
	g     *global
	pid   uint32
	own   *watcher // a daemon that was started for this command; nil: it was there
	added bool     // the process became a target for this command
	fresh bool     // it was not watched before: there is no past
	once  sync.Once
	over  chan struct{} // closed when everything is undone
}

// reach connects to the daemon and finds the process of a command: by --pid, by a name, or the only watched one.
// Without a daemon, root gets a temporary one. It returns when the process is attached.
func (g *global) reach(ctx context.Context, f *reportFlags) (*connection, error) {
	client, err := g.dial()
	if err != nil {
		return g.reachOwn(ctx, f, err)
	}
	c := &connection{Client: client, g: g, over: make(chan struct{})}
	return c.begin(ctx, f, func() error { return c.find(ctx, f) })
}

// begin finds the process of a command by find and waits until it is attached. It leaves the daemon if that fails.
func (c *connection) begin(ctx context.Context, f *reportFlags, find func() error) (*connection, error) {
	c.g.leaveAtEnd(c)
	err := find()
	if err == nil {
		err = c.awaitWatched(ctx, f)
	}
	if err != nil {
		c.leave()
		return nil, err
	}
	return c, nil
}

// find chooses the target. An ended target is used only if no running process fits: a GPU process that is not watched
// becomes a target for the duration of this command.
func (c *connection) find(ctx context.Context, f *reportFlags) error {
	targets, err := c.Targets(ctx)
	if err != nil {
		return err
	}
	pid, err := choose(targets, f)
	wanted := uint32(f.pid)
	over := err == nil && slices.ContainsFunc(targets, func(t api.Target) bool { return t.PID == pid && ended(&t) })
	if wanted == 0 && (clierror.CodeOf(err) == clierror.NoProcess || over && f.last == 0) {
		if found, missing := c.candidate(ctx, f); missing == nil {
			wanted = found
		}
	}
	if err == nil && wanted == uint32(f.pid) {
		c.pid = pid
		if f.pid != 0 && uint32(f.pid) != pid {
			fmt.Fprintf(c.g.stderr,
				"inferscope: pid %d belongs to target %d: the whole target is covered\n", f.pid, pid)
		}
		return nil
	}
	if wanted == 0 {
		return err
	}
	// No one asked for it yet: watch it for this command.
	if adding := c.watch(ctx, wanted); clierror.CodeOf(adding) == clierror.Unsupported { // a daemon of named pids
		return err
	} else if adding != nil {
		return adding
	}
	c.pid, c.added, c.fresh = wanted, true, true
	fmt.Fprintf(c.g.stderr, "inferscope: the daemon did not watch pid %d: watching it for this command\n", wanted)
	return nil
}

// watch makes a process a target.
func (c *connection) watch(ctx context.Context, pid uint32) error {
	defer c.g.progress(ctx, progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("waiting for the daemon to watch pid %d: %.0f s", pid, passed.Seconds())
	})()
	return c.Watch(ctx, pid)
}

// candidate finds a process by name that uses a GPU and is not watched.
func (c *connection) candidate(ctx context.Context, f *reportFlags) (uint32, error) {
	found, err := c.Candidates(ctx)
	if err != nil {
		return 0, err
	}
	return chooseCandidate(found, f)
}

// awaitWatched waits until the daemon has attached to the target: before that nothing is recorded.
func (c *connection) awaitWatched(ctx context.Context, f *reportFlags) error {
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	done := c.g.progress(ctx, progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("waiting for the daemon to attach to pid %d: %.0f s", c.pid, passed.Seconds())
	})
	defer done()
	for {
		targets, err := c.Targets(ctx)
		if err != nil {
			return c.own.explain(err)
		}
		if !attaching(targets, c.pid) {
			break
		}
		c.fresh = true
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return clierror.New(clierror.General, "inferscope status shows what it does",
					fmt.Errorf("the daemon has not attached to pid %d within %s", c.pid, attachTime))
			}
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if c.fresh && f.last > 0 {
		return clierror.New(clierror.Usage, "use --for: it looks at the time from now on",
			fmt.Errorf("pid %d was not watched so far: there is no past of it", c.pid))
	}
	return nil
}

func attaching(targets []api.Target, pid uint32) bool {
	for i := range targets {
		if targets[i].PID == pid {
			return targets[i].State == api.Attaching
		}
	}
	return false
}

// reachOwn starts a temporary daemon when none answers. why is the error of the client.
func (g *global) reachOwn(ctx context.Context, f *reportFlags, why error) (*connection, error) {
	if clierror.CodeOf(why) != clierror.NoDaemon || ctx.Err() != nil {
		return nil, why
	}
	if os.Geteuid() != 0 {
		return nil, clierror.New(clierror.NoDaemon,
			"start one with: sudo inferscoped; or run this command with sudo, which starts one for the time",
			why)
	}
	if _, err := daemonProgram(); err != nil {
		return nil, why
	}
	if f.last > 0 {
		return nil, clierror.New(clierror.NoDaemon,
			"use --for: without a daemon only the time from now on can be looked at", why)
	}
	pid := uint32(f.pid)
	if pid == 0 {
		found, err := g.candidates(ctx)
		if err != nil {
			return nil, err
		}
		if pid, err = chooseCandidate(found, f); err != nil {
			return nil, err
		}
	}
	// PR_SET_PDEATHSIG of the daemon refers to the thread that starts it: keep this goroutine on that thread.
	runtime.LockOSThread()
	done := g.progress(ctx, progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("starting a daemon for pid %d: %.0f s", pid, passed.Seconds())
	})
	var flags []string
	if f.cupti != "" {
		flags = []string{"--cupti", f.cupti}
	}
	own, err := g.startDaemon(flags, nil)
	done()
	if err != nil {
		return nil, err
	}
	c := &connection{Client: own.Client, g: g, pid: pid, own: own, fresh: true, over: make(chan struct{})}
	return c.begin(ctx, f, func() error { return own.explain(own.Watch(ctx, pid)) })
}

// window returns the interval of a report. For a process that was not watched before it is the next seconds.
func (c *connection) window(f *reportFlags) api.Window {
	if c.fresh && f.window == 0 {
		f.window = defaultWindow
		fmt.Fprintf(c.g.stderr,
			"inferscope: pid %d was not watched before: recording its next %s (--for sets how long)\n",
			c.pid, f.window)
	}
	return api.Window{Last: f.last, For: f.window, GPU: f.gpu}
}

// fetch returns the recording for a report and begins to leave the daemon.
func (c *connection) fetch(ctx context.Context, f *reportFlags) (*recording.Recording, error) {
	win := c.window(f)
	done := c.g.progress(ctx, untilShown(win.For), recordingOf(c.pid, win.For))
	rec, err := c.Recording(ctx, c.pid, win)
	done()
	if err != nil {
		return nil, err
	}
	if c.own != nil {
		c.g.warn(ctx, c.own, rec)
	}
	go c.leave()
	return rec, nil
}

// leave releases a target that was added for this command and stops a temporary daemon.
func (c *connection) leave() {
	c.once.Do(func() {
		defer close(c.over)
		var err error
		if c.own != nil {
			err = c.own.close()
		} else if c.added {
			err = c.Release(context.Background(), c.pid)
		}
		c.Close()
		if err != nil {
			fmt.Fprintf(c.g.stderr, "inferscope: warning: %s\n", format.Clean(err.Error()))
		}
	})
	<-c.over
}

// leaveAtEnd registers a connection to be left when the program ends, however it ends.
func (g *global) leaveAtEnd(c *connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.connections = append(g.connections, c)
}

// leaveAll leaves all registered connections.
func (g *global) leaveAll() {
	g.mu.Lock()
	all := g.connections
	g.mu.Unlock()
	for _, c := range all {
		c.leave()
	}
}
