package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Overhead is the budget for the overhead, and the sources with a fixed level.
type Overhead struct {
	Budget float64 // share of a target's time; 0: nothing is measured, and every source stays at its first level
	// Pin fixes sources at levels, for example "samples=49 Hz,scheduling=off"; names and levels can be shortened. "":
	// none.
	Pin string
}

// carrier is the source whose calls measure the progress of targets.
const carrier = recording.CallsSource

// governing keeps the overhead within the budget. It is a callObserver: the rate of repeated calls shows the speed of
// targets.
type governing struct {
	log      *zap.Logger
	clock    clockFunc
	follower *follower
	activity activity // may be nil
	sources  []overhead.Source
	pinned   []string
	governor *overhead.Governor // nil: there is no budget

	mu      sync.Mutex
	targets map[uint32]*governed          // by pid of the root
	of      map[uint32]*overhead.Progress // by pid of a process
	lastPID uint32
	last    *overhead.Progress // of lastPID
}

// newGoverning returns nil where no source has levels. Its error is a clierror.Usage.
func newGoverning(opts Overhead, d *Daemon) (*governing, error) {
	g := &governing{
		log: d.log, clock: d.clock, follower: d.follower, activity: d.activity,
		targets: map[uint32]*governed{}, of: map[uint32]*overhead.Progress{},
	}
	for _, s := range d.sources {
		if o, ok := s.(overhead.Source); ok {
			g.sources = append(g.sources, o)
		}
		if w, ok := s.(gpuWindows); ok && w.WindowPeriod() > 0 {
			g.sources = append(g.sources, newWindowSource(w, g.processes))
		}
	}
	if err := g.pin(opts.Pin); err != nil {
		return nil, err
	}
	if len(g.sources) == 0 || opts.Budget <= 0 {
		return g, nil
	}
	g.governor = overhead.New(overhead.Options{
		Budget: opts.Budget, Sources: g.sources, Pinned: g.pinned, Carrier: carrier,
		Even:  []string{recording.SamplesSource},
		Clock: d.clock, Seed: d.clock(), Log: g.logChange, Name: d.functionName,
	})
	return g, nil
}

// pin fixes sources at levels.
func (g *governing) pin(text string) error {
	if text == "" {
		return nil
	}
	for _, part := range strings.Split(text, ",") {
		name, level, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return g.badPin(part)
		}
		i := slices.IndexFunc(g.sources, func(s overhead.Source) bool { return strings.Contains(s.Name(), name) })
		if name == "" || i < 0 {
			return g.badPin(part)
		}
		at := levelOf(g.sources[i].Levels(), level)
		if at < 0 {
			return g.badPin(part)
		}
		if err := g.sources[i].SetLevel(at); err != nil {
			return fmt.Errorf("set %s to %q: %w", g.sources[i].Name(), level, err)
		}
		g.pinned = append(g.pinned, g.sources[i].Name())
	}
	return nil
}

// levelOf returns the level of that name, else the first that begins with it; -1 if there is none.
func levelOf(levels []overhead.Level, name string) int {
	if i := slices.IndexFunc(levels, func(l overhead.Level) bool { return l.Name == name }); i >= 0 || name == "" {
		return i
	}
	return slices.IndexFunc(levels, func(l overhead.Level) bool { return strings.HasPrefix(l.Name, name) })
}

func (g *governing) badPin(part string) error {
	known := "write one of these, of a name with a comma what stands before it:"
	for _, s := range g.sources {
		for _, l := range s.Levels() { // a line each: scripts/bench-levels.sh reads them
			known += "\n  " + s.Name() + "=" + l.Name
		}
	}
	return clierror.New(clierror.Usage, known, fmt.Errorf("--pin-level: %q is not understood", part))
}

// logChange logs a change of level.
func (g *governing) logChange(c overhead.Change) {
	g.log.Info(
		"a source has another level",
		zap.String("source", c.Source),
		zap.String("from", c.From),
		zap.String("to", c.To),
		zap.String("reason", c.Reason),
	)
}

// run adjusts the levels until ctx is done.
func (g *governing) run(ctx context.Context) {
	if g.governor == nil {
		if len(g.pinned) > 0 {
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGUSR2)
			defer signal.Stop(signals)
			g.switchOn(ctx, signals)
		}
		return
	}
	for {
		next := g.governor.Step(g.present())
		select {
		case <-ctx.Done():
			return
		case <-g.follower.came: // a new target is judged at once
		case <-time.After(time.Duration(next - min(next, g.clock()))):
		}
	}
}

// switchOn turns every source off on a signal, and back on the next: test/gpu/server_cost.py compares the pace of a
// program in turns shorter than an attachment. With fixed levels and no budget nobody else changes them.
func (g *governing) switchOn(ctx context.Context, signals <-chan os.Signal) {
	levels := make([]int, len(g.sources))
	for i, s := range g.sources {
		levels[i] = s.Level()
	}
	for on := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if err := g.turn(!on, levels); err != nil {
			g.log.Warn("a source was not switched", zap.Error(err))
			continue
		}
		on = !on
		g.log.Info("switched all sources", zap.Bool("on", on))
	}
}

// turn brings every source to its level of levels, or to its last one, which is off.
func (g *governing) turn(on bool, levels []int) error {
	var errs []error
	for i, s := range g.sources {
		level := levels[i]
		if !on {
			level = len(s.Levels()) - 1
		}
		if err := s.SetLevel(level); err != nil {
			errs = append(errs, fmt.Errorf("switch %s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// present returns the running targets.
func (g *governing) present() []overhead.Target {
	pids := g.follower.living()
	g.mu.Lock()
	defer g.mu.Unlock()
	next := make(map[uint32]*governed, len(pids))
	clear(g.of)
	g.last, g.lastPID = nil, 0
	var out []overhead.Target
	for root, processes := range pids {
		t := g.targets[root]
		if t == nil {
			t = newGoverned(root, g.activity)
		}
		t.setProcesses(processes)
		next[root] = t
		for _, pid := range processes {
			g.of[pid] = t.progress
		}
		out = append(out, t)
	}
	g.targets = next
	return out
}

// living returns the running processes of each watched target.
func (f *follower) living() map[uint32][]uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[uint32][]uint32{}
	for _, r := range f.roots {
		if r.released || r.living == 0 || r.since == 0 {
			continue
		}
		for _, p := range r.alive() {
			out[r.pid] = append(out[r.pid], p.PID)
		}
		slices.Sort(out[r.pid])
	}
	return out
}

// processes returns the running processes of a target.
func (g *governing) processes(root uint32) []uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.targets[root]; t != nil {
		return t.processes()
	}
	return nil
}

// Observe counts synchronous calls: they are recorded whether or not a window is open.
func (g *governing) Observe(batch []event.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.of) == 0 {
		return
	}
	for i := range batch {
		e := &batch[i]
		if e.Kind != event.Call || e.Flags&event.Timed == 0 {
			continue
		}
		if e.PID != g.lastPID {
			g.lastPID, g.last = e.PID, g.of[e.PID]
		}
		if g.last != nil {
			g.last.Note(overhead.Key{TID: e.TID, Func: e.Func}, e.TS, e.Dur)
		}
	}
}

// functionName returns the name of a function for messages.
func (d *Daemon) functionName(fn uint16) string {
	if d.tables != nil {
		if f := d.tables.Functions(); int(fn) < len(f) {
			return f[fn].Name
		}
	}
	return "a function"
}

// Steady keeps every source at its level until end is called, for a recording of a future interval.
func (d *Daemon) Steady() (end func()) {
	if d.governing == nil || d.governing.governor == nil {
		return func() {}
	}
	return d.governing.governor.Busy()
}

// statusTime is the period over which status reports levels.
const statusTime = uint64(time.Minute)

// overheads returns the overhead of each target.
func (d *Daemon) overheads(now uint64) []recording.Overhead {
	out := []recording.Overhead{}
	for _, pid := range d.follower.pids() {
		if o := d.overheadOf(pid, now-min(now, statusTime), now); o != nil {
			out = append(out, *o)
		}
	}
	slices.SortFunc(out, func(a, b recording.Overhead) int { return cmp.Compare(a.Target, b.Target) })
	return out
}

// overheadOf returns the overhead of a target in [from, to] (ns); nil without a governor.
func (d *Daemon) overheadOf(pid uint32, from, to uint64) *recording.Overhead {
	if d.governing == nil || d.governing.governor == nil {
		return nil
	}
	return d.governing.governor.State(pid, from, to)
}
