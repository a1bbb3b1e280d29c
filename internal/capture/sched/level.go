package sched

import (
	"errors"
	"fmt"
	"time"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/recording"
)

// detail is a level of detail, as the programs have it (bpf/sched_state.h).
type detail struct {
	ShortNS  uint64 // waits shorter than that are summed,
	BusyFrom uint64 // of threads that leave their CPU more often than that in a slice
	NoWakers uint64 // 1: nobody looks who wakes threads
}

// level is one of Levels.
type level struct {
	overhead.Level
	detail detail
	ns     uint64 // that a switch of a followed thread costs it: the programs and the way into them
}

// perSliceOf is how many times in a slice is so many times a second.
func perSliceOf(perSecond uint64) uint64 { return perSecond * sliceNS / 1_000_000_000 }

// levels are from the dearest to none. A wait that is summed costs its thread as much as one that is an
// event (BenchmarkPrograms); what sums save is the daemon's time and the recorder's room. That
// nobody looks at wake-ups saves two fifths.
var levels = []level{
	{overhead.Level{Name: "each wait"}, detail{}, 400},
	{overhead.Level{
		Name: "short waits summed",
		Loses: "each by itself, the waits under 0.1 ms of threads that wait more than 2,000 times a second: who " +
			"ended them, and when they were",
	}, detail{ShortNS: 100_000, BusyFrom: perSliceOf(2000)}, 400},
	{overhead.Level{
		Name:  "waits summed, no wakers",
		Loses: "who ended waits, and each by itself those under 1 ms of threads that wait more than 200 times a second",
	}, detail{ShortNS: 1_000_000, BusyFrom: perSliceOf(200), NoWakers: 1}, 240},
	{overhead.Level{Name: recording.LevelOff, Loses: "why threads waited, and for how long"}, detail{}, 0},
}

// Levels implements overhead.Source.
func (s *Source) Levels() []overhead.Level {
	out := make([]overhead.Level, len(levels))
	for i := range levels {
		out[i] = levels[i].Level
	}
	return out
}

// Level implements overhead.Source.
func (s *Source) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel implements overhead.Source. Between levels that record something nothing is lost: what is
// summed already stays in its sum.
func (s *Source) SetLevel(to int) error {
	if to < 0 || to >= len(levels) {
		return fmt.Errorf("scheduling has no level %d", to)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if to == s.level {
		return nil
	}
	off := len(levels) - 1
	if to == off {
		if err := s.turn(false); err != nil {
			return err
		}
	} else if err := s.kernel.set(levels[to].detail); err != nil {
		return errors.Join(err, s.kernel.set(levels[s.level].detail))
	}
	s.spent = s.runs()
	s.counted = s.kernel.left()
	was := s.level
	s.level = to
	if was == off {
		return s.turn(true)
	}
	return nil
}

// set brings a level of detail into force.
func (k *kernel) set(d detail) error {
	if err := k.objects.Detail.Set(&d); err != nil {
		return fmt.Errorf("tell the programs for scheduling the level of detail: %w", err)
	}
	k.wakers = d.NoWakers == 0
	if k.links == nil {
		return nil // attach heeds it
	}
	return k.watchWakers(k.wakers)
}

// Runs implements overhead.Source. What a process's threads did while another level was in force counts as of this one.
func (s *Source) Runs(pid uint32) overhead.Runs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid == 0 {
		return s.runs()
	}
	var p bpf.SchedFollowedProcess
	_ = s.kernel.objects.Followed.Lookup(pid, &p) // its ended threads; none where it is not followed
	n := p.Switches + s.living(pid)
	r := overhead.Runs{Count: n, NS: n * levels[s.level].ns}
	for i := range levels {
		r.At = append(r.At, n*levels[i].ns)
	}
	return r
}

// sumsFor is how long sums are good: many targets are asked about at a time, and to read the states of all threads
// takes 0.3 ms.
const sumsFor = 5 * time.Millisecond

// living returns how often the living threads of a process left their CPUs. The caller holds the lock.
func (s *Source) living(pid uint32) uint64 {
	if now := time.Now(); now.Sub(s.summed) > sumsFor {
		s.sums, s.summed = map[uint32]uint64{}, now
		_ = s.kernel.threads(
			func(t *bpf.SchedThreadState) { s.sums[t.Tgid] += t.Switches },
		) // else counted the next time
	}
	return s.sums[pid]
}

// runs is of all targets so far. The caller holds the lock.
func (s *Source) runs() overhead.Runs {
	n := s.kernel.left() - s.counted
	return overhead.Runs{Count: s.spent.Count + n, NS: s.spent.NS + n*levels[s.level].ns}
}

// left is how often followed threads left their CPUs so far.
func (k *kernel) left() uint64 { return k.count(bpf.SchedSwitchCountSWITCH_LEFT) }

// whySummed reports why waits were summed.
func (s *Source) whySummed() string {
	why := fmt.Sprintf("threads left their CPUs more than %d times per second", s.opts.Budget)
	if level := s.Level(); level > 0 {
		why += ", and to save time: " + levels[level].Loses
	}
	return why
}
