// Package memory is the source of what frameworks' own allocators hand out: it probes the two
// functions of PyTorch's libc10 that its allocators call for every block, which exist for profilers but are
// called without one too. Their totals are exact from the first call on, also after a late attach, because the
// allocator says them itself; stacks are of allocations that chance chooses by their bytes
// (bpf/memory.bpf.c). What the CUDA driver allocates is counted in the same way, from the attach on
// (bpf/memory_driver.h); how long its calls take is seen by package cudaapi.
package memory

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// maxLibraries bounds how many copies of libc10 and of the driver are probed in one process.
const maxLibraries = 4

// Prefixes of the exported names: what follows are the types of the parameters.
const (
	reportSymbol    = "_ZN3c1027reportMemoryUsageToProfilerE"
	exhaustedSymbol = "_ZN3c1027reportOutOfMemoryToProfilerE"
)

// Options are the settings of New.
type Options struct {
	LinkHolder *uprobe.LinkHolder // makes and holds the probes; nil: this process does
	Mode       uprobe.Mode        // how they are attached
	Stacks     *profile.Source    // keeps the stacks of samples; nil: they have none
}

// Source probes PyTorch's libc10 and the CUDA driver. It implements daemon.Source and overhead.Source.
type Source struct {
	opts     Options
	programs *programs

	mu     sync.Mutex
	level  int
	open   bool // probes are to be on
	procs  map[proc.ID]*process
	closed bool
	failed uint64 // probes that could not be taken off, or put on again

	unforgotten uint64 // processes whose blocks could not be forgotten
	interrupted uint64 // totals of the driver that the level off set to nothing

	stopWindows chan struct{} // of levelWindows; nil: there are none

	feed feeding
}

// process is what is probed in one process.
type process struct {
	execs     uint64 // when it was last looked at
	libraries []*library
}

// library is one mapped file.
type library struct {
	dev, inode uint64
	path       string
	file       *os.File // open as long as the process lives: levels take probes off and put them on again
	reports    []uprobe.Site
	reporting  *uprobe.Attachment // on reports; nil: off
	exhausted  []uprobe.Site
	failing    *uprobe.Attachment // on exhausted
	driver     *driverProbes      // nil: it is not the driver's
	err        error
}

// New loads the programs. Their events go into rings.
func New(rings *ring.Rings, opts Options) (*Source, error) {
	programs, err := load(rings, opts)
	if err != nil {
		return nil, err
	}
	return &Source{opts: opts, programs: programs, open: true, procs: map[proc.ID]*process{}, feed: newFeeding()}, nil
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return recording.MemorySource }

// candidate reports whether a file of this name may be PyTorch's libc10, or the CUDA driver's.
func candidate(base string) bool {
	rest, ok := strings.CutPrefix(base, "libc10")
	return cuda.IsDriverFile(base) || ok && (strings.HasPrefix(rest, ".so") || strings.HasPrefix(rest, "-"))
}

// Follow probes the libc10 and the driver that p has mapped, if they are not probed yet.
func (s *Source) Follow(p *proc.Process) error {
	mappings, err := proc.Libraries(p, candidate)
	if err != nil {
		return fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	var errs []error
	if known := s.procs[p.ID()]; known != nil && known.execs != p.Execs {
		known.execs = p.Execs
		errs = append(errs, s.replaced(p.PID, clock.Monotonic()))
	}
	for _, m := range mappings {
		known := s.procs[p.ID()]
		if known != nil &&
			(len(known.libraries) >= maxLibraries || slices.ContainsFunc(known.libraries, func(l *library) bool {
				return l.dev == m.Dev && l.inode == m.Inode
			})) {
			continue
		}
		if known == nil {
			known = &process{execs: p.Execs}
			s.procs[p.ID()] = known
		}
		l := &library{dev: m.Dev, inode: m.Inode, path: m.Path}
		known.libraries = append(known.libraries, l)
		l.err = s.resolve(p, m, l)
		if l.err == nil {
			l.err = s.put(p.PID, l)
		}
		if errors.Is(l.err, uprobe.ErrNoProcess) {
			return nil // it is gone: Forget follows
		}
		if l.err != nil {
			errs = append(errs, fmt.Errorf("%s in pid %d is not probed: %w", m.Path, p.PID, l.err))
		}
	}
	return errors.Join(errs...)
}

var errNoSymbol = errors.New(
	"it does not export c10::reportMemoryUsageToProfiler: a PyTorch older than 1.6, or built in another way",
)

// resolve finds the functions in the file.
func (s *Source) resolve(p *proc.Process, m proc.Mapping, l *library) error {
	file, err := proc.Open(p, m)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("stat: %w", err), file.Close())
	}
	image, err := elffile.Open(file, info.Size())
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if cuda.IsDriverFile(path.Base(m.Path)) {
		if l.driver, err = driverSites(image, s.opts.Mode); err != nil || l.driver == nil {
			return errors.Join(err, file.Close()) // a stub allocates nothing
		}
		l.file = file
		return nil
	}
	functions, err := image.Named(func(name string) bool {
		return strings.HasPrefix(name, reportSymbol) || strings.HasPrefix(name, exhaustedSymbol)
	})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	for _, fn := range functions {
		switch {
		case fn.Indirect:
		case strings.HasPrefix(fn.Name, reportSymbol):
			l.reports = append(l.reports, site(fn, image.Machine))
		case strings.HasPrefix(fn.Name, exhaustedSymbol):
			l.exhausted = append(l.exhausted, site(fn, image.Machine))
		}
	}
	if len(l.reports) == 0 {
		return errors.Join(errNoSymbol, file.Close())
	}
	l.file = file
	return nil
}

func site(fn elffile.Function, machine elf.Machine) uprobe.Site {
	at := uprobe.Choose(fn.Code, fn.Addr, machine)
	return uprobe.Site{Offset: fn.Offset + at.Offset}
}

// put puts the probes on that the level wants, and takes off the others. The caller holds the lock.
func (s *Source) put(pid uint32, l *library) error {
	if l.file == nil {
		return nil
	}
	if l.driver != nil {
		if s.level == levelOff {
			return l.driver.off()
		}
		return s.putDriver(pid, l)
	}
	attach := func(to **uprobe.Attachment, program *ebpf.Program, sites []uprobe.Site) (err error) {
		if *to == nil && len(sites) > 0 {
			*to, err = uprobe.AttachProgram(s.opts.LinkHolder, s.opts.Mode, program, l.file, pid, sites)
		}
		return err
	}
	// Allocations that fail are seen at every level: they are rare.
	if err := attach(&l.failing, s.programs.exhausted, l.exhausted); err != nil {
		return err
	}
	if !s.open {
		return detach(&l.reporting)
	}
	return attach(&l.reporting, s.programs.report, l.reports)
}

func detach(at **uprobe.Attachment) error {
	if *at == nil {
		return nil
	}
	err := (*at).Close()
	*at = nil
	return err
}

func (l *library) close() error {
	err := errors.Join(detach(&l.reporting), detach(&l.failing))
	if l.driver != nil {
		err = errors.Join(err, l.driver.off())
	}
	if l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
	return err
}

// Forget takes the probes off p, which is gone. What it had not freed counts as live until its end.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	known := s.procs[p.ID()]
	delete(s.procs, p.ID())
	again := slices.ContainsFunc(slices.Collect(maps.Keys(s.procs)), func(id proc.ID) bool { return id.PID == p.PID })
	s.mu.Unlock()
	if known == nil {
		return
	}
	for _, l := range known.libraries {
		if err := l.close(); err != nil && !errors.Is(err, uprobe.ErrNoProcess) {
			s.mu.Lock()
			s.failed++
			s.mu.Unlock()
		}
	}
	if again {
		return
	}
	err := s.end(p.PID, clock.Monotonic())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.unforgotten++
	}
	if len(s.procs) == 0 && !s.closed && s.programs.awaitNone() != nil {
		s.failed++ // frees cost more than they need
	}
}

// Close takes every probe off and frees the programs. What is in the ring comes out at the next Feed.
func (s *Source) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.stopWindows != nil {
		close(s.stopWindows)
		s.stopWindows = nil
	}
	var errs []error
	for _, q := range s.procs {
		for _, l := range q.libraries {
			errs = append(errs, l.close())
		}
	}
	s.mu.Unlock()
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take(s.feed.held)
	return errors.Join(errors.Join(errs...), s.programs.close())
}

// Losses returns what keeps allocations from being seen, by process.
func (s *Source) Losses() []loss.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []loss.Loss
	for id, q := range s.procs {
		for _, l := range q.libraries {
			if l.err != nil {
				out = append(out, loss.Loss{
					Reason: loss.MemoryUnseen, Count: 1, PID: id.PID, Where: fmt.Sprintf("pid %d: %s", id.PID, l.path),
					Detail: l.err.Error(),
				})
			}
		}
	}
	if s.failed > 0 {
		out = append(
			out,
			loss.Loss{
				Reason: loss.ProbeFailed,
				Count:  s.failed,
				Detail: "probes of allocations could not be put on or taken off",
			},
		)
	}
	counts := s.programs.counts()
	for _, c := range []struct {
		n      uint64
		detail string
	}{
		{counts.lost, "samples of allocations, for want of room"},
		{counts.forgotten, "samples of allocations whose frees are not noticed, because too many are live"},
		{counts.devices, "calls, because too many processes and devices allocate"},
		{counts.blocks, "allocations of the driver, because too many are live"},
		{counts.mappings, "calls of cuMemUnmap that may free more than was looked for"},
		{s.unforgotten, "processes that ended, whose blocks still take room"},
		{s.interrupted, "totals of the driver, which begin anew because the source was off"},
	} {
		if c.n > 0 {
			out = append(out, loss.Loss{Reason: loss.MemorySamplesLost, Count: c.n, Detail: c.detail})
		}
	}
	slices.SortFunc(
		out,
		func(a, b loss.Loss) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Where, b.Where)) },
	)
	return out
}

// State reports whether any allocator is probed.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := recording.Source{
		Name: recording.MemorySource, State: "waiting", Optional: true,
		Detail: "no process maps PyTorch's libc10 or the CUDA driver",
	}
	skipped := map[string]bool{}
	for _, q := range s.procs {
		for _, l := range q.libraries {
			if l.file == nil {
				continue
			}
			state.State, state.Detail = "running", fmt.Sprintf("probes attached by %s", s.opts.Mode)
			if s.opts.Stacks == nil {
				state.Detail += "; without stacks, because no CPU samples are taken"
			}
			if l.driver != nil {
				for _, name := range l.driver.skipped {
					skipped[name] = true
				}
			}
		}
	}
	if len(skipped) > 0 {
		state.Detail += "; not probed, because each probe of a perf event takes 0.1 s to remove: " +
			strings.Join(slices.Sorted(maps.Keys(skipped)), ", ")
	}
	if s.level > 0 {
		state.Detail += "; " + levels[s.level].Name
	}
	return state
}
