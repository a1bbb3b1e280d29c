package memory

import (
	"errors"
	"fmt"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/overhead"
)

// Levels of detail.
const (
	levelSampled = iota
	levelFew
	levelOff
)

var levels = []overhead.Level{
	levelSampled: {Name: "sampled"},
	levelFew:     {Name: "few stacks", Loses: "three of four stacks of allocations"},
	levelOff:     {Name: "off", Loses: "allocations of PyTorch's own allocators"},
}

// budgets are how many stacks of a device and a class of sizes are taken in a tenth of a second, by level.
var budgets = []uint64{levelSampled: 4, levelFew: 1, levelOff: 1}

// What one call costs its thread, in ns, and a sample beyond that (go test -bench . ./internal/capture/memory).
const (
	callNS   = 650
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
	s.level = level
	if level == levelOff {
		s.unfollow()
	}
	errs := []error{s.programs.setBudget(budgets[level])}
	for id, q := range s.procs {
		for _, l := range q.libraries {
			errs = append(errs, s.put(id.PID, l))
		}
	}
	return errors.Join(errs...)
}

// Runs implements overhead.Source.
func (s *Source) Runs(pid uint32) overhead.Runs {
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
			r := runsOf(&d)
			out.Count, out.NS = out.Count+r.Count, out.NS+r.NS
		}
	}
	return out
}

func runsOf(d *bpf.MemoryMemoryDevice) overhead.Runs {
	calls := d.Allocations + d.Frees
	return overhead.Runs{Count: calls, NS: calls*callNS + d.Samples*sampleNS}
}

// unfollow forgets what is live, whose frees will not be seen.
func (s *Source) unfollow() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take(s.feed.held)
	for key := range s.feed.live {
		s.programs.drop(key)
	}
	clear(s.feed.live)
}
