package profile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// sourceName is what the source is called in status and reports.
const sourceName = recording.SamplesSource

// Source samples the threads of targets. It implements daemon.Source. Its events come out of a
// ring of its own.
type Source struct {
	opts     Options
	programs *programs
	clock    ticker
	cpus     *cpuEvents // nil: events are of threads,
	noCPUs   error      // because of this
	pythons  *pythons   // used by Follow only
	modules  *modules
	convert  *converter
	namer    *namer
	table    table
	tally    tally
	files    *descriptors
	ctx      context.Context // of the goroutines, until Close
	stop     context.CancelFunc
	starting sync.Once
	work     sync.WaitGroup // goroutines that end with ctx, but for the unwinder's start
	toName   chan frame

	library atomic.Pointer[libraryState]

	mu    sync.Mutex
	level int                 // index into Levels
	spent overhead.Runs       // of processes that are gone
	procs map[uint32]*tracked // by pid
	dead  map[uint32]*tracked // gone, but the ring may still hold their samples

	feed   sync.Mutex // one pass at a time
	joiner *joiner
	late   []event.Event // what Close took out of the ring
	closed bool
	merged mergedCache
	raw    raw           // room for a record,
	frames []frame       // the frames of a stack,
	batch  []event.Event // and events
	probes probes
}

// libraryState is what has become of the native unwinder.
type libraryState struct {
	unwinder unwinder // nil: there is none
	err      error    // why; nil while it starts
}

// tracked is one process that is sampled.
type tracked struct {
	process   *proc.Process
	threads   *threads // used by Follow until opened, then under the lock
	python    *cpython // nil: none is known
	refused   error    // why its CPython is not read
	announced bool     // the programs know of it
	left      refusal  // threads that are not sampled
	opened    bool     // it had events: a storm may have taken them off
	storm     storm
	diedAt    uint64 // ns; 0 while it runs
}

// New loads the programs. It needs CAP_BPF and CAP_PERFMON (clierror.Permission), and
// Linux 5.15. Nothing is sampled before the first Follow, which also begins to start
// the native unwinder in the background; that takes a quarter to half a second.
func New(opts Options) (*Source, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	silence(opts.Log)
	programs, err := loadPrograms(&opts)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := newModules()
	s := &Source{
		opts: opts, programs: programs, clock: ticker{cycles: opts.Cycles && probeCycles()},
		pythons: newPythons(), modules: m, convert: newConverter(m), namer: newNamer(opts.Symbols, m),
		files: allowedDescriptors(), ctx: ctx, stop: stop,
		toName: make(chan frame, 4096),
		procs:  map[uint32]*tracked{},
		dead:   map[uint32]*tracked{},
		joiner: newJoiner(),
		merged: newMergedCache(),
	}
	s.table.fresh, s.table.left = s.queue, s.namer.keep
	s.library.Store(&libraryState{})
	if opts.OwnOnly {
		s.library.Store(&libraryState{err: errors.New("it is switched off")})
	}
	s.work.Go(func() { s.nameAhead(ctx) })
	if err := s.chooseEvents(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.cpus != nil || opts.Budget > 0 && opts.Switches > 0 {
		s.work.Go(func() { s.boundStorms(ctx) })
	}
	return s, nil
}

// chooseEvents decides between events of CPUs and, where those are refused, of threads.
func (s *Source) chooseEvents() error {
	s.noCPUs = s.opts.noCPUs
	if s.noCPUs == nil {
		s.noCPUs = mayOpenCPU(&s.clock)
	}
	if s.noCPUs != nil {
		return s.programs.setThreadEvents()
	}
	s.cpus = &cpuEvents{programs: s.programs, clock: &s.clock, causes: s.causes(), hz: s.opts.Hz}
	return nil
}

// startLibrary starts the unwinder and lets samples go on to it. Close does not wait
// for it, because the kernel's verifier cannot be interrupted: closed maps end it.
func (s *Source) startLibrary(ctx context.Context) {
	starting, pids := s.library.Load(), s.pids()
	var u unwinder
	err := guard(func() (err error) {
		if s.opts.Helper != nil {
			u, err = startHelper(ctx, s.opts.Helper, s.opts.Hz, pids, s.convert)
			return err
		}
		l, err := startLibrary(ctx, s.opts.Log, s.opts.Hz, pids, s.convert)
		if err == nil {
			u = l
		}
		return err
	})
	if err == nil {
		if err = s.programs.chain(u.entry()); err != nil {
			u.close()
		}
	}
	next := &libraryState{unwinder: u}
	if err != nil {
		next = &libraryState{err: err}
	}
	if !s.library.CompareAndSwap(starting, next) && err == nil {
		u.close() // Close was faster
	}
}

// pids returns the processes that are sampled.
func (s *Source) pids() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.procs))
}

var errClosed = errors.New("the source is closed")

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow samples every thread of p, those that are born later included, and looks
// whether p runs CPython. It is called again when p has mapped a file or replaced its
// program. The error says which threads or which interpreter are left out.
func (s *Source) Follow(p *proc.Process) error {
	s.modules.follow(p)
	q, err := s.proc(p)
	if err != nil {
		return err
	}
	if !s.opts.OwnOnly {
		s.starting.Do(func() { go s.startLibrary(s.ctx) })
	}
	s.mu.Lock()
	q.process = p
	known := q.python
	s.mu.Unlock()
	return errors.Join(s.findPython(q, p, known), s.openEvents(q))
}

// proc returns what is known of p.
func (s *Source) proc(p *proc.Process) (*tracked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	q := s.procs[p.PID]
	if q != nil && q.process.ID() == p.ID() {
		return q, nil
	}
	if q != nil {
		s.bury(q)
	}
	q = &tracked{process: p, threads: &threads{
		pid: p.PID, events: map[uint32][]int{}, programs: s.programs, clock: &s.clock, hz: s.hz(), causes: s.causes(),
		files: s.files,
	}}
	s.procs[p.PID] = q
	return q, nil
}

func (s *Source) causes() []event.SampleCause {
	if s.opts.Switches > 0 {
		return []event.SampleCause{event.Clock, event.Switch}
	}
	return []event.SampleCause{event.Clock}
}

// findPython looks for a CPython in p, and tells the program how to walk its frames if
// it is not the one that is known.
func (s *Source) findPython(q *tracked, p *proc.Process, known *cpython) error {
	py, err := s.pythons.find(p, known)
	s.mu.Lock()
	told := q.announced
	s.mu.Unlock()
	if !p.Alive() || (told && err == nil && py == known) {
		return nil
	}
	var layout *bpf.SamplePythonLayout
	if py != nil {
		layout = &py.layout
		s.convert.interpreter(fileKey{py.mapping.Dev, py.mapping.Inode, py.mapping.Path}, py.eval)
	}
	// Also where there is none, or none any more: from the first time on the process is sampled.
	untold := s.programs.follow(p.PID, layout)
	err = errors.Join(err, untold)
	s.mu.Lock()
	defer s.mu.Unlock()
	q.python, q.refused, q.announced = py, err, untold == nil
	s.convert.epoch.Add(1) // the same addresses may be other code now
	if err != nil {
		return fmt.Errorf("the Python frames of pid %d are not read: %w", p.PID, err)
	}
	return nil
}

// openEvents samples q. Events of CPUs are the same for all processes.
func (s *Source) openEvents(q *tracked) error {
	if s.cpus != nil {
		return s.cpus.on()
	}
	return s.openThreads(q)
}

// openThreads samples the threads of q that are not sampled yet. Only the first time
// is there any: from then on they inherit their events, across exec as well.
func (s *Source) openThreads(q *tracked) error {
	s.mu.Lock()
	opened := q.opened
	s.mu.Unlock()
	if opened {
		return nil
	}
	left, err := q.threads.open()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !q.process.Alive() {
		return nil // Forget follows
	}
	q.left, q.opened = left, len(q.threads.events) > 0
	if err == nil && left.threads > 0 {
		err = fmt.Errorf("%d threads of pid %d are not sampled: %w", left.threads, q.process.PID, left.why)
	}
	return err
}

// Forget stops sampling p, which is gone. What the ring still holds of it keeps its names.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.procs[p.PID]; q != nil && q.process.ID() == p.ID() {
		s.bury(q)
	}
}

// bury takes the events off a process. The caller holds the lock.
func (s *Source) bury(q *tracked) {
	q.threads.close()
	q.diedAt = clock.Monotonic()
	pid := q.process.PID
	delete(s.procs, pid)
	s.dead[pid] = q
	spent := s.runsOf(pid)
	s.spent.Count, s.spent.NS = s.spent.Count+spent.Count, s.spent.NS+spent.NS
	s.programs.forget(pid)
	if s.cpus != nil && len(s.procs) == 0 {
		s.cpus.off()
	}
}

// remember is how long the names of a process are kept after its end, in ns.
const remember = 2_000_000_000

// clean lets go of processes that have been dead for a while. The caller holds the lock.
func (s *Source) clean(now uint64) {
	for pid, q := range s.dead {
		if now-min(now, q.diedAt) > remember {
			delete(s.dead, pid)
			s.modules.forget(q.process)
		}
	}
}

// Close takes every event off and lets go of the unwinder. What the ring still holds
// comes out at the next Feed.
func (s *Source) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for _, q := range s.procs {
		s.bury(q)
	}
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	s.feed.Lock()
	s.pass(0, true, func(batch []event.Event) { s.late = append(s.late, batch...) })
	s.probes.close()
	s.feed.Unlock()
	err := s.programs.close() // no sample goes on to the unwinder, and none can begin to
	if u := s.library.Swap(&libraryState{err: errClosed}).unwinder; u != nil {
		u.close()
	}
	return err
}
