package gpu

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// arming is what a session's gates are told, for the end of one window at a time. Whatever the target writes into its
// ring, a gate sends signals to the target's own threads, and nothing else.
type arming struct {
	launches, calls unix.Signal // by which threads are held; 0: not chosen yet, or none is free
	armed           bool
	launcher        uint32 // the thread that the gate takes for the one that launches graphs
	blocked         bool   // a launch could not be held: no window opens any more
	taken           bool   // the target handles both signals, in a way that the agent cannot hand on: no window opens
	untaken         bool   // since the signals were chosen the agent did not say that they are taken
	tids            *proc.TIDs
}

// serve does for q's agent what only the daemon can: arms its gates, and says which threads were seen outside of the
// driver. The caller holds the lock.
func (s *Source) serve(q *session, now uint64) {
	if q.ring == nil || q.over {
		return
	}
	s.witness(q, now)
	if err := s.arm(q); err != nil {
		s.opts.Log.Warn("a gate cannot be armed: the window is not ended by a finalize", zap.Uint32("pid", q.process.PID), zap.Error(err))
	}
}

// serveAll serves all agents that there are.
func (s *Source) serveAll(now uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.withRings() {
		s.serve(q, now)
	}
}

// announce tells q's agent by which signals its gates hold threads: before that it opens no window. The caller holds
// the lock.
func (s *Source) announce(q *session) {
	if q.gates[quiesce.Launches].gate == nil {
		return
	}
	refused := q.ring.load32(ringAsked) == askTaken
	if !refused {
		q.arming.untaken = true
	}
	if q.arming.launches != 0 && !refused && !q.arming.taken {
		return
	}
	caught := caughtBy(q.process)
	launches, calls := signalsFor(caught)
	if launches == q.arming.launches && calls == q.arming.calls {
		// What the agent said may still be about signals that were chosen before: it asks again before its next window.
		q.arming.taken = q.arming.taken || q.arming.untaken && caught>>(launches-1)&1 != 0
		return
	}
	q.arming.launches, q.arming.calls, q.arming.taken, q.arming.untaken = launches, calls, false, false
	q.ring.store32(ringGate, uint32(launches)|uint32(calls)<<16)
}

// signalsFor chooses signals whose default is to be ignored: those that the process does not handle. Where it handles
// all, SIGURG for launches, which every program that handles it must be prepared to get for no reason; its handler is
// called, too.
func signalsFor(caught uint64) (launches, calls unix.Signal) {
	var free []unix.Signal
	for _, sig := range []unix.Signal{unix.SIGURG, unix.SIGWINCH} {
		if caught>>(sig-1)&1 == 0 {
			free = append(free, sig)
		}
	}
	switch len(free) {
	case 0:
		return unix.SIGURG, 0
	case 1:
		return free[0], 0
	}
	return free[0], free[1]
}

// caughtBy returns the signals that a process handles, as a mask; 0 where that cannot be read.
func caughtBy(p *proc.Process) uint64 {
	text, err := os.ReadFile(procPath(p, "status"))
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(text, []byte("\nSigCgt:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	mask, _ := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return mask
}

// arm does what q's agent asks for, as far as it may. The caller holds the lock.
func (s *Source) arm(q *session) error {
	g := q.gates[quiesce.Launches].gate
	if g == nil {
		return nil
	}
	if _, err := s.launchersOf(q, g); err != nil { // also to make room for others
		return err
	}
	asked, ask := q.ring.load32(ringAsked), q.ring.load32(ringAsk)
	switch {
	case asked != askIn && asked != askOut:
		return s.disarm(q)
	case ask == q.ring.load32(ringArmed):
		return s.inspect(q, g)
	}
	if c := q.gates[quiesce.Calls].gate; c != nil && q.arming.calls != 0 {
		q.arming.armed = true
		if err := c.Arm(q.arming.calls, 0); err != nil {
			return err
		}
	}
	if asked == askOut {
		q.arming.armed = true
		if ready, err := s.armLaunches(q, g); err != nil || !ready {
			return err
		}
	}
	q.ring.store32(ringArmed, ask)
	q.ring.wake()
	return nil
}

// armLaunches arms the gate for launches, and then looks who has launched a graph before: whoever is not seen there is
// held. It returns false where the agent must not finalize. The caller holds the lock.
func (s *Source) armLaunches(q *session, g *quiesce.Gate) (bool, error) {
	for range 3 {
		if err := g.Arm(q.arming.launches, q.arming.launcher); err != nil {
			return false, err
		}
		l, err := s.launchersOf(q, g)
		switch {
		case err != nil:
			return false, err
		case l.several:
			s.warn(q)
			return false, nil
		}
		launcher := l.first
		if launcher != 0 && !threadLives(q.process.PID, launcher) {
			launcher = 0
		}
		s.warn(q)
		if launcher == q.arming.launcher {
			return launcher == 0 || q.grapher == launcher, nil
		}
		q.arming.launcher = launcher
	}
	return false, nil // they change faster than that: at the next look
}

// launchersOf notes the threads that the gate saw launch graphs, and returns what is known of all of them. The caller
// holds the lock.
func (s *Source) launchersOf(q *session, g *quiesce.Gate) (l launchers, err error) {
	tids, err := g.Launchers()
	if err != nil {
		return l, err
	}
	slices.Sort(tids)
	s.paces.of(q.process.PID, func(p *pace) {
		for _, tid := range tids {
			p.launchers.note(q.process.PID, tid)
			if !threadLives(q.process.PID, tid) {
				g.Forget(tid)
			}
		}
		l = p.launchers
	})
	return l, nil
}

// inspect looks whether a launch could not be held. The caller holds the lock.
func (s *Source) inspect(q *session, g *quiesce.Gate) error {
	state, err := g.State()
	if state.Blocked > 0 || state.Overflow > 0 {
		q.arming.blocked = true
	}
	return err
}

func (s *Source) disarm(q *session) error {
	if !q.arming.armed {
		return nil
	}
	q.arming.armed = false
	for _, post := range q.gates {
		if post.gate == nil {
			continue
		}
		if err := post.gate.Disarm(q.arming.launcher); err != nil {
			return fmt.Errorf("disarm it: %w", err)
		}
	}
	return s.inspect(q, q.gates[quiesce.Launches].gate)
}

// witness says which of the threads that q's agent waits for were seen outside of the driver since: a call of theirs
// returned, or a graph was launched. The caller holds the lock.
func (s *Source) witness(q *session, now uint64) {
	inside := q.ring.load32(ringInsideCount)
	if inside == 0 || q.inside == 0 {
		q.insideFrom = now
	}
	q.inside = inside
	n := int(min(inside, outs))
	if n == 0 {
		return
	}
	if q.arming.tids == nil {
		q.arming.tids = proc.NewTIDs(q.process)
	}
	var launched uint64
	if g := q.gates[quiesce.Launches].gate; g != nil {
		if state, err := g.State(); err == nil {
			launched = state.LaunchedAt
		}
	}
	news := false
	s.paces.of(q.process.PID, func(p *pace) {
		wanted := map[uint32]uint64{}
		for i := range n {
			tid, at := q.ring.load32(ringInside+i*outBytes), q.ring.load64(ringInside+i*outBytes+outAt)
			host := q.arming.tids.Host(tid, now)
			if host == 0 {
				continue
			}
			seen := p.outside[host]
			if host == q.arming.launcher {
				seen = max(seen, launched)
			}
			wanted[host] = seen
			if seen > at {
				slot := ringSeen + i*outBytes
				q.ring.store64(slot+outAt, 0)
				q.ring.store32(slot, tid)
				q.ring.store64(slot+outAt, seen)
				news = true
			}
		}
		p.outside = wanted
	})
	if news {
		q.ring.wake()
	}
}
