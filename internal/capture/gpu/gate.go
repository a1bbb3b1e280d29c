package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// post is the place of one gate of a session.
type post struct {
	asked bool          // for a gate
	done  bool          // it is there, or cannot be had
	err   error         // why it cannot be had
	gate  *quiesce.Gate // nil: there is none
}

// quiesceThreads has gates put before the driver in q's process, before its first window. They stay as long as the
// agent's ring. The caller holds the lock.
func (s *Source) quiesceThreads(q *session) {
	s.putUp(q, quiesce.Launches)
	s.putUp(q, quiesce.Calls)
}

func (s *Source) putUp(q *session, kind quiesce.Kind) {
	if s.opts.Gate == nil || q.gates[kind].asked || s.shut || s.lost {
		return
	}
	q.gates[kind].asked = true
	r := q.ring
	s.gates.Go(func() { s.openGate(q, kind, r) })
}

func (s *Source) openGate(q *session, kind quiesce.Kind, r *ring) {
	g, err := s.opts.Gate(q.process, kind)
	s.mu.Lock()
	q.gates[kind].done, q.gates[kind].err = true, err
	kept := err == nil && q.ring == r && !s.shut && !s.lost
	if kept {
		q.gates[kind].gate = g
	}
	s.mu.Unlock()
	switch {
	case err != nil && !q.process.Alive():
	case err != nil:
		s.gateFailed(q.process.PID, withoutGate(kind), err)
	case !kept:
		s.closeGate(q.process.PID, kind, g)
	}
}

// withoutGate says what it means that there is none.
func withoutGate(kind quiesce.Kind) string {
	if kind == quiesce.Launches {
		return "launches of CUDA graphs cannot be held while CUPTI is taken out of a process, which one that comes " +
			"just then would kill: no window opens there"
	}
	return "calls of a process cannot be held while CUPTI is taken out of it, which a thread that is inside then " +
		"would not survive: no window opens there"
}

// ungated says why no window may open in q's process; "" where launches of graphs are held, or will be. The caller
// holds the lock.
func ungated(q *session) string {
	err := cmp.Or(q.gates[quiesce.Launches].err, q.gates[quiesce.Calls].err)
	switch {
	case err != nil:
		return fmt.Sprintf(
			"no window opens where threads cannot be held while CUPTI is taken out of the process: %v; restart the "+
				"daemon, and report it with the kernel's version if that does not help",
			err,
		)
	case q.arming.blocked:
		return "no window opens: a thread of this process that calls CUDA blocks the signal by which it is held " +
			"while CUPTI is taken out (SIGURG or SIGWINCH); let the program's threads not block both"
	case q.arming.taken:
		return "no window opens: this program handles SIGURG or SIGWINCH itself, without SA_SIGINFO, so that its " +
			"threads cannot be held while CUPTI is taken out; let it handle them with SA_SIGINFO, or not at all"
	}
	return ""
}

// guarded reports whether the gates are up in q's process, or cannot be. The caller holds the lock.
func (s *Source) guarded(q *session) bool {
	return s.opts.Gate == nil || q.gates[quiesce.Launches].done && q.gates[quiesce.Calls].done
}

// dropGates takes q's gates away, those that it has: first it tells the agent that they do not hold any more, and then
// it waits for the flush or the finalize that relies on them (gate_shut in agent/src/gate.c does the same in the other
// order, so one of the two sees the other). The caller holds the lock.
func (s *Source) dropGates(q *session) {
	going := map[quiesce.Kind]*quiesce.Gate{}
	for kind := range q.gates {
		if g := q.gates[kind].gate; g != nil {
			going[quiesce.Kind(kind)] = g
		}
		q.gates[kind].gate = nil
	}
	if len(going) == 0 {
		return
	}
	r := q.ring
	r.ungated()
	q.unmapping.readers++
	s.gates.Go(func() {
		awaitUse(q.process, r)
		for kind, g := range going {
			s.closeGate(q.process.PID, kind, g)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		q.arming.haste.end(q.process.PID, clock.Monotonic())
		if q.unmapping.readers--; q.unmapping.due() {
			s.unmap(q)
		}
	})
}

// ungated tells the agent that no gate holds threads.
func (r *ring) ungated() {
	r.store32(ringArmed, 0) // no ask has this number
	r.store32(ringGated, 0)
}

// withoutGatesYet tells the agent of a new ring that nothing holds threads until announce: it may have kept a
// subscription, which it must not end before.
func (s *Source) withoutGatesYet(r *ring) {
	if s.opts.Gate != nil && r.load32(ringGate) == 0 {
		r.store32(ringGatesLost, 1)
	}
}

// awaitLoss tells all agents when their gates begin to go for good.
func (s *Source) awaitLoss(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.opts.Gone:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	for _, q := range s.withRings() {
		s.loseGates(q)
	}
}

// loseGates tells q's agent that nothing holds threads any more: it leaves CUPTI where it is. The caller holds the
// lock.
func (s *Source) loseGates(q *session) {
	q.ring.ungated()
	q.ring.store32(ringGatesLost, 1)
	q.ring.wake()
	s.dropGates(q)
}

// withoutGates says why no window opens in q's process once gates are lost, and what the open one has left there; ""
// before that. The caller holds the lock.
func (s *Source) withoutGates(q *session) string {
	const stays = "the last window was ended as kept: CUPTI stays in the process, idle, until the process exits or a " +
		"window of a restarted daemon of the same version takes it out"
	if !s.lost {
		return ""
	}
	why := "no window opens: the process that holds the probes has gone, and nothing would hold threads while CUPTI " +
		"is taken out; restart the daemon"
	if q.agent.state != stateKept {
		return why
	}
	if !q.logged.kept {
		q.logged.kept = true
		s.opts.Log.Warn(stays, zap.Uint32("pid", q.process.PID))
	}
	return why + "; " + stays
}

// gateFailed logs what could not be done with a gate, but not that all have gone: that is said once.
func (s *Source) gateFailed(pid uint32, what string, err error) {
	if errors.Is(err, uprobe.ErrLinkHolderGone) {
		select {
		case <-s.opts.Gone:
			return
		case <-time.After(time.Second): // its sockets may close a moment before that
		}
	}
	s.opts.Log.Warn(what, zap.Uint32("pid", pid), zap.Error(err))
}

// longestUse is for how long an agent holds threads at a gate (HANGS in agent/src/gate.c).
const longestUse = 10 * time.Second

// awaitUse returns when the agent of r does nothing for which threads must be held.
func awaitUse(p *proc.Process, r *ring) {
	for began := clock.Monotonic(); r.load64(ringFinalizing) != 0 && r.load32(ringState) != stateGone && p.Alive() &&
		since(clock.Monotonic(), began) < longestUse; {
		time.Sleep(time.Millisecond)
	}
}

// shutGates takes all gates away, and lets no other be put up.
func (s *Source) shutGates() {
	s.mu.Lock()
	for _, q := range s.sessions {
		s.dropGates(q)
	}
	for _, q := range s.retired {
		s.dropGates(q)
	}
	s.shut = true
	s.mu.Unlock()
	s.gates.Wait()
}

func (s *Source) closeGate(pid uint32, kind quiesce.Kind, g *quiesce.Gate) {
	c, err := g.State()
	if err = errors.Join(err, g.Close()); err != nil {
		s.gateFailed(pid, "a gate was not taken away as it should be", err)
	}
	if c.Signals > 0 {
		s.opts.Log.Info(
			whyHeld(kind),
			zap.Uint32("pid", pid),
			zap.Uint64("signals", c.Signals),
			zap.Uint64("blocked", c.Blocked),
		)
	}
}

func whyHeld(kind quiesce.Kind) string {
	if kind == quiesce.Launches {
		return "launches of CUDA graphs were held while CUPTI was taken out of a process"
	}
	return "threads were kept out of the driver for moments, so that CUPTI let the agent in and out"
}
