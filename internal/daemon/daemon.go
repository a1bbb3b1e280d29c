package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/capture/sched/pressure"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/recording"
)

// Options are the settings of a Daemon.
type Options struct {
	PIDs           []int         // the targets; none: those that are asked for later (Watch)
	Keep           time.Duration // how far back recordings reach
	ExitWithTarget bool          // Run ends when all targets and their children are gone
	Overhead       Overhead      // what watching may cost
	Discover       *Discover     // nil: only processes that are asked for are watched
}

// Parts are the components of a Daemon, which owns them: Run closes those that have a Close.
type Parts struct {
	Warnings *Warnings // of Log; may be nil
	Log      *zap.Logger
	Clock    clockFunc
	Watcher  watcher
	Rings    rings
	Recorder *recording.Recorder
	Sources  []Source
	Counter  counter        // nil: metrics are off
	Dumper   dumper         // may be nil: then no dumps are made
	Pods     *discover.Pods // may be nil: then pods are known only from what the node shows
}

// Close closes all parts of a daemon that never ran.
func (p *Parts) Close() error { return errors.Join(p.closeSources(), p.closeRest()) }

func (p *Parts) closeSources() error {
	var errs []error
	for _, s := range p.Sources {
		if err := s.Close(); err != nil {
			errs = append(errs, fmt.Errorf("taking the probes of %s off: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func (p *Parts) closeRest() error {
	var errs []error
	if p.Watcher != nil {
		errs = append(errs, p.Watcher.Close())
	}
	if p.Rings != nil {
		errs = append(errs, p.Rings.Close())
	}
	return errors.Join(errs...)
}

// Daemon follows targets and serves recordings of them.
type Daemon struct {
	opts     Options
	parts    Parts
	log      *zap.Logger
	clock    clockFunc
	watcher  watcher
	rings    rings
	recorder *recording.Recorder
	sources  []Source
	tables   tables
	stacker  stacker  // nil where no source is one
	activity activity // likewise
	ranger   ranger   // likewise
	evidence evidence
	host     recording.Host
	ras      *rasReader
	started  uint64

	history  *lossHistory
	drainer  *drainer
	follower *follower

	governing  *governing
	discovery  *discovery
	archiver   atomic.Pointer[fleet.Process] // nil: no recordings are kept on the disk
	incomplete bool                          // Run returned before everything had ended
}

// New creates a daemon, which does nothing before Run. It is an error if two sources have function tables, stacks, GPU
// activity, or named ranges.
func New(opts Options, p Parts) (*Daemon, error) {
	d := &Daemon{
		opts: opts, parts: p, log: p.Log, clock: p.Clock, watcher: p.Watcher, rings: p.Rings,
		recorder: p.Recorder, sources: p.Sources, host: host(), started: p.Clock(),
		ras: newRASReader(p.Log, p.Clock),
	}
	var feeds []*feed
	var settlers []settlingFeeder
	for _, s := range p.Sources {
		if err := d.adopt(s); err != nil {
			return nil, err
		}
		if f, ok := s.(feeder); ok {
			feeds = append(feeds, newFeed(f, p.Recorder.Needed))
		}
		if f, ok := s.(settlingFeeder); ok {
			settlers = append(settlers, f)
		}
	}
	d.history = newLossHistory(d.lossesNeeded, d.readLosses)
	d.drainer = newDrainer(p.Rings, p.Recorder, p.Counter, d.history, p.Clock)
	d.drainer.feeds, d.drainer.settlers = feeds, settlers
	var err error
	if d.drainer.ticker, err = newTicker(slowest); err != nil {
		return nil, err
	}
	d.evidence = gather(p.Sources)
	d.drainer.observe = d.evidence.observe
	d.follower = newFollower(p.Log, p.Watcher, p.Sources, d.tables, p.Counter, p.Clock)
	d.follower.recorder = p.Recorder
	if d.governing, err = newGoverning(opts.Overhead, d); err != nil {
		return nil, err
	}
	d.evidence.observers = append(d.evidence.observers, d.governing)
	d.discovery = newDiscovery(opts.Discover, d)
	return d, nil
}

// lossesNeeded returns the time (ns) before which no recording begins; 0: unknown. A recording of an ended target
// begins up to Options.Keep before its end, and is served for as long after it.
func (d *Daemon) lossesNeeded() uint64 {
	held := d.recorder.Needed()
	return held - min(held, uint64(d.opts.Keep))
}

// adopt registers the tables of a source.
func (d *Daemon) adopt(s Source) error {
	return errors.Join(
		only(&d.tables, s, "names functions"),
		only(&d.stacker, s, "keeps stacks"),
		only(&d.activity, s, "tells what GPUs did"),
		only(&d.ranger, s, "names ranges"),
	)
}

// only sets one to s where s is a T. At most one source may be; does says what such a source does.
func only[T any](one *T, s Source, does string) error {
	t, ok := s.(T)
	if !ok {
		return nil
	}
	if any(*one) != nil {
		return fmt.Errorf("source %s: another source already %s", s.Name(), does)
	}
	*one = t
	return nil
}

// Hooks are called by Run, at most once each.
type Hooks struct {
	Ready    func() // every process that was there is followed
	Stopping func() // the end begins; everything still works until it returns
}

// Run follows the targets until ctx is done or, with ExitWithTarget, until they have ended. When it returns, all probes
// are off and every part is closed, or stopBound has passed. An error means that a target could not be followed at all
// (clierror.NoProcess, clierror.Permission), or that something could not be closed.
func (d *Daemon) Run(ctx context.Context, hooks Hooks) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	following, stopFollowing := context.WithCancel(background)
	defer stopFollowing()
	go d.drainer.run(background)
	go d.follower.run(following)
	go d.governing.run(following)
	err := d.follower.add(d.opts.PIDs)
	if err == nil {
		go d.discovery.run(following)
		d.wait(ctx, hooks.Ready)
	}
	hooks.Stopping()
	// Nothing may be attached after the sources are closed. The last events are drained after the probes are off.
	return errors.Join(err, d.within(stopBound, func() error {
		stopFollowing()
		<-d.follower.done
		err := d.detach()
		stop()
		<-d.drainer.done
		return errors.Join(err, d.parts.closeRest())
	}))
}

// stopBound limits how long a clean stop may take. On a machine that leaves the daemon almost no CPU it could take
// long, and it is not needed: probes vanish with the process, and an agent without a daemon detaches by itself.
const stopBound = 20 * time.Second

// within returns the result of end, or nil if that takes longer than bound; end goes on in the background.
func (d *Daemon) within(bound time.Duration, end func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(bound):
		d.incomplete = true
		d.log.Warn(
			"not everything is in order after the time that a stop may take: the kernel does the rest when this "+
				"process is gone, and the targets go on",
			zap.Duration("after", bound),
		)
		return nil
	}
}

// wait returns when the daemon should stop.
func (d *Daemon) wait(ctx context.Context, ready func()) {
	select {
	case <-ctx.Done():
		return
	case <-d.follower.ready:
		ready()
	}
	if d.opts.Discover != nil { // there will be others
		<-ctx.Done()
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-d.follower.ended:
	}
	if d.opts.ExitWithTarget {
		d.log.Info("all targets are gone: stopping")
		return
	}
	d.log.Info("all targets are gone; what was recorded is still served until this daemon is stopped")
	<-ctx.Done()
}

// slowDetachAfter is how long removing the probes may take before a message explains it.
const slowDetachAfter = 2 * time.Second

// detach removes all probes. The kernel takes up to a minute for several hundred perf events, one by one; a message
// says so.
func (d *Daemon) detach() error {
	slow := time.AfterFunc(slowDetachAfter, func() {
		d.log.Info(
			"still taking the probes off: with perf events the kernel takes up to a minute; the targets go on meanwhile",
		)
	})
	defer slow.Stop()
	return d.parts.closeSources()
}

// Lookup returns the owner of target pid, and whether it has ended.
func (d *Daemon) Lookup(pid uint32) (api.Owned, bool) { return d.follower.lookup(pid) }

// Owns reports whether uid owns any target.
func (d *Daemon) Owns(uid uint32) bool { return d.follower.owns(uid) }

// Keep returns how far back recordings reach at most.
func (d *Daemon) Keep() time.Duration { return d.opts.Keep }

// Now returns the current time on the clock of events, in ns.
func (d *Daemon) Now() uint64 { return d.clock() }

// Events returns how many events were drained from the rings.
func (d *Daemon) Events() uint64 { return d.drainer.events.Load() }

func host() recording.Host {
	h := recording.Host{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), NodeOf: pressure.NodeOf()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return h
}
