// Package sched is the source of off-CPU intervals: when each thread of a target
// was not running, whether it was blocked or waited for a CPU, in which system
// call and on what, and who woke it or took its CPU (bpf/sched.bpf.c).
package sched

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// sourceName is what the source is called in status and reports.
const sourceName = recording.SchedulingSource

// defaultBudget is how many intervals per second are sent one by one: 100,000 fill
// the default recorder in 15 s.
const defaultBudget = 100_000

// maxBudget is more than a machine can switch.
const maxBudget = 1 << 32

// Options are the settings of New.
type Options struct {
	// Budget is how many intervals of all targets are sent one by one per second; 0
	// means defaultBudget. Beyond it, short ones are only summed per thread.
	Budget int
	// Keep is for how long recordings show what has ended; 0 means 5 minutes.
	Keep time.Duration

	noCast bool // tests: as before Linux 6.2
}

// Source follows the scheduling of processes. It implements daemon.Source.
type Source struct {
	opts   Options
	kernel *kernel
	names  *names
	failed atomic.Uint64 // times that the states of threads could not be read

	mu      sync.Mutex
	level   int
	spent   overhead.Runs         // while levels were in force that are not any more
	counted uint64                // switches when this one came into force
	sums    map[uint32]uint64     // switches of living threads by process
	summed  time.Time             // when they were read
	procs   map[proc.ID]bool      // true: its threads are seeded
	leaving map[proc.ID]time.Time // gone, but the last switch of some thread is still to come
	on      bool
	kept    []event.Event // rows of what was going on when the source was turned off, the oldest first
}

// Bounds of what is kept of the times at which the source was turned off.
const (
	maxKept     = 1 << 16 // rows: 4 MiB
	defaultKeep = 5 * time.Minute
)

// New loads the programs so that they write into rings, and attaches them. They
// see every switch of the machine from then on, and pass by those of processes that
// are not followed. Errors: clierror.Permission without CAP_BPF and CAP_PERFMON,
// clierror.Unsupported before Linux 5.15 or without BTF.
func New(rings *ring.Rings, opts Options) (*Source, error) {
	if opts.Budget <= 0 {
		opts.Budget = defaultBudget
	}
	if opts.Keep <= 0 {
		opts.Keep = defaultKeep
	}
	k, err := openKernel(rings, opts)
	if err != nil {
		return nil, err
	}
	if err := k.attach(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return &Source{
		opts:    opts,
		kernel:  k,
		names:   newNames(procRoot, opts.Keep),
		procs:   map[proc.ID]bool{},
		leaving: map[proc.ID]time.Time{},
		on:      true,
	}, nil
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow begins to follow p. What its threads are doing at this moment is taken
// down, so that a thread that never runs again has a reason as well.
func (s *Source) Follow(p *proc.Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seeded, known := s.procs[p.ID()]; known && (seeded || !s.on) {
		return nil
	}
	s.procs[p.ID()] = false
	s.names.watch(p.PID, true)
	if !s.on {
		return nil
	}
	return s.start(p.ID())
}

// start follows a process in the kernel. The caller holds the lock.
func (s *Source) start(id proc.ID) error {
	already, err := s.kernel.follow(id)
	if err == nil && !already {
		err = s.kernel.seed()
	}
	if err != nil {
		return fmt.Errorf("scheduling of pid %d: %w", id.PID, err)
	}
	s.procs[id] = true
	return nil
}

// Forget ends following p, which is gone. A process counts as gone before its last
// thread has left its CPU for good: until then the kernel goes on following it.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.procs, p.ID())
	s.names.watch(p.PID, false)
	s.leaving[p.ID()] = time.Now()
	s.sweep()
}

// leavingFor is how long the last threads of a process that is gone may take to end.
const leavingFor = 5 * time.Second

// sweep forgets in the kernel what has left. The caller holds the lock.
func (s *Source) sweep() {
	stuck := map[uint32]bool{}
	for id, since := range s.leaving {
		if s.on && s.kernel.follows(id) && time.Since(since) < leavingFor {
			continue
		}
		stuck[id.PID] = s.kernel.follows(id) // its end was not seen
		s.kernel.forget(id)
		delete(s.leaving, id)
	}
	for _, was := range stuck {
		if was {
			_ = s.kernel.clear(func(t *bpf.SchedThreadState) bool { return stuck[t.Tgid] }) // at most, rows too many
			return
		}
	}
}

// Switch turns the source off and on again. While it is off, no switch of the
// machine runs a program; recordings of a window that was partly off say so.
func (s *Source) Switch(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn(on)
}

// turn is Switch for who holds the lock.
func (s *Source) turn(on bool) error {
	if on == s.on {
		return nil
	}
	if !on {
		s.on = false
		err := s.kernel.detach()
		s.keep(clock.Monotonic())
		for id := range s.procs {
			s.kernel.forget(id)
			s.procs[id] = false
		}
		s.sweep()
		return errors.Join(err, s.kernel.clear(func(*bpf.SchedThreadState) bool { return true }))
	}
	if err := s.kernel.attach(); err != nil {
		return err
	}
	s.on = true
	var errs []error
	for id := range s.procs {
		errs = append(errs, s.start(id))
	}
	return errors.Join(errs...)
}

// keep keeps what is going on at a time (ns) and has no event yet: the source is turned off, and the states of threads
// are forgotten. The caller holds the lock.
func (s *Source) keep(now uint64) {
	old, _ := slices.BinarySearchFunc(s.kept, now-min(now, uint64(s.opts.Keep)), func(e event.Event, t uint64) int {
		return cmp.Compare(e.End(), t)
	})
	s.kept = append(slices.Delete(s.kept, 0, old), s.rows(now)...)
	if more := len(s.kept) - maxKept; more > 0 {
		s.kept = slices.Delete(s.kept, 0, more)
	}
}

// State reports whether threads are followed, and since when not every switch by itself.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return recording.Source{Name: sourceName, State: "off"}
	}
	state := recording.Source{Name: sourceName, State: "running"}
	if n := s.kernel.summed(); n > 0 {
		state.Detail = fmt.Sprintf(
			"a storm: of more than %d switches per second short ones are only summed; %d so far",
			s.opts.Budget,
			n,
		)
	}
	if s.level > 0 {
		state.Detail = fmt.Sprintf("%s; %d waits were summed so far", levels[s.level].Name, s.kernel.summed())
	}
	return state
}

// Losses returns what was summed instead of sent, and threads that were not followed.
func (s *Source) Losses() []loss.Loss {
	var out []loss.Loss
	add := func(reason loss.Reason, n uint64, detail string) {
		if n > 0 {
			out = append(out, loss.Loss{Reason: reason, Count: n, Detail: detail})
		}
	}
	add(loss.SwitchesSummed, s.kernel.summed(), s.whySummed())
	add(
		loss.SwitchesMissed,
		s.kernel.missed(),
		"the kernel ran no program when a thread was woken or took a CPU; when that was is from its own account",
	)
	add(loss.ThreadsMissed, s.kernel.noRoom(), fmt.Sprintf("more than %d threads at once", s.kernel.room()))
	add(loss.ThreadsMissed, s.failed.Load(), "the states of threads could not be read for a recording")
	return out
}

// Observe looks at events as they are drained, and finds the names of what they
// refer to by number while those still exist.
func (s *Source) Observe(batch []event.Event) { s.names.observe(batch) }

// Objects returns the files that threads waited for, as far as their names were found, and the roles of sockets.
func (s *Source) Objects() []recording.Object {
	return withRoles(s.names.allObjects(), s.names.roles())
}

// OtherThreads returns the threads of other processes that woke or displaced the targets'.
func (s *Source) OtherThreads() []recording.Thread { return s.names.allOtherThreads() }

// Close detaches the programs and frees them.
func (s *Source) Close() error { return s.kernel.close() }
