package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/metrics"
	"github.com/inferscope/inferscope/internal/daemon/push"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/recording"
)

// Soft limit of the Go heap in bytes, without the events, which are outside of it. Some 20 MB are in use with sampling
// on, 30 MB for a large program at 499 Hz. Garbage is collected when the heap has grown by a quarter, which is rare
// once all code of a target is known. Near the limit the collector works harder; nothing fails. docs/accuracy.md has
// the memory of the daemon and its helpers.
const (
	heapLimit   = 60_000_000
	heapPercent = 25
)

// shutdownTimeout is how long requests may take to complete when the daemon stops.
const shutdownTimeout = 2 * time.Second

// Config configures a daemon and its access to the kernel.
type Config struct {
	Options
	Warnings     *Warnings     // of the log; nil: Status has none
	Socket       string        // path of the unix socket
	TraceBytes   int64         // for recorded events: the rings, the recorder, and the stacks of samples
	RingBytes    int64         // of all ring buffers together; 0: ring.DefaultBytes
	MetricsAddr  string        // as metrics.Address returns it; "": no metrics
	MetricsHosts []string      // names under which they may be asked for, beside localhost and addresses
	Push         *push.Options // where spans and metrics of requests are sent; nil: nowhere
	Limits       api.Limits
	Allow        api.Allow                           // who may have processes of their own watched
	NotifySocket string                              // $NOTIFY_SOCKET
	Check        func() error                        // says what the kernel or this process lacks
	Sources      func(*ring.Rings) ([]Source, error) // makes what yields events into the rings
	Dumper       dumper                              // makes dumps; nil: none are made
	Pods         *discover.Pods                      // what Kubernetes tells of pods; may be nil
	// Record starts the process that stores recordings on disk, once the socket is served; nil: none are stored. facts
	// is called with the analysis of each part of a target's recording; nil if it is not needed.
	Record func(facts func(api.Facts)) (*fleet.Process, error)
}

// Run runs the daemon: it checks the kernel, opens the socket, follows cfg.PIDs, serves recordings, and removes every
// probe when ctx is done. Its errors have the exit codes of package clierror.
func Run(ctx context.Context, cfg Config, logger *zap.Logger) error {
	// The kernel checks come first: they name the missing capability; the socket's error would only say that its
	// directory is not writable.
	if err := cfg.Check(); err != nil {
		return err
	}
	listener, err := api.Listen(cfg.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // the server has closed it before; this is for the ways that do not lead there
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(heapLimit))
	defer debug.SetGCPercent(debug.SetGCPercent(heapPercent))
	var parts Parts
	var tally *metrics.Tally
	done, err := runUnlessDone(ctx, func() (err error) {
		parts, tally, err = cfg.parts(logger)
		return err
	})
	if !done {
		logger.Info("stopped while it was starting: nothing was recorded")
		return nil
	}
	if err != nil {
		return err
	}
	d, err := New(cfg.Options, parts)
	if err != nil {
		return errors.Join(err, parts.Close())
	}
	return cfg.serve(ctx, d, tally, listener, logger)
}

// runUnlessDone waits for f to return and returns true, or returns false when ctx is done while f goes on until the
// process ends. Loading the BPF programs takes a second of CPU, which can be minutes on a busy host; what was loaded
// is removed with the process.
func runUnlessDone(ctx context.Context, f func() error) (done bool, err error) {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err = <-ended:
		return true, err
	case <-ctx.Done():
		return false, nil
	}
}

// parts creates everything that uses the kernel.
func (cfg *Config) parts(logger *zap.Logger) (Parts, *metrics.Tally, error) {
	p := Parts{Log: logger, Warnings: cfg.Warnings, Clock: clock.Monotonic, Dumper: cfg.Dumper, Pods: cfg.Pods}
	fail := func(err error) (Parts, *metrics.Tally, error) { return p, nil, errors.Join(err, p.Close()) }
	var err error
	rings, err := ring.New(ring.Options{Bytes: cfg.RingBytes})
	if err != nil {
		return fail(fmt.Errorf("making the ring buffers: %w", err))
	}
	p.Rings = rings
	if p.Recorder, err = recording.NewRecorder(recorderBytes(cfg.TraceBytes, rings.Bytes()), cfg.Keep); err != nil {
		return fail(err)
	}
	p.Recorder.Limit(maxEvents)
	watcher, err := proc.New(proc.Options{Discover: cfg.Discover != nil})
	if err != nil {
		return fail(err)
	}
	p.Watcher = watcher
	if p.Sources, err = cfg.Sources(rings); err != nil {
		return fail(err)
	}
	var tally *metrics.Tally
	if cfg.MetricsAddr != "" {
		tally = metrics.NewTally(functionsOf(p.Sources), metrics.DecodeCopies)
		p.Counter = tally
	}
	return p, tally, nil
}

// stackBytes bounds the memory for stacks of samples, which are dropped when the recorder has no sample with them any
// more (internal/capture/profile: BenchmarkTable).
const stackBytes = 10_000_000

// maxEvents limits the recorded events a second of one target to ten times what two NCCL ranks make. It bounds the work
// that a target can cause in the daemon.
const maxEvents = 2_000_000

// recorderBytes returns the part of the memory for events that rings and stacks leave to the recorder, at least half of
// it.
func recorderBytes(all, rings int64) int64 {
	return max(all-rings-stackBytes, all/2, recording.MinBudget)
}

func functionsOf(sources []Source) func() []recording.Function {
	for _, s := range sources {
		if t, ok := s.(tables); ok {
			return t.Functions
		}
	}
	return func() []recording.Function { return nil }
}

// serve runs the daemon and its servers until one of them ends.
func (cfg *Config) serve(
	ctx context.Context,
	d *Daemon,
	tally *metrics.Tally,
	l *api.Listener,
	logger *zap.Logger,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	servers, err := cfg.servers(ctx, d, tally, l, logger)
	if err != nil {
		return errors.Join(err, d.parts.Close())
	}
	var running errgroup.Group
	for _, s := range servers {
		running.Go(func() error {
			defer stop() // a server that ends by itself ends everything
			return s.serve()
		})
	}
	if cfg.Record != nil {
		var facts func(api.Facts)
		if tally != nil {
			facts = tally.Facts
		}
		archiver, err := cfg.Record(facts)
		if err != nil {
			cfg.finishRequests(servers, logger)
			return errors.Join(err, running.Wait(), d.parts.Close())
		}
		d.archiver.Store(archiver)
		go d.saveOnSignal(ctx)
	}
	err = d.Run(ctx, Hooks{
		Ready: func() { cfg.announce(d, logger) },
		Stopping: func() {
			if k := d.archiver.Load(); k != nil {
				k.Close() // while it is still answered
			}
			cfg.finishRequests(servers, logger)
		},
	})
	err = errors.Join(err, running.Wait())
	if err == nil && !d.incomplete {
		logger.Info("stopped: all probes are off, the targets go on",
			zap.Uint64("events", d.Events()), zap.Duration("uptime", since(d.clock(), d.started)))
	}
	return err
}

// server is an API or metrics server.
type server struct {
	serve func() error
	close func(context.Context) error
}

func (cfg *Config) servers(
	ctx context.Context,
	d *Daemon,
	tally *metrics.Tally,
	l *api.Listener,
	logger *zap.Logger,
) ([]server, error) {
	complain, err := zap.NewStdLogAt(logger, zap.DebugLevel)
	if err != nil {
		return nil, fmt.Errorf("making a log for the servers: %w", err)
	}
	a := api.NewServer(d, cfg.Limits, complain)
	a.SetAllow(cfg.Allow)
	a.OnChange(func(c api.Change) { logChange(logger, c) })
	out := []server{{serve: func() error { return a.Serve(l) }, close: a.Shutdown}}
	var p *push.Pusher
	if cfg.Push != nil {
		p = d.pusher(*cfg.Push)
		out = append(out, server{serve: p.Serve, close: p.Close})
	}
	if tally == nil {
		return out, nil
	}
	d.evidence.count(tally)
	registry, err := metrics.NewRegistry(tally, d.Status)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics: %w", err)
	}
	if p != nil {
		if err := metrics.Spans(registry, p.Sent, p.Lost); err != nil {
			return nil, fmt.Errorf("registering the metrics: %w", err)
		}
	}
	m, err := metrics.Listen(ctx, cfg.MetricsAddr, cfg.MetricsHosts, registry, complain)
	if err != nil {
		return nil, err
	}
	logger.Info("metrics are served", zap.String("address", "http://"+m.Addr()+"/metrics"))
	return append(out, server{serve: m.Serve, close: func(context.Context) error { return m.Close() }}), nil
}

// logChange logs who changed what and the result, for the administrator's journal.
func logChange(logger *zap.Logger, c api.Change) {
	result := "done"
	if c.Err != nil {
		result = c.Err.Error()
	}
	logger.Info("asked to "+c.What, zap.Uint32("target", c.Target), zap.Uint32("uid", c.UID), zap.Int32("pid", c.PID),
		zap.String("comm", c.Comm), zap.String("result", result), zap.Duration("took", c.Took))
}

// announce reports that every present process is probed: in the log line that people and tests wait for, and to the
// service manager.
func (cfg *Config) announce(d *Daemon, logger *zap.Logger) {
	fields := []zap.Field{zap.Ints("pids", cfg.PIDs), zap.String("socket", cfg.Socket)}
	points, cheap := 0, 0
	for _, l := range d.follower.libraries() {
		points, cheap = points+l.Points, cheap+l.Cheap
	}
	logger.Info("ready", append(fields, zap.Int("probe_points", points), zap.Int("cheap", cheap))...)
	for _, t := range d.Status().Targets {
		if t.State == api.Waiting {
			logger.Warn("nothing to probe yet: still watching", zap.Uint32("pid", t.PID),
				zap.String("comm", t.Comm), zap.String("why", t.Detail))
		}
	}
	cfg.notify("READY=1", logger)
}

// finishRequests lets running requests complete while everything still runs.
func (cfg *Config) finishRequests(servers []server, logger *zap.Logger) {
	cfg.notify("STOPPING=1", logger)
	bye, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	for _, s := range servers {
		if err := s.close(bye); err != nil {
			logger.Warn("a server did not end well", zap.Error(err))
		}
	}
}

func (cfg *Config) notify(state string, logger *zap.Logger) {
	if err := Notify(cfg.NotifySocket, state); err != nil {
		logger.Warn("the service manager was not reached", zap.Error(err))
	}
}

// Notify reports the state of the daemon to the service manager: "READY=1", "STOPPING=1", one assignment a line
// (sd_notify(3)). socket is the value of $NOTIFY_SOCKET; if it is empty, Notify does nothing.
func Notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	// A leading @ means an abstract socket, for systemd as for package net.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	return nil
}
