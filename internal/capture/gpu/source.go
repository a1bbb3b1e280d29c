package gpu

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// sourceName is the name of the source in status and reports.
const sourceName = recording.GPUSource

// Bounds of how many processes are remembered.
const (
	maxSessions = 64  // with an agent, or waiting for one
	maxGone     = 256 // that have ended
)

// Source brings agents into targets and reads what they saw. It implements daemon.Source.
type Source struct {
	opts           Options
	tables         tables
	ctx            context.Context
	stop           context.CancelFunc
	tasks          sync.WaitGroup // goroutines that attach
	gates          sync.WaitGroup // goroutines that open and close gates
	rests          rests
	heartbeatsDone chan struct{} // closed when heartbeats have stopped
	quiet          context.CancelFunc
	life           *liveness // nil if the kernel does not provide it

	paces paces // progress of processes

	feed sync.Mutex // held while rings are read

	mu         sync.Mutex // held for short times only: heartbeats need it
	sessions   map[proc.ID]*session
	retired    []*session     // that are over, with rings that are to be read to their end
	gone       []*session     // of processes that have ended, for recordings
	continuous map[uint32]int // by target: how many recordings want all of the time
	governed   time.Duration  // shortest period of windows, of every process; 0: none was set
	closing    bool           // nothing new is begun
	closed     bool           // agents have ended, or were given up: rings are read to their end
	shut       bool           // no gate is opened or closed but by Close
	lost       bool           // Options.Gone is closed, and agents know it
}

// New makes a source; it touches no process before the first Follow. Its error is a
// clierror.Usage.
func New(opts Options) (*Source, error) {
	err := opts.check()
	if err != nil {
		return nil, err
	}
	s := &Source{
		opts: opts, rests: defaultRests(),
		tables:   tables{calls: newCallTable(opts.Index), kernels: newNames(), ranges: newNames()},
		sessions: map[proc.ID]*session{}, continuous: map[uint32]int{}, heartbeatsDone: make(chan struct{}),
		paces: paces{graphs: graphLaunches(opts.Index), waits: waits(opts.Index), all: map[uint32]*pace{}},
	}
	s.life, err = newLiveness()
	if err != nil {
		opts.Log.Warn("agents hear of this daemon's end by its heartbeat alone, up to 1.5 s late", zap.Error(err))
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	ctx, quiet := context.WithCancel(context.Background())
	s.quiet = quiet
	go s.sendHeartbeats(ctx)
	go s.awaitLoss(ctx)
	return s, nil
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow begins a session with p once it has mapped libcuda, and another one when it has
// replaced its program. It returns at once: what goes wrong later is told by State, the
// agents' rows and the losses.
func (s *Source) Follow(p *proc.Process) error {
	image, err := proc.Image(p)
	if !p.Alive() {
		return nil // Forget follows
	}
	if err != nil {
		return fmt.Errorf("read the auxiliary vector of pid %d: %w", p.PID, err)
	}
	s.mu.Lock()
	q := s.sessions[p.ID()]
	if q != nil && q.image == image {
		q.process = p
		s.mu.Unlock()
		return nil
	}
	if q != nil {
		s.retire(q, false)
	}
	s.mu.Unlock()
	libraries, err := proc.Libraries(p, cuda.IsDriverFile)
	if err != nil {
		return fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
	}
	if len(libraries) == 0 {
		return nil
	}
	s.begin(p, image)
	return nil
}

// begin starts a session. It is called from the goroutine of Follow only.
func (s *Source) begin(p *proc.Process, image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.opts.Mode == Off {
		return
	}
	q := newSession(p, image, s.factsOf(p))
	q.windows.limiter.least[limitGovernor] = s.governed
	s.sessions[p.ID()] = q
	s.paces.begin(p.PID, image)
	switch {
	case s.opts.Inject == nil:
	case len(s.sessions) > maxSessions:
		s.step(q, isForbidden,
			fmt.Sprintf("more than %d processes use CUDA: watch fewer with this daemon", maxSessions))
	default:
		s.attach(q)
	}
	s.balance(q)
}

// attach lets an agent be injected. The caller holds the lock.
func (s *Source) attach(q *session) {
	s.step(q, isWanted, "the agent is loaded at the next CUDA call")
	ctx, cancel := context.WithCancel(s.ctx)
	q.entry.cancel, q.entry.running = cancel, true
	s.tasks.Go(func() {
		defer cancel()
		s.enter(ctx, q)
		s.mu.Lock()
		defer s.mu.Unlock()
		q.entry.running = false
	})
}

// factsOf returns what an earlier program of p left, or nothing. The caller holds the lock.
func (s *Source) factsOf(p *proc.Process) *facts {
	for _, list := range [][]*session{s.retired, s.gone} {
		for _, q := range list {
			if q.process.ID() == p.ID() {
				return q.facts
			}
		}
	}
	return newFacts(p.PID)
}

// Feed hands over what the rings hold; held is the time (ns) since which the recorder holds events.
func (s *Source) Feed(held uint64, emit func([]event.Event)) {
	s.feed.Lock()
	defer s.feed.Unlock()
	now := clock.Monotonic()
	s.serveAll(now)
	living, ended := s.readers(now)
	for _, q := range living {
		q.reader.read(now, false, emit)
		q.facts.forgetBefore(held)
	}
	for _, q := range ended {
		q.reader.read(now, true, emit)
		s.release(q)
	}
}

// Fill says how full the fullest ring was when it was last read, from 0 to 1.
func (s *Source) Fill() float64 {
	s.feed.Lock()
	defer s.feed.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	fullest := 0.0
	for _, q := range s.withRings() {
		fullest = max(fullest, q.reader.fill)
	}
	return fullest
}

// since returns how long ago t (ns) was, 0 for a time that is still to come.
func since(now, t uint64) time.Duration { return time.Duration(now - min(now, t)) }
