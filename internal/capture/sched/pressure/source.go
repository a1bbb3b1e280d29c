// Package pressure samples what the host and the target's cgroup did to it: CPU time
// that a quota took away, stalls for memory, major page faults, and on which NUMA
// nodes its memory lies. It reads /proc, /sys and cgroup files, and probes nothing.
package pressure

import (
	"fmt"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// sourceName is what the source is called in status and reports.
const sourceName = "host pressure"

const (
	defaultInterval = time.Second
	defaultKeep     = 5 * time.Minute
	// numaEvery is rare because the kernel walks all page tables of the process for it.
	numaEvery = 30 * time.Second
	// numaResident is the resident memory beyond which even that is too much, in bytes: the
	// walk visits every page, and holds the lock of the address space for reading meanwhile.
	numaResident = 16 << 30
	maxProcs     = 1024
)

// Options are the settings of New. The zero value is right for a daemon.
type Options struct {
	Interval time.Duration // between samples; 0 means 1 s
	Keep     time.Duration // how long samples are kept; 0 means 5 minutes

	root string // tests: what stands before /proc and /sys
}

// Source samples. It implements daemon.Source.
type Source struct {
	opts  Options
	files files
	gpu   int // NUMA node of the GPUs, -1 where they differ or it is not known
	nodes int // NUMA nodes of the machine

	mu    sync.Mutex
	roots map[uint32]*root
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// root is one target.
type root struct {
	procs   map[proc.ID]uint64   // major faults when last seen
	ended   uint64               // major faults of processes that ended
	samples []recording.Pressure // ordered by TS
	numaAt  time.Time
	numa    map[string]uint64
	psi     string // where memory stalls come from
}

// New begins to sample every target that is followed from now on.
func New(opts Options) *Source {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	if opts.Keep <= 0 {
		opts.Keep = defaultKeep
	}
	s := &Source{
		opts:  opts,
		files: files{root: opts.root},
		roots: map[uint32]*root{},
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	s.gpu, s.nodes = s.files.gpuNode(), s.files.numaNodes()
	go s.run()
	return s
}

func (s *Source) run() {
	defer close(s.done)
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case at := <-tick.C:
			s.sample(at)
		}
	}
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow takes the first sample of a target when its first process comes.
func (s *Source) Follow(p *proc.Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roots[p.Root]
	if r == nil {
		r = &root{procs: map[proc.ID]uint64{}}
		s.roots[p.Root] = r
	}
	if _, known := r.procs[p.ID()]; known || len(r.procs) >= maxProcs {
		return nil
	}
	faults, _ := s.files.majorFaults(p.PID, p.StartTime) // it may be gone: Forget follows
	r.procs[p.ID()] = faults
	if len(r.samples) == 0 {
		s.take(p.Root, r, time.Now())
	}
	return nil
}

// Forget keeps what p added up.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.roots[p.Root]; r != nil {
		r.ended += r.procs[p.ID()]
		delete(r.procs, p.ID())
	}
}

func (s *Source) sample(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, r := range s.roots {
		if len(r.procs) > 0 {
			s.take(pid, r, at)
		} else if n := len(r.samples); n == 0 || r.samples[n-1].TS+uint64(s.opts.Keep) < clock.Monotonic() {
			delete(s.roots, pid) // it has ended, and nobody asks for what it was like any more
		}
	}
}

// take takes one sample. The caller holds the lock.
func (s *Source) take(pid uint32, r *root, at time.Time) {
	p := recording.Pressure{TS: clock.Monotonic(), GPUNode: s.gpu, MajorFaults: r.ended}
	member := s.member(pid, r)
	groups := s.files.cgroups(member)
	p.FreeCPU = s.files.freeCPU(member)
	p.Throttled, p.Periods = s.files.throttled(groups)
	p.MemoryStall, r.psi = s.files.memoryStall(groups)
	for id, before := range r.procs {
		if faults, err := s.files.majorFaults(id.PID, id.StartTime); err == nil {
			before = faults
			r.procs[id] = faults
		}
		p.MajorFaults += before
	}
	if s.nodes > 1 && at.Sub(r.numaAt) >= numaEvery {
		r.numaAt, r.numa = at, s.pages(r)
	}
	p.RemotePages = r.numa
	r.samples = append(r.samples, p)
	oldest := p.TS - min(p.TS, uint64(s.opts.Keep))
	if keep := sort.Search(len(r.samples), func(i int) bool { return r.samples[i].TS >= oldest }); keep > len(
		r.samples,
	)/2 {
		r.samples = append([]recording.Pressure(nil), r.samples[keep:]...)
	}
}

// member returns a process of the target: the first one while it runs.
func (s *Source) member(pid uint32, r *root) uint32 {
	best := uint32(math.MaxUint32)
	for id := range r.procs {
		if id.PID == pid {
			return pid
		}
		best = min(best, id.PID)
	}
	return best
}

// pages adds up where the memory of the target's processes lies; nil where that is too dear.
func (s *Source) pages(r *root) map[string]uint64 {
	total := map[string]uint64{}
	for id := range r.procs {
		if s.files.resident(id.PID) > numaResident {
			return nil
		}
		s.files.numaPages(id.PID, total)
	}
	return total
}

// Pressure returns the samples of a target within [from, to] (ns), with the last one
// before and the first one after, so that differences cover the window. Where to has just
// passed it takes one more.
func (s *Source) Pressure(pid uint32, from, to uint64) []recording.Pressure {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roots[pid]
	if r == nil {
		return nil
	}
	if n := len(r.samples); n > 0 && len(r.procs) > 0 && to > r.samples[n-1].TS && to <= clock.Monotonic() {
		s.take(pid, r, time.Now())
	}
	first := sort.Search(len(r.samples), func(i int) bool { return r.samples[i].TS > from })
	last := sort.Search(len(r.samples), func(i int) bool { return r.samples[i].TS >= to })
	return append([]recording.Pressure(nil), r.samples[max(0, first-1):min(len(r.samples), last+1)]...)
}

// State reports where memory stalls come from, and what is not sampled.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := recording.Source{Name: sourceName, State: "waiting", Detail: "no process is followed"}
	for _, r := range s.roots {
		if len(r.samples) > 0 {
			state.State, state.Detail = "running", fmt.Sprintf("a sample every %v; memory stalls: %s",
				s.opts.Interval, r.psi)
		}
	}
	return state
}

// Losses returns nothing: a sample that cannot be taken is absent.
func (s *Source) Losses() []loss.Loss { return nil }

// Close ends the sampling.
func (s *Source) Close() error {
	s.once.Do(func() { close(s.stop) })
	<-s.done
	return nil
}
