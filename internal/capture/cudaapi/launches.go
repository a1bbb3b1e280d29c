package cudaapi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// LaunchMode describes when a process's launches are probed. They are the calls that
// programs make most often, and are seen in windows, or by an agent instead.
type LaunchMode string

// The launch modes; "" is LaunchesOn.
const (
	LaunchesOff     LaunchMode = "off"     // never
	LaunchesWindows LaunchMode = "windows" // for Options.LaunchesFor in each Options.LaunchesEvery
	LaunchesOn      LaunchMode = "on"      // all the time
)

// Defaults of windows.
const (
	defaultFor   = 200 * time.Millisecond
	defaultEvery = 2 * time.Second
	defaultKeep  = 5 * time.Minute
)

// maxWindows is how many windows of a process are remembered: 2 hours at one every
// 2 s, which is more than any recorder keeps.
const maxWindows = 4096

// launches puts probes on the launch functions of one process and takes them off
// again. One goroutine does that: attaching takes the kernel milliseconds, detaching tens of them.
type launches struct {
	pid        uint32
	on, period time.Duration
	attacher   *uprobe.Attacher
	spent      func() time.Duration // what launches have cost the process so far
	changed    chan struct{}        // of mode or libraries; holds one
	done       chan struct{}        // closed when the goroutine has ended

	work      sync.Mutex // held while the kernel puts probes on or takes them off
	libraries []*launchSites

	mu      sync.Mutex // never held for long
	mode    LaunchMode
	quit    bool
	windows []recording.GPUWindow // that have ended
	from    uint64                // ns, when the open window began; 0: none is open
	doubts  []error               // why probes did not come on, or off
}

// launchSites are those of one library.
type launchSites struct {
	library    *library
	sites      []uprobe.Site
	attachment *uprobe.Attachment // nil: they are off
	logged     bool               // that some cannot be probed
}

func newLaunches(pid uint32, s *Source, mode LaunchMode) *launches {
	l := &launches{
		pid: pid, on: s.opts.LaunchesFor, period: s.opts.LaunchesEvery, attacher: s.attacher, mode: mode,
		spent:   func() time.Duration { return s.counted.launches(pid) },
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go l.run()
	return l
}

// isLaunch reports whether a point is one of those that come and go.
func isLaunch(p *cuda.Point) bool { return p.Row.Group == cuda.Launch }

// add takes a library over, whose file stays open. Where launches are probed all the
// time they are so when it returns.
func (l *launches) add(lib *library, sites []uprobe.Site) error {
	l.work.Lock()
	defer l.work.Unlock()
	defer l.notify()
	s := &launchSites{library: lib, sites: sites}
	mode, _ := l.want()
	if mode == LaunchesOn {
		if err := l.attach(s); err != nil {
			return err // and never again: the library is said not to be probed
		}
		l.open()
	}
	l.libraries = append(l.libraries, s)
	return nil
}

func (l *launches) set(mode LaunchMode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode != mode {
		l.mode = mode
		l.notify()
	}
}

func (l *launches) notify() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// close takes the probes off and ends the goroutine. The error says what did not work, now or before.
func (l *launches) close() error {
	l.mu.Lock()
	l.quit = true
	l.mu.Unlock()
	l.notify()
	<-l.done
	for _, s := range l.libraries {
		s.library.close()
	}
	return errors.Join(l.doubts...)
}

// run follows the mode until close.
func (l *launches) run() {
	defer close(l.done)
	for {
		mode, quit := l.want()
		if quit || mode == LaunchesOff {
			l.detachAll()
		} else {
			l.attachAll()
		}
		switch {
		case quit:
			return
		case mode != LaunchesWindows:
			<-l.changed
		default:
			l.window()
		}
	}
}

func (l *launches) want() (LaunchMode, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.quit
}

// window leaves the probes on for a while, and off for the rest of the period, or
// returns earlier when something was changed.
func (l *launches) window() {
	opened, before := time.Now(), l.spent()
	if l.pause(l.on) {
		return
	}
	began := time.Now()
	l.detachAll()
	// Perf events take 0.1 s each to remove, all the others 30 ms together; meanwhile
	// the program pays for them. So the slow ones come more rarely than was asked for.
	if l.pause(max(l.period-l.on, offFactor*time.Since(began))) {
		return
	}
	l.pause(longer(time.Since(opened), l.spent()-before)) // what the window cost has been counted by now
}

// offFactor is how many times as long as their removal took the probes stay off.
const offFactor = 9

// Launches take at most one part in maxShare of a program's time where they are seen in windows, but one comes at least
// every maxPeriod.
const (
	maxShare  = 100
	maxPeriod = 30 * time.Second
)

// longer returns how much longer than it has been since its beginning the next window is waited for, where the last one
// cost so much.
func longer(since, cost time.Duration) time.Duration {
	return max(0, min(cost*maxShare, maxPeriod)-since)
}

// pause reports whether something was changed meanwhile.
func (l *launches) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.changed:
		return true
	case <-timer.C:
		return false
	}
}

// attachAll puts the probes on, where they are not on.
func (l *launches) attachAll() {
	l.work.Lock()
	defer l.work.Unlock()
	whole := len(l.libraries) > 0
	for _, s := range l.libraries {
		if err := l.attach(s); err != nil {
			whole = false
			l.doubt(err)
		}
	}
	if whole {
		l.open()
	}
}

func (l *launches) attach(s *launchSites) error {
	if s.attachment != nil {
		return nil
	}
	a, err := l.attacher.Attach(s.library.file, l.pid, s.sites)
	if err != nil {
		return fmt.Errorf("probe the launches of %s in pid %d: %w", s.library.row.Path, l.pid, err)
	}
	s.attachment = a
	if failed := a.Failed(); len(failed) > 0 && !s.logged {
		s.logged = true
		l.doubt(failed[0])
	}
	return nil
}

// detachAll ends the window first: from then on launches may be missing.
func (l *launches) detachAll() {
	l.shut()
	l.work.Lock()
	defer l.work.Unlock()
	for _, s := range l.libraries {
		if s.attachment == nil {
			continue
		}
		if err := s.attachment.Close(); err != nil {
			l.doubt(fmt.Errorf("take the probes off the launches of pid %d: %w", l.pid, err))
		}
		s.attachment = nil
	}
}

// open begins a window, shut ends it.
func (l *launches) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from == 0 {
		l.from = clock.Monotonic()
	}
}

func (l *launches) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from == 0 {
		return
	}
	l.windows = append(l.windows,
		recording.GPUWindow{PID: l.pid, From: l.from, To: clock.Monotonic(), Calls: true, End: "detached"})
	l.from = 0
	if len(l.windows) > maxWindows {
		l.windows = slices.Clone(l.windows[len(l.windows)-maxWindows:])
	}
}

// doubt remembers an error, up to a few. The process's end is none.
func (l *launches) doubt(err error) {
	const most = 8
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.doubts) < most && !errors.Is(err, uprobe.ErrNoProcess) {
		l.doubts = append(l.doubts, err)
	}
}

// between returns the windows that overlap [from, to].
func (l *launches) between(from, to uint64) []recording.GPUWindow {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.windows)
	if l.from != 0 {
		all = append(all, recording.GPUWindow{
			PID:   l.pid,
			From:  l.from,
			To:    max(l.from, min(to, clock.Monotonic())),
			Calls: true,
			End:   "open",
		})
	}
	return overlapping(all, from, to)
}

func overlapping(all []recording.GPUWindow, from, to uint64) []recording.GPUWindow {
	return slices.DeleteFunc(all, func(w recording.GPUWindow) bool { return w.To < from || w.From > to })
}

// losses reports what kept launches from being seen.
func (l *launches) losses() []loss.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.doubts) == 0 {
		return nil
	}
	return []loss.Loss{{
		Reason: loss.ProbeFailed, Count: uint64(len(l.doubts)),
		PID: l.pid, Where: fmt.Sprintf("pid %d: launches", l.pid), Detail: l.doubts[0].Error(),
	}}
}

// SetLaunches changes when the launches of p are probed; p need not be followed yet. It
// does not block: the probes come and go a little later, as LaunchWindows says.
func (s *Source) SetLaunches(p proc.ID, mode LaunchMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, told := s.wanted[p]; !told { // it may be one that Forget was called for a moment ago: those do not pile up
		maps.DeleteFunc(s.wanted,
			func(other proc.ID, _ LaunchMode) bool { return s.procs[other] == nil && !proc.Lives(other) })
	}
	s.wanted[p] = mode
	if known := s.procs[p]; known != nil && known.launches != nil {
		known.launches.set(mode)
	}
}

// launchesOf returns what probes the launches of p. The caller holds the lock.
func (s *Source) launchesOf(p *proc.Process) *launches {
	known := s.process(p)
	if known.launches == nil {
		mode := cmp.Or(s.wanted[p.ID()], s.opts.Launches, LaunchesOn)
		known.launches = newLaunches(p.PID, s, mode)
	}
	return known.launches
}

// LaunchWindows returns when the launches of the process were probed in [from, to]
// (CLOCK_MONOTONIC ns), ordered by time. The last one may still be open.
func (s *Source) LaunchWindows(pid uint32, from, to uint64) []recording.GPUWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []recording.GPUWindow
	for _, w := range s.ended {
		if w.PID == pid {
			all = append(all, w)
		}
	}
	all = overlapping(all, from, to)
	for id, p := range s.procs {
		if id.PID == pid && p.launches != nil {
			all = append(all, p.launches.between(from, to)...)
		}
	}
	return all
}

// Index returns the event.Func of a function of the driver by the name under which
// it is exported, and gives it one if it has none yet. false: it is no such name, or
// the table is full.
func (s *Source) Index(name string) (uint16, bool) {
	row, ok := cuda.Match(name)
	if !ok || row.Library != cuda.Driver {
		return 0, false
	}
	point := cuda.Point{Row: row, Name: name}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.names.index(point.Function())
	return i, err == nil
}

// keep remembers the windows of a process that has gone, for recordings of its time, and forgets those that none shows
// any more at now (ns). The open one ends here. The caller holds the lock.
func (s *Source) keep(l *launches, now uint64) {
	if l == nil {
		return
	}
	l.shut()
	oldest := now - min(now, uint64(s.opts.Keep))
	s.ended = slices.DeleteFunc(s.ended, func(w recording.GPUWindow) bool { return w.To < oldest })
	s.ended = append(s.ended, l.between(0, math.MaxUint64)...)
	if more := len(s.ended) - maxWindows; more > 0 {
		s.ended = slices.Delete(s.ended, 0, more)
	}
}
