package profile

import (
	"errors"
	"fmt"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/recording"
)

// What a sample takes of the target beyond our own program, and what one switch takes of which no
// sample is taken, in ns: the way into the program, and the native unwinder behind it (go run ./test/bench).
const (
	enterNS  = 1_000
	unwindNS = 8_000
	passNS   = 300
)

// divisors are by how much each level but the last divides the frequency and the stacks of switches.
var divisors = []int{1, 2, 5}

// Levels implements overhead.Source: the frequency that was asked for, a half and a fifth of it, and none.
func (s *Source) Levels() []overhead.Level {
	out := make([]overhead.Level, 0, len(divisors)+1)
	for _, by := range divisors {
		l := overhead.Level{Name: fmt.Sprintf("%d Hz", max(minHz, s.opts.Hz/by))}
		if by > 1 {
			l.Loses = fmt.Sprintf("one of %d CPU samples, and of stacks in which threads waited", by)
		}
		out = append(out, l)
	}
	return append(out, overhead.Level{
		Name:  recording.LevelOff,
		Loses: "CPU samples: what the CPU was busy with, and in which code threads waited",
	})
}

// Level implements overhead.Source.
func (s *Source) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel implements overhead.Source. Events of CPUs run on with another period; those of threads
// are opened anew.
func (s *Source) SetLevel(level int) error {
	if level < 0 || level > len(divisors) {
		return fmt.Errorf("CPU samples have no level %d", level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if level == s.level {
		return nil
	}
	before := s.level
	s.level = level
	if err := s.apply(); err != nil {
		s.level = before
		return errors.Join(fmt.Errorf("sample at another frequency: %w", err), s.apply())
	}
	return nil
}

// hz is the frequency of the level in force; 0: nothing is sampled. The caller holds the lock.
func (s *Source) hz() int {
	if s.level == len(divisors) {
		return 0
	}
	return max(minHz, s.opts.Hz/divisors[s.level])
}

// apply brings the level into force. The caller holds the lock.
func (s *Source) apply() error {
	if s.level < len(divisors) {
		if err := s.programs.setSwitches(s.opts.Switches / divisors[s.level]); err != nil {
			return err
		}
	}
	if s.cpus != nil {
		return s.cpus.set(s.hz(), len(s.procs) > 0)
	}
	var errs []error
	for _, q := range s.procs {
		q.threads.close()
		q.threads.hz = s.hz()
		if q.storm.off {
			continue // it is opened after its pause
		}
		left, err := q.threads.open()
		q.left, q.opened = left, q.opened || len(q.threads.events) > 0
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Runs implements overhead.Source.
func (s *Source) Runs(pid uint32) overhead.Runs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid != 0 {
		return s.runsOf(pid)
	}
	all := s.spent
	for pid := range s.procs {
		all = all.Add(s.runsOf(pid))
	}
	return all
}

func (s *Source) runsOf(pid uint32) overhead.Runs {
	v := s.programs.process(pid)
	each := uint64(enterNS)
	if s.library.Load().unwinder != nil {
		each += unwindNS
	}
	samples, skipped := v.Took+v.Taken*each, v.Skipped*passNS
	r := overhead.Runs{Count: v.Taken + v.Skipped, NS: samples + skipped}
	if s.level < len(divisors) {
		for _, by := range divisors {
			r.At = append(r.At, samples*uint64(divisors[s.level])/uint64(by)+skipped)
		}
		r.At = append(r.At, 0)
	}
	return r
}
