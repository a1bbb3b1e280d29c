package gpu

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// shutdownTimeout is how long the agent of a process that was released, and lives on, may take beside its deadline and
// slack. One whose turn to leave CUPTI has not come by then leaves by itself (docs/gpu-agent.md, Detach).
const shutdownTimeout = 10 * time.Second

// Forget ends the session with p, which is gone, or released: what its ring holds is still read, and where p lives on
// the agent is awaited, too.
func (s *Source) Forget(p *proc.Process) {
	image, err := proc.Image(p)
	if err != nil { // it is gone
		s.paces.end(p.PID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.retired {
		if q.process.ID() == p.ID() && q.image != image {
			s.step(q, isDead, "")
		}
	}
	if q := s.sessions[p.ID()]; q != nil {
		s.retire(q, err == nil && q.image == image)
	}
}

// retire ends a session. lives says that its program runs on: then its agent leaves, which is awaited. The caller holds
// the lock.
func (s *Source) retire(q *session, lives bool) {
	q.entry.cancel()
	if lives {
		s.step(q, isRetired, "")
	} else {
		s.step(q, isDead, "")
	}
	delete(s.sessions, q.process.ID())
	if len(s.gone) >= maxGone {
		s.gone = slices.Delete(s.gone, 0, 1) // and not s.gone[1:], which keeps as many again
	}
	s.gone = append(s.gone, q)
	if q.ring != nil {
		s.startShutdown(q)
	}
}

// startShutdown lets a session that is over be read to its end; where its program runs on that is when its agent, which
// is told to leave, has. The caller holds the lock.
func (s *Source) startShutdown(q *session) {
	s.retired = append(s.retired, q)
	if q.phase == phaseEnded {
		return
	}
	s.step(q, isLeaving, "the process was released; its agent is leaving")
	now := clock.Monotonic()
	q.shutdown.by = now + uint64(s.opts.Deadline+slack+shutdownTimeout)
	s.quit(q)
	s.keepAlive(q, now)
}

// quit tells q's agent to leave, and the first time notes how threads were held in windows before that. The caller
// holds the lock.
func (s *Source) quit(q *session) {
	if q.ring.load32(ringMode) != modeQuit {
		q.shutdown.held = q.heldSoFar()
	}
	q.ring.command(modeQuit, s.opts.times())
}

// keepAlive is there for an agent that leaves, as for others: one whose daemon is gone leaves in a hurry, and where
// graphs run it must hear who launches them. The caller holds the lock.
func (s *Source) keepAlive(q *session, now uint64) {
	q.ring.store64(ringHeartbeat, now)
	s.quiesceThreads(q)
	s.announce(q)
	s.warn(q)
	s.serve(q, now)
}

// stays reports whether q's agent is in its process still. The caller holds the lock.
func (q *session) stays() bool {
	return q.phase != phaseEnded && q.ring.load32(ringState) != stateGone && q.process.Alive()
}

// shuttingDown reports whether q's agent is on its way out, and awaited. The caller holds the lock.
func (q *session) shuttingDown(now uint64) bool { return now < q.shutdown.by && q.stays() }

// withRings returns the sessions that have a ring. The caller holds the lock.
func (s *Source) withRings() []*session {
	out := slices.Clone(s.retired)
	for _, q := range s.sessions {
		if q.ring != nil {
			out = append(out, q)
		}
	}
	return out
}

// readers returns the sessions whose rings are to be read, and those of them to be read for the last time.
func (s *Source) readers(now uint64) (living, ended []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.retired {
		if q.shuttingDown(now) && !s.closed {
			living = append(living, q)
		} else {
			ended = append(ended, q)
		}
	}
	for _, q := range s.sessions {
		switch {
		case q.ring == nil:
		case s.closed:
			ended = append(ended, q)
		default:
			living = append(living, q)
		}
	}
	return living, ended
}

// release unmaps the ring of a session whose reader is done with it. The lock keeps the
// heart from it.
func (s *Source) release(q *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life.release(q.ring)
	left := q.ring.load32(ringState)
	said := append(
		q.facts.lastWords(),
		zap.Uint32("pid", q.process.PID),
		zap.Bool("gone", left == stateGone),
		zap.Bool("leaving", left == stateLeaving),
	)
	if h := q.heldSoFar(); h != nil {
		said = append(
			said,
			zap.Uint32s("held_1_2_5_10_more_ms", h.Threads[:]),
			zap.Duration("held_longest", time.Duration(h.Longest)),
		)
	}
	if h := q.shutdown.held; h != nil {
		said = append(
			said,
			zap.Uint32s("held_in_windows", h.Threads[:]),
			zap.Duration("held_in_windows_longest", time.Duration(h.Longest)),
		)
	}
	if h := q.facts.held(); h != nil {
		said = append(
			said,
			zap.Uint32s("drain", h.Drain.Counts[:]), zap.Duration("drain_longest", time.Duration(h.Drain.Longest)),
			zap.Uint32s("cpu_wait", h.CPUWait.Counts[:]),
			zap.Duration("cpu_wait_longest", time.Duration(h.CPUWait.Longest)),
			zap.Uint32s("work", h.Work.Counts[:]), zap.Duration("work_longest", time.Duration(h.Work.Longest)),
		)
	}
	s.opts.Log.Info("an agent is done with", said...)
	s.agentLeft(q)
	s.dropGates(q)
	q.unmapping.ring, q.ring, q.reader = q.ring, nil, nil
	if q.unmapping.due() {
		s.unmap(q)
	}
	s.retired = slices.DeleteFunc(s.retired, func(o *session) bool { return o == q })
}

// unmap unmaps the ring that q has released. The caller holds the lock.
func (s *Source) unmap(q *session) {
	if err := q.unmapping.ring.close(); err != nil {
		s.opts.Log.Sugar().Warnf("a ring of pid %d was not unmapped: %v", q.process.PID, err)
	}
	q.unmapping.ring = nil
}

// agentLeft notes whether the agent of q, which was told to leave, has left. The caller holds the lock.
func (s *Source) agentLeft(q *session) {
	switch {
	case q.phase != phaseLeaving || s.closing:
	case q.stays():
		s.step(
			q,
			hasLeft,
			"the process was released; its agent had not left when it was last looked at, and leaves by itself",
		)
		s.takeLeave([]*session{q})
	default:
		s.step(q, hasLeft, "")
	}
}

// awaitShutdown returns when no agent of ours is on its way into, or out of, q's process any more for a session before
// this one: there can be one with an agent only.
func (s *Source) awaitShutdown(ctx context.Context, q *session) {
	for s.shuttingDownOf([]uint32{q.process.PID}) && ctx.Err() == nil {
		s.notify(
			ctx,
			q,
			isWanted,
			"the agent that was told to leave is on its way out; another one is loaded after it",
		)
		sleep(ctx, 10*time.Millisecond)
	}
}

// Departed returns when every agent that was told to leave one of these processes has, and what it wrote last was read;
// false: one has not when ctx is done. It implements daemon.Activity.
func (s *Source) Departed(ctx context.Context, pids []uint32) bool {
	for s.shuttingDownOf(pids) {
		if ctx.Err() != nil {
			return false
		}
		sleep(ctx, 5*time.Millisecond)
	}
	return true
}

func (s *Source) shuttingDownOf(pids []uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.gone, func(q *session) bool {
		return slices.Contains(pids, q.process.PID) && (q.entry.running || q.shutdown.by != 0 && q.ring != nil)
	})
}

// drainAgents waits until the agents are gone, those that were told to go before, too.
func (s *Source) drainAgents() {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Deadline+slack)
	defer cancel()
	for len(s.remaining()) > 0 && ctx.Err() == nil {
		s.serveAll(clock.Monotonic())
		sleep(ctx, 5*time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeLeave(s.withRings())
}

// takeLeave says which of these agents have not ended although they were given the time to, and why. The caller holds
// the lock.
func (s *Source) takeLeave(sessions []*session) {
	var turn, late []uint32
	for _, q := range sessions {
		switch {
		case !q.stays():
		case q.ring.load32(ringState) == stateLeaving:
			turn = append(turn, q.process.PID)
		default:
			late = append(late, q.process.PID)
		}
	}
	if len(turn) > 0 {
		s.opts.Log.Info(
			"agents wait for their turn to leave CUPTI, in their own threads: the processes are not slowed, nothing "+
				"is recorded, and they end by themselves",
			zap.Uint32s("pids", turn),
		)
	}
	if len(late) > 0 {
		s.opts.Log.Warn(
			"agents did not end in time: they will by themselves, and record nothing any more",
			zap.Uint32s("pids", late),
		)
	}
}

// remaining returns the processes whose agents have not ended.
func (s *Source) remaining() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []uint32
	for _, q := range s.withRings() {
		if q.stays() {
			left = append(left, q.process.PID)
		}
	}
	return left
}
