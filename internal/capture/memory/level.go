package memory

import (
	"errors"
	"fmt"
	"time"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/recording"
)

// Levels of detail.
const (
	levelSampled = iota
	levelFew
	levelWindows
	levelOff
)

var levels = []overhead.Level{
	levelSampled: {Name: "sampled"},
	levelFew:     {Name: "few stacks", Loses: "three of four stacks of allocations"},
	levelWindows: {
		Name: "in windows",
		Loses: "nine tenths of the time in which PyTorch's allocators are watched: totals are exact now and then, " +
			"counts are of a tenth, what stays is not known",
	},
	levelOff: {Name: recording.LevelOff, Loses: "allocations of PyTorch's own allocators, and all of the CUDA driver's"},
}

// budgets are how many stacks of a device and a class of sizes are taken in a tenth of a second, by level.
var budgets = []uint64{levelSampled: 4, levelFew: 1, levelWindows: 2, levelOff: 1}

// A window of levelWindows, and how often one begins.
const (
	windowFor   = 200 * time.Millisecond
	windowEvery = 2 * time.Second
)

// What one call costs its thread, in ns, and a sample beyond that (go test -bench . ./internal/capture/memory).
const (
	callNS   = 700
	sampleNS = 6000
)

// Levels implements overhead.Source.
func (s *Source) Levels() []overhead.Level { return append([]overhead.Level(nil), levels...) }

// Level implements overhead.Source.
func (s *Source) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel implements overhead.Source.
func (s *Source) SetLevel(level int) error {
	if level < 0 || level >= len(levels) {
		return fmt.Errorf("framework memory has no level %d", level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || level == s.level {
		return nil
	}
	if s.stopWindows != nil {
		close(s.stopWindows)
		s.stopWindows = nil
	}
	var resumed error
	if s.level == levelOff {
		resumed = s.programs.resumeDriver(clock.Monotonic())
	}
	s.level = level
	s.open = level < levelWindows
	if level == levelWindows {
		s.stopWindows = make(chan struct{})
		go s.windows(s.stopWindows)
	}
	return errors.Join(resumed, s.programs.setBudget(budgets[level]), s.apply())
}

// apply puts probes on, or takes them off with what is followed by them. The caller holds the lock.
func (s *Source) apply() error {
	var errs []error
	for id, q := range s.procs {
		for _, l := range q.libraries {
			errs = append(errs, s.put(id.PID, l))
		}
	}
	if !s.open {
		errs = append(errs, s.unfollow(s.level == levelOff))
	}
	return errors.Join(errs...)
}

// windows opens and shuts windows until stop is closed.
func (s *Source) windows(stop chan struct{}) {
	for {
		for _, w := range []struct {
			open   bool
			length time.Duration
		}{{true, windowFor}, {false, windowEvery - windowFor}} {
			if !s.setOpen(w.open, stop) {
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(w.length):
			}
		}
	}
}

// setOpen opens or shuts a window, unless these are the windows of a level that is over.
func (s *Source) setOpen(open bool, stop chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.stopWindows != stop {
		return false
	}
	s.open = open
	if err := s.apply(); err != nil {
		s.failed++
	}
	return true
}

// Runs implements overhead.Source.
func (s *Source) Runs(pid uint32) overhead.Runs {
	level := s.Level()
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	var out overhead.Runs
	if pid == 0 {
		out = s.feed.spent
	}
	if s.programs.reader == nil {
		return out
	}
	for key, d := range s.programs.devices() {
		if pid == 0 || key.pid() == pid {
			out = out.Add(runsOf(key, &d, level))
		}
	}
	for _, n := range s.programs.switches(pid) {
		out = out.Add(switchRuns(n, level))
	}
	return out
}

// runsOf is what was counted while a level is in force.
func runsOf(key deviceKey, d *bpf.MemoryMemoryDevice, level int) overhead.Runs {
	if key.isDriver() {
		return driverRuns(d, level)
	}
	calls := d.Allocations + d.Frees
	at := make([]uint64, len(levels))
	for l := range at {
		samples := d.Samples * budgets[l] / budgets[level]
		at[l] = calls*callNS + samples*sampleNS
		if l == levelWindows && level < levelWindows {
			at[l] = at[l] * uint64(windowFor) / uint64(windowEvery)
		}
	}
	ns := at[level]
	at[levelOff] = 0
	return overhead.Runs{Count: calls, NS: ns, At: at}
}

// unfollow forgets what is live, whose frees will not be seen: of frameworks, and of the driver where its probes are off
// too.
func (s *Source) unfollow(driver bool) error {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take(s.feed.held)
	for key := range s.feed.live {
		if driver || !key.device.isDriver() {
			s.programs.drop(key)
			delete(s.feed.live, key)
		}
	}
	if !driver {
		return s.programs.awaitNone()
	}
	now := clock.Monotonic()
	err := s.programs.empty(now, func(key deviceKey, d *bpf.MemoryMemoryDevice) bool {
		if !key.isDriver() {
			return false
		}
		s.feed.ready = append(s.feed.ready, standing(key, d, now)...)
		if d.Allocated > 0 {
			s.interrupted++
		}
		return true
	}, 0)
	return errors.Join(err, s.programs.awaitNone())
}
