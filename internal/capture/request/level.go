package request

import (
	"fmt"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/recording"
)

// Levels of detail.
const (
	levelAll   = iota
	levelPlain // without probes of OpenSSL
	levelOff
)

var levels = []overhead.Level{
	levelAll:   {Name: "all"},
	levelPlain: {Name: "without TLS", Loses: "requests over TLS"},
	levelOff:   {Name: recording.LevelOff, Loses: "requests: time to first token, time per token, latency"},
}

// What recording one transfer costs its thread, in ns, one on a socket that is not followed, and one on a socket that
// is muted (bpf/request_state.h): run_time_ns / run_cnt of the programs
// (kernel.bpf_stats_enabled) at the tracepoints of sockets under a server of 16 streams, and a tenth for the way in and
// out. A call of OpenSSL costs what a pair of probes does, and much more where the kernel steps over the instruction
// that is probed.
//
// syscallNS is for the return of a system call that is no transfer, which only the last hooks see. It is an estimate on
// the safe side, for the program and the slower way out of the kernel: getpgid took 120 ns longer in a virtual machine
// with Linux 6.18 on x86-64. It is not measured on a kernel that needs these hooks.
const (
	transferNS   = 1100
	lookNS       = 250
	mutedNS      = 140
	syscallNS    = 300
	tlsCallNS    = 900
	tlsSteppedNS = 16_000
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
	err := s.applyTLS()
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take()
	for _, c := range s.feed.conns {
		if c.tls || level == levelOff {
			c.http.Lost()
		}
	}
	if level == levelOff {
		for _, c := range s.feed.taps.conns {
			c.miss()
		}
	}
	return err
}

// Runs implements overhead.Source.
func (s *Source) Runs(pid uint32) overhead.Runs {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out overhead.Runs
	if s.closed {
		return out
	}
	add := func(p bpf.RequestRequestProcess) {
		out.Count += p.Transfers + p.Looks + p.Muted + p.Syscalls + p.Calls
		out.NS += p.Transfers*transferNS + p.Looks*lookNS + p.Muted*mutedNS + p.Syscalls*syscallNS
	}
	if pid == 0 {
		add(s.spent)
		out.NS += s.spentTLS
	}
	for id, p := range s.procs {
		if pid == 0 || id.PID == pid {
			c := s.programs.counted(id.PID)
			add(c)
			out.NS += c.Calls * p.tlsCall()
		}
	}
	return out
}
