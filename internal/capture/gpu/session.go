package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording"
)

// state is what recording.Agent.State says.
type state string

// The states of a session.
const (
	absent  state = ""        // no agent is wanted
	waiting state = "waiting" // for a CUDA call to come in at
	running state = "running" // the agent is there and answers
	dormant state = "dormant" // its code is mapped, its thread has ended
	refused state = "refused" // it cannot come in, or cannot use CUPTI
	gone    state = "gone"    // with its process, or its program
)

// session is the agent of one program of one process. Its fields are guarded by
// Source.mu, but for the reader's, which belong to Source.feed.
type session struct {
	process *proc.Process
	image   string // tells programs of one process apart
	facts   *facts

	phase  phase // changed by Source.step alone
	detail string

	entry     entry
	ring      *ring   // nil: no agent is there
	reader    *reader // nil where ring is
	unmapping unmapping
	agent     agentView
	logged    logged
	orders    orders
	launches  cudaapi.LaunchMode // as the probes were last told; "": not yet
	flushes   flushes
	windows   windows
	gates     [quiesce.Kinds]post
	arming    arming
	inside    insiders
	shutdown  shutdown
}

// entry is how agents come into the process of a session.
type entry struct {
	cancel   context.CancelFunc // ends the goroutine that injects them
	running  bool               // that goroutine runs, also when its session is over: an agent may come still
	joined   uint64             // ns: when the first one came; 0: none has
	came     uint64             // ns: when this one came
	stopped  time.Duration      // for which it stopped a thread
	restarts int                // agents that ended by themselves, each soon after it came
	rest     time.Duration      // before an agent is injected again; 0: at once
}

// come notes that an agent is there.
func (e *entry) come(now uint64, stopped time.Duration) {
	e.came, e.stopped = now, stopped
	if e.joined == 0 {
		e.joined = now
	}
}

// again returns the entry of the agent after one that has ended by itself; rest is the first pause between two.
func (e *entry) again(now uint64, rest time.Duration) entry {
	next := entry{cancel: func() {}, joined: e.joined, restarts: e.restarts + 1}
	if since(now, e.came) > settled {
		next.restarts = 1
	}
	if over := next.restarts - attempts; over > 0 {
		next.rest = min(rest<<min(over-1, 10), longestRest)
	}
	return next
}

// unmapping is the ring that a session has released, and that goroutines read which take gates down.
type unmapping struct {
	ring    *ring // nil: not released yet, or unmapped
	readers int
}

// due reports whether the ring is to be unmapped.
func (u *unmapping) due() bool { return u.ring != nil && u.readers == 0 }

// agentView is what an agent last said of itself: the target's word.
type agentView struct {
	state, graphs, version uint32
	err                    int32
	path                   string
	opening                uint64 // ns: since when it waits in cuptiSubscribe; 0: it does not
	leaving                uint64 // ns: since when it waits in cuptiFinalize; 0: it does not
	outside                bool   // CUPTI has not let it in, or out, for long: it sees no launches
}

// logged is what the log has said of an agent.
type logged struct {
	refusal int32 // its error; 0: none
	kept    bool  // CUPTI stays in its process, because the gates were lost
}

// orders are what an agent was last told.
type orders struct {
	mode    uint32 // enum agent_mode
	begun   bool   // that was another than off: it may record
	grapher uint32 // the thread that launches graphs; 0: none
}

// flushes are what an agent was asked to hand over.
type flushes struct {
	asked question // the last time; without a session: it was not
	done  uint64   // ns: everything that ended before was handed over
}

// windows are what is known of the windows of a process, whichever agent made them.
type windows struct {
	meter   meter
	cost    cost    // that the meter says
	leak    leak    // that they leave in the process
	limiter limiter // how far apart they are, as last told
}

// again returns what holds for the next agent.
func (w windows) again() windows {
	w.cost = cost{}
	w.leak.forget()
	w.limiter.rest(false)
	return w
}

// insiders are threads that may be in a callback of CUPTI's still, as an agent says: it subscribes no more before they
// have left.
type insiders struct {
	count uint32
	since uint64 // ns: since when there are any
}

func (i *insiders) note(count uint32, now uint64) {
	if count == 0 || i.count == 0 {
		i.since = now
	}
	i.count = count
}

// waited is for how long the agent has waited for them; 0: it does not.
func (i *insiders) waited(now uint64) time.Duration {
	if i.count == 0 {
		return 0
	}
	return since(now, i.since)
}

// shutdown is how the agent of a process that was released, and lives on, leaves.
type shutdown struct {
	by   uint64          // ns: until when it is awaited; 0: it was not told to leave
	held *recording.Held // threads, before it was told; nil: none, or it was not
}

func newSession(p *proc.Process, image string, f *facts) *session {
	return &session{process: p, image: image, facts: f, entry: entry{cancel: func() {}}}
}

// How often an agent is injected, and how long each time is waited for a thread to come by.
const (
	attempts  = 3
	patience  = 30 * time.Second
	firstWait = time.Second // after a failure; five times as long after the next
)

// enter brings an agent into q's process, or finds one there, and hands it over to the
// reader and the heart. It returns when that is done, or cannot be.
func (s *Source) enter(ctx context.Context, q *session) {
	wait, refusal := firstWait, s.rests.refusal
	s.awaitShutdown(ctx, q)
	sleep(ctx, q.entry.rest)
	for failures := 0; ctx.Err() == nil; {
		if why := s.whyUnobservable(q.process); why != "" {
			s.notify(ctx, q, isForbidden, why)
			return
		}
		r, entered, err := s.injectAgent(ctx, q.process)
		switch {
		case err == nil:
			s.adopt(q, r, entered)
			return
		case ctx.Err() != nil:
			return
		case errors.Is(err, errIdle):
			s.notify(ctx, q, isWanted, "the agent is loaded at the next CUDA call: none has been made so far")
			sleep(ctx, 100*time.Millisecond)
			continue
		case mayEnd(err):
			s.notify(ctx, q, isForbidden, fmt.Sprintf("%v; looked at again in %s", err, refusal))
			if refusal == s.rests.refusal {
				s.opts.Log.Warn(
					"no agent records the GPU activity of a process for now; the rest goes on",
					zap.Uint32("pid", q.process.PID),
					zap.Error(err),
				)
			}
			sleep(ctx, refusal)
			refusal = min(2*refusal, lastRefusal)
			continue
		}
		failures++
		if errors.Is(err, errRefused) || failures == attempts {
			s.notify(ctx, q, isForbidden, err.Error())
			s.opts.Log.Warn(
				"no agent records the GPU activity of a process; the rest goes on",
				zap.Uint32("pid", q.process.PID),
				zap.Error(err),
			)
			return
		}
		s.notify(ctx, q, isWanted, fmt.Sprintf("tried again in %s: %v", wait, err))
		sleep(ctx, wait)
		wait *= 5
	}
}

// rests are how long it is waited before an agent is injected again. Tests have shorter ones.
type rests struct {
	refusal time.Duration // after the first refusal that may end, doubled each time
	end     time.Duration // after the first end of an agent by itself that was one too many, likewise
}

func defaultRests() rests { return rests{refusal: 5 * time.Second, end: 10 * time.Second} }

const lastRefusal = time.Minute

// errTaken is what is said where another daemon uses the agent of a process.
var errTaken = errors.New("another daemon uses the agent")

// mayEnd reports whether a refusal is about somebody who may leave the process alone again: a tracer, another daemon.
func mayEnd(err error) bool { return errors.Is(err, inject.ErrTraced) || errors.Is(err, errTaken) }

// notify changes the phase of a session, unless it is over.
func (s *Source) notify(ctx context.Context, q *session, h happening, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.step(q, h, detail)
		s.balance(q)
	}
}

// injectAgent returns the ring of an agent in p.
func (s *Source) injectAgent(ctx context.Context, p *proc.Process) (*ring, Entered, error) {
	known := ringFiles(p) // before it is looked whether one of them can be used
	r, err := s.takeOver(ctx, p)
	if errors.Is(err, errNoRing) && comesByItself(p) {
		r, err = s.awaitStart(ctx, p)
	}
	if err == nil || !errors.Is(err, errNoRing) {
		return r, Entered{}, err
	}
	if s.awaitAge(ctx, p); ctx.Err() != nil {
		return nil, Entered{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	entered, err := s.opts.Inject.Inject(ctx, p, s.start(p, known))
	if err != nil {
		return nil, entered, err
	}
	m, err := procfile.Descriptor(p.PID, entered.RingFD)
	if err != nil {
		return nil, entered, err
	}
	r, err = openRing(p, m, uint64(s.opts.Slots))
	return r, entered, err
}

func (s *Source) start(p *proc.Process, known []uint64) start {
	s.mu.Lock()
	defer s.mu.Unlock()
	return start{
		Slots: s.opts.Slots, Continuous: s.wanted(p) == modeContinuous, Off: s.opts.Watch > 0 || s.opts.Gate != nil,
		Times: [3]time.Duration{s.opts.firstOn(), s.opts.Period, s.opts.Deadline}, CUPTI: s.opts.CUPTI, Known: known,
	}
}

// takeOver returns the ring of an agent that is in p already: one that was loaded at start,
// or that the last daemon left a moment ago. One that another daemon uses is refused, one
// of another version asked to end. It returns errNoRing where there is none. The gates of the last daemon went with it:
// its word that they hold threads must be gone before the first heartbeat, or the agent takes CUPTI out beside threads
// that nothing holds.
func (s *Source) takeOver(ctx context.Context, p *proc.Process) (*ring, error) {
	r, err := existing(p)
	if err != nil {
		return nil, err
	}
	if s.heard(ctx, r) {
		return nil, errors.Join(
			fmt.Errorf("%w: %w in pid %d; stop that one first", errRefused, errTaken, p.PID),
			r.close(),
		)
	}
	if s.opts.Build == [20]byte{} || r.build() == s.opts.Build {
		r.ungated()
		r.store32(ringGatesLost, 0) // adopt decides anew
		return r, nil
	}
	r.command(modeQuit, s.opts.times())
	for range 100 {
		if r.load32(ringState) == stateGone {
			return nil, errors.Join(errNoRing, r.close())
		}
		sleep(ctx, 50*time.Millisecond)
	}
	return nil, errors.Join(
		fmt.Errorf(
			"an agent of another version in pid %d does not end: restart the program, or watch it with the daemon of "+
				"that version",
			p.PID,
		),
		r.close(),
	)
}

// heard reports whether another daemon beats for the agent of r: they beat four times a second,
// and an agent whose daemon is gone must hear of us within 1.5 s.
func (s *Source) heard(ctx context.Context, r *ring) bool {
	last := r.load64(ringHeartbeat)
	if since(clock.Monotonic(), last) > heartbeatTimeout {
		return false
	}
	for range 6 {
		sleep(ctx, 100*time.Millisecond)
		if r.load64(ringHeartbeat) != last {
			return true
		}
	}
	return false
}

// heartbeatTimeout is after how long without a heartbeat an agent takes its daemon for gone.
const heartbeatTimeout = 1500 * time.Millisecond

// adopt hands a ring over to the reader and the heart; an agent that has come when the session was over is told to
// leave again.
func (s *Source) adopt(q *session, r *ring, entered Entered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock.Monotonic()
	q.ring, q.flushes = r, flushes{done: now}
	q.entry.come(now, entered.Stopped)
	q.reader = newReader(r, decoder{
		tables: &s.tables, facts: q.facts, tids: proc.NewTIDs(q.process), pid: q.process.PID, payer: q.process.Payer,
		from: q.process.Born,
	})
	r.store64(ringHeartbeat, now)
	// CUDA has loaded it at the start, or another daemon left it. Where launches are to be held, no window opens before
	// that.
	q.orders.begun = s.opts.Gate == nil && (q.orders.begun || s.opts.Watch == 0 || r.load32(ringMode) != modeOff)
	if !q.orders.begun {
		r.store32(
			ringMode,
			modeOff,
		) // an agent that CUDA has loaded begins with windows, and from the next line on it hears of us
	}
	s.withoutGatesYet(r)
	s.life.hold(r)
	if s.lost {
		s.loseGates(q)
	}
	switch {
	case s.sessions[q.process.ID()] != q: // it was retired meanwhile
		s.startShutdown(q)
		return
	case s.closing:
		s.quit(q)
		return
	}
	q.orders.mode = modeQuit // differs from what is wanted, so that it is told
	s.step(q, hasCome, "")
	s.look(q, now)
	s.opts.Log.Info(
		"an agent is in the process",
		zap.Uint32("pid", q.process.PID),
		zap.String("records", s.recordsOf(q)),
		zap.Duration("stopped", entered.Stopped),
		zap.Duration("held", entered.Held),
	)
	if entered.Stopped > stopGoal {
		s.opts.Log.Warn(
			"a thread was stopped for longer than it should be",
			zap.Uint32("pid", q.process.PID),
			zap.Duration("goal", stopGoal),
			zap.String("steps", inject.Between(entered.Steps)),
		)
	} else {
		s.opts.Log.Debug(
			"a thread was stopped", zap.Uint32("pid", q.process.PID),
			zap.String("steps", inject.Between(entered.Steps)),
		)
	}
}

// recordsOf says what q's agent has been told to record, for the log. The caller holds the lock.
func (s *Source) recordsOf(q *session) string {
	switch {
	case q.phase == phaseHindered:
		return "nothing: " + q.detail
	case !q.orders.begun:
		return "nothing yet: " + q.detail
	case q.orders.mode == modeContinuous:
		return "all the time"
	}
	t := s.times(q)
	return fmt.Sprintf("windows of %s every %s", time.Duration(t.on), time.Duration(t.period))
}

// stopGoal is how long a thread of a target may be stopped.
const stopGoal = 2 * time.Millisecond

// sleep returns after d, or when ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
