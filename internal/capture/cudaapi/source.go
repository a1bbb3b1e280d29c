// Package cudaapi is the source of CUDA API calls. It finds the CUDA libraries that a target has mapped, chooses by the
// table of package cuda what to probe in them and by package uprobe where, and keeps the probes on until the process is
// gone. Its events come out of the rings that the programs write into.
package cudaapi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Name is what the source is called in status and reports.
const Name = recording.CallsSource

// maxLibraries bounds how many copies of CUDA libraries are probed in one
// process. Two or three are common (torch's and torchvision's libcudart).
const maxLibraries = 32

// Options are the settings of New.
type Options struct {
	LinkHolder *uprobe.LinkHolder // makes and holds the probes; nil: this process does
	Helper     []string           // starts this program again, for RunHelper; nil: no communicator is read
	Mode       uprobe.Mode        // forces a way to attach; "" takes the best that works
	AllCalls   bool               // probe also what is asked very often and says nothing (cuda.Row.Hot)

	// Launches is when launches are probed, until SetLaunches says otherwise; "": LaunchesOn.
	Launches      LaunchMode
	LaunchesFor   time.Duration // how long a window is; 0: defaultFor
	LaunchesEvery time.Duration // from one window's beginning to the next one's; 0: defaultEvery
	Keep          time.Duration // for how long recordings show what has ended; 0: defaultKeep
	Complain      func(error)   // is told what cannot be returned: that a probe could not be taken off; may be nil
}

// Source probes CUDA libraries. It implements daemon.Source.
type Source struct {
	opts     Options
	attacher *uprobe.Attacher
	names    names // of functions; guarded by mu
	files    files // used by Follow and Forget only

	changing  sync.Mutex // held while a level is applied, or a library is probed
	counted   counted
	comms     communicators
	until     atomic.Pointer[probedUntil] // written under mu, as a whole
	detaching errgroup.Group              // take the probes off processes that have ended

	mu     sync.Mutex
	level  int
	procs  map[proc.ID]*process
	wanted map[proc.ID]LaunchMode // of processes that are not followed yet
	ended  []recording.GPUWindow  // of processes that have gone
}

// New loads the programs so that they write into rings. The error says which
// capability or kernel feature is missing for each way to attach.
func New(rings *ring.Rings, opts Options) (*Source, error) {
	attacher, err := uprobe.NewAttacher(
		uprobe.Options{LinkHolder: opts.LinkHolder, Mode: opts.Mode, Maps: rings.Maps()},
	)
	if err != nil {
		return nil, fmt.Errorf("load the programs for CUDA calls: %w", err)
	}
	opts.LaunchesFor, opts.LaunchesEvery = cmp.Or(opts.LaunchesFor, defaultFor),
		cmp.Or(opts.LaunchesEvery, defaultEvery)
	opts.Keep = cmp.Or(opts.Keep, defaultKeep)
	s := &Source{opts: opts, attacher: attacher, procs: map[proc.ID]*process{}, wanted: map[proc.ID]LaunchMode{}}
	s.comms.lost, s.comms.pace, s.comms.keep = lostEvents(rings), readPace, opts.Keep
	if opts.Helper != nil {
		s.comms.read = helperReader(opts.Helper)
	}
	s.detaching.SetLimit(closers)
	return s, nil
}

// Mode is how probes are attached here.
func (s *Source) Mode() uprobe.Mode { return s.attacher.Mode() }

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return Name }

// Follow probes every CUDA library that p has mapped and that is not probed yet.
// Probes stay on a file that p has unmapped: they cost nothing there, and are
// already in place when the same file is mapped again after an exec.
func (s *Source) Follow(p *proc.Process) error {
	noticed := clock.Monotonic()
	s.comms.renew(p)
	mappings, err := proc.Libraries(p, candidate)
	if err != nil {
		return fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
	}
	fresh := s.unknown(p, mappings)
	if len(fresh) == 0 {
		return nil
	}
	var errs []error
	for _, l := range s.open(p, fresh, noticed) {
		if err := s.attach(p, l); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// candidate reports whether a file of this name may be a CUDA library. What it is
// decides its content (cuda.Identify); libcudnn and libcublas do not get so far.
func candidate(base string) bool {
	return cuda.IsDriverFile(base) || strings.HasPrefix(base, "libcudart") || strings.HasPrefix(base, "libnccl") ||
		strings.HasPrefix(base, "librccl") || strings.HasPrefix(base, "libamdhip64")
}

// unknown returns the mappings of files that p has not had before, one of each file.
func (s *Source) unknown(p *proc.Process, mappings []proc.Mapping) []proc.Mapping {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.procs[p.ID()]
	seen := map[fileID]bool{}
	var fresh []proc.Mapping
	for _, m := range mappings {
		id := idOf(m)
		if seen[id] || (known != nil && known.has(id)) {
			continue
		}
		seen[id] = true
		fresh = append(fresh, m)
	}
	return fresh
}

// open reads the libraries of mappings, the driver first: whether it can be probed
// decides what of the runtime is.
func (s *Source) open(p *proc.Process, mappings []proc.Mapping, noticed uint64) []*library {
	var drivers, others []*library
	for _, m := range mappings {
		l := s.files.library(p, m)
		l.row.Mapped = noticed
		if l.identity.Kind == cuda.Driver {
			drivers = append(drivers, l)
		} else {
			others = append(others, l)
		}
	}
	return append(drivers, others...)
}

// attach probes one library, and notes it whether that worked or not: a library
// that was refused is not tried again at every change.
func (s *Source) attach(p *proc.Process, l *library) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	defer func() { // before a change of the level that waits sees it
		if !l.kept {
			l.close()
		}
	}()
	err := l.err
	if err == nil {
		err = s.room(p, l)
	}
	if err == nil && l.identity.Kind != "" {
		err = s.probe(p, l)
	}
	if errors.Is(err, uprobe.ErrNoProcess) {
		return nil // it is gone: Forget follows
	}
	if err != nil {
		l.row.Error = err.Error()
		err = fmt.Errorf("%s in pid %d is not probed: %w", l.row.Path, p.PID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.process(p); len(known.libraries) < maxLibraries {
		known.libraries = append(known.libraries, l)
		if l.ranks.offset > 0 {
			s.comms.follow(p, l.ranks)
		}
	}
	return err
}

// room says no where p has more libraries than any program.
func (s *Source) room(p *proc.Process, l *library) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.procs[p.ID()]; known != nil && len(known.libraries) >= maxLibraries {
		return fmt.Errorf("more than %d CUDA libraries are mapped: %s is not probed", maxLibraries, l.row.Path)
	}
	return nil
}

// process returns what is known of p. The caller holds the lock.
func (s *Source) process(p *proc.Process) *process {
	known := s.procs[p.ID()]
	if known == nil {
		known = &process{pid: p.PID}
		s.procs[p.ID()] = known
	}
	return known
}

// options reports which functions of l to probe. Perf events take a grace period each
// to remove (600 of them two minutes on kernel 6.18), so there what matters most
// must do, and the driver alone, through which every call of the runtime goes.
func (s *Source) options(p *proc.Process, l *library) (o cuda.Options, skip bool) {
	refused := l.identity.Kind == cuda.Runtime && s.driverRefused(p)
	o = cuda.Options{Hot: s.opts.AllCalls, Shadowed: refused}
	if s.attacher.Mode() != uprobe.Perf || s.opts.AllCalls {
		return o, false
	}
	o.Core = true
	return o, l.identity.Kind == cuda.Runtime && !refused
}

// probe puts the probes on.
func (s *Source) probe(p *proc.Process, l *library) error {
	options, skip := s.options(p, l)
	if skip {
		return nil
	}
	plan, err := s.plan(l, options)
	if err != nil {
		return err
	}
	known := len(plan.sites.plain) + len(plan.sites.waits) + len(plan.sites.frequent) + len(plan.launching)
	if known == 0 {
		return errors.New("it exports no function that is known")
	}
	l.row.Found, l.row.Cheap = plan.found, plan.cheap
	l.sites, l.shadowed = plan.sites, options.Shadowed
	err = s.put(l, p.PID)
	if err == nil {
		err = s.probeLaunches(p, l, plan.launching)
	}
	if err != nil { // all or nothing: reports call the library not probed
		return errors.Join(err, l.unprobe())
	}
	l.kept = true
	l.row.Mode = string(s.attacher.Mode())
	l.row.Points = known - len(l.failed())
	l.row.Probed = clock.Monotonic()
	return nil
}

// probeLaunches hands the launch functions to what puts probes on them when it is time.
func (s *Source) probeLaunches(p *proc.Process, l *library, sites []uprobe.Site) error {
	if len(sites) == 0 {
		return nil
	}
	s.mu.Lock()
	launches := s.launchesOf(p)
	s.mu.Unlock()
	return launches.add(l, sites)
}

// Unseen reports why the calls of p to the driver are not seen, and what to do; nil where they are, and where p has no
// driver so far.
func (s *Source) Unseen(p *proc.Process) error {
	if !s.driverRefused(p) {
		return nil
	}
	return errors.New(
		"the driver's library of this process could not be probed (library_refused among the losses says why): mend " +
			"that, and restart the program",
	)
}

// driverRefused reports whether p has a driver library that could not be probed, so
// that launches must be seen at the runtime.
func (s *Source) driverRefused(p *proc.Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.procs[p.ID()]
	if known == nil {
		return false
	}
	for _, l := range known.libraries {
		if l.identity.Kind == cuda.Driver && l.row.Probed != 0 {
			return false
		}
	}
	for _, l := range known.libraries {
		if l.identity.Kind == cuda.Driver || l.err != nil && cuda.IsDriverFile(l.base()) {
			return true
		}
	}
	return false
}

// points are where the probes of a library go.
type points struct {
	plain    []uprobe.Site
	waits    []uprobe.Site // functions that wait for the device, and launches of graphs
	frequent []uprobe.Site // functions that some programs call very often
}

// plan is where the probes of a file go, with one set of options: the same for every process that maps it.
type plan struct {
	sites     points // of all but launches
	launching []uprobe.Site
	found     int // functions of the table that it exports
	cheap     int // points at an instruction that the kernel emulates
}

// plan returns where the probes of l go. The caller holds s.changing, and must not change the plan.
func (s *Source) plan(l *library, options cuda.Options) (*plan, error) {
	if known := l.plans[options]; known != nil {
		return known, nil
	}
	selection, err := cuda.Plan(l.identity, l.exports(), options)
	if err != nil {
		return nil, err
	}
	made, err := s.choose(l, selection, options)
	if err != nil {
		return nil, err
	}
	l.plans[options] = made
	return made, nil
}

// deepest returns until which level a function of a library is probed that a driver's would be until another.
func deepest(l *library, options cuda.Options, driver int) int {
	if l.identity.Kind == cuda.Runtime && !options.Shadowed {
		return levelNoFrequent
	}
	return driver
}

// choose chooses the probe point of each function of the selection, those of launches apart.
func (s *Source) choose(l *library, selection cuda.Selection, options cuda.Options) (*plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &plan{found: selection.Found}
	out.sites.plain = make([]uprobe.Site, 0, len(selection.Points))
	var until probedUntil
	if known := s.until.Load(); known != nil {
		until = slices.Clone(*known)
	}
	for i := range selection.Points {
		point := &selection.Points[i]
		index, err := s.names.index(point.Function())
		if err != nil {
			return nil, err
		}
		s.comms.probed(index, &point.Row)
		fn := l.functions[point.Addr]
		at := uprobe.Choose(fn.Code, fn.Addr, l.machine)
		if at.Cheap {
			out.cheap++
		}
		site := uprobe.Site{Offset: fn.Offset + at.Offset, Cookie: point.Row.Cookie(index), Timed: point.Row.Timed}
		switch {
		case isLaunch(point):
			out.launching = append(out.launching, site)
		case point.Row.Frequent():
			out.sites.frequent = append(out.sites.frequent, site)
			until.put(index, levelSampled)
		case point.Row.Waits():
			out.sites.waits = append(out.sites.waits, site)
			until.put(index, deepest(l, options, levelWaits))
		default:
			out.sites.plain = append(out.sites.plain, site)
			until.put(index, deepest(l, options, levelDriver))
		}
	}
	s.until.Store(&until)
	return out, nil
}

// Forget takes the probes off p. Where it has ended, they come off after Forget has returned: the kernel takes tenths
// of a second for that, in which other processes begin.
func (s *Source) Forget(p *proc.Process) {
	s.changing.Lock() // whoever is changing its probes comes to an end first
	s.mu.Lock()
	known := s.procs[p.ID()]
	delete(s.procs, p.ID())
	delete(s.wanted, p.ID())
	if known != nil {
		s.keep(known.launches, clock.Monotonic()) // before its probes come off, which takes a while
	}
	s.mu.Unlock()
	s.changing.Unlock()
	s.comms.forget(p)
	if known == nil {
		return
	}
	detach := func() error {
		// Nothing can be done about a link that does not close; the kernel frees
		// what belongs to a dead process when this one ends.
		if err := known.detach(); err != nil && s.opts.Complain != nil {
			s.opts.Complain(fmt.Errorf("pid %d has gone: %w", p.PID, err))
		}
		return nil
	}
	if p.Alive() {
		_ = detach() // it is let go of: whoever asked for that is told when it is done
		return
	}
	s.detaching.Go(detach) // waits where too many are on their way
}

// Close takes every probe off and frees the programs.
func (s *Source) Close() error {
	s.mu.Lock()
	procs := s.procs
	s.procs = map[proc.ID]*process{}
	s.mu.Unlock()
	s.changing.Lock()
	defer s.changing.Unlock()
	err := atOnce(slices.Collect(maps.Values(procs)), (*process).detach)
	_ = s.detaching.Wait()
	return errors.Join(err, s.attacher.Close())
}

// Losses returns what keeps calls from being seen, by process and library.
func (s *Source) Losses() []loss.Loss {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []loss.Loss
	lost := s.lost()
	for _, p := range s.procs {
		for _, l := range p.libraries {
			out = append(out, l.losses(p.pid, lost)...)
		}
		if p.launches != nil {
			out = append(out, p.launches.losses()...)
		}
	}
	return out
}

// Libraries returns the CUDA libraries of the processes that are followed.
func (s *Source) Libraries() []recording.Library {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []recording.Library
	for _, p := range s.procs {
		for _, l := range p.libraries {
			if l.identity.Kind != "" || l.err != nil {
				out = append(out, l.row)
			}
		}
	}
	return out
}

// Functions returns the table that event.Func indexes. It only grows.
func (s *Source) Functions() []recording.Function {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names.table()
}

// State reports whether any library is probed, and what keeps better ways from working.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := recording.Source{Name: Name, State: "waiting", Detail: "no CUDA library is mapped yet"}
	for _, p := range s.procs {
		for _, l := range p.libraries {
			if l.row.Probed != 0 {
				state.State, state.Detail = "running", fmt.Sprintf("probes attached by %s", s.attacher.Mode())
			}
		}
	}
	if rejected := s.attacher.Rejected(); len(rejected) > 0 && s.attacher.Mode() == uprobe.Perf {
		state.Detail += fmt.Sprintf(" (%v)", rejected[len(rejected)-1])
	}
	if s.level > levelEach && state.State == "running" {
		state.Detail += "; " + levels[s.level].Name
	}
	if lost := s.lost(); lost != nil {
		state.State, state.Detail = "unavailable", lost.Error()+": restart the daemon"
	}
	return state
}

// Helpers returns the process id of the link holder, while there is one.
func (s *Source) Helpers() []int {
	if s.opts.LinkHolder == nil || s.opts.LinkHolder.Err() != nil {
		return nil
	}
	return []int{s.opts.LinkHolder.PID()}
}

// lost reports why no call is seen any more, nil where they are: the probes go with the process that holds them.
func (s *Source) lost() error {
	if s.opts.LinkHolder == nil {
		return nil
	}
	return s.opts.LinkHolder.Err()
}

// unprobed is the loss of a library whose probes have gone.
func (l *library) unprobed(where string, why error) loss.Loss {
	return loss.Loss{
		Reason: loss.ProbeFailed,
		Count:  uint64(l.row.Points),
		PID:    l.row.PID,
		Where:  where,
		Detail: why.Error(),
	}
}
