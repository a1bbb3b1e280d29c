package request

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/capture/overhead"
)

// Levels of detail.
const (
	levelAll = iota
	levelOff
)

var levels = []overhead.Level{
	levelAll: {Name: "all"},
	levelOff: {Name: "off", Loses: "requests: time to first token, time per token, latency"},
}

// What recording one transfer costs its thread, in ns, and one on a socket that is not followed: run_time_ns / run_cnt of
// the programs (kernel.bpf_stats_enabled) under a server of 16 streams, and a tenth for the way in and out.
const (
	transferNS = 1100
	lookNS     = 250
)

// Levels implements overhead.Source.
func (s *Source) Levels() []overhead.Level { return append([]overhead.Level(nil), levels...) }

// Level implements overhead.Source.
func (s *Source) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel implements overhead.Source. What goes on while requests are off ends as unbounded.
func (s *Source) SetLevel(level int) error {
	if level < 0 || level >= len(levels) {
		return fmt.Errorf("requests have no level %d", level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || level == s.level {
		return nil
	}
	if err := s.programs.setOff(level == levelOff); err != nil {
		return err
	}
	s.level = level
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take()
	for _, c := range s.feed.conns {
		c.http.Lost()
	}
	return nil
}

// Runs implements overhead.Source.
func (s *Source) Runs(pid uint32) overhead.Runs {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out overhead.Runs
	if s.closed {
		return out
	}
	add := func(transfers, looks uint64) {
		out.Count += transfers + looks
		out.NS += transfers*transferNS + looks*lookNS
	}
	if pid == 0 {
		add(s.spent.Transfers, s.spent.Looks)
	}
	for _, p := range s.procs {
		if pid == 0 || p == pid {
			c := s.programs.counted(p)
			add(c.Transfers, c.Looks)
		}
	}
	return out
}
