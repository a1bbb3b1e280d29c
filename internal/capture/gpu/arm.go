package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// widenPeriod is the least time between two widenings of a gate to the same extent: a target that asks again and again
// costs the daemon no more than that.
const widenPeriod = 100 * time.Millisecond

// agentThreadName is what the agent calls its thread (agent/src/agent.h, NAME).
const agentThreadName = "inferscope"

// arming is what a session's gates are told, for the end of one window at a time. Whatever the target writes into its
// ring, a gate sends signals to the target's own threads, and nothing else.
type arming struct {
	launches, calls unix.Signal // by which threads are held; 0: not chosen yet, or none is free
	armed           bool
	width           width          // whether the gate for calls has its probes
	extent          quiesce.Extent // that it has, or is to have, while it is not narrow
	widenAt         uint64         // ns: not before this again
	launcher        uint32         // the thread that the gate takes for the one that launches graphs
	blocked         bool           // a launch could not be held: no window opens any more
	taken           bool           // the target handles both signals, in a way that the agent cannot hand on: no window opens
	untaken         bool           // since the signals were chosen the agent did not say that they are taken
	agent           uint32         // the agent's thread; 0: not known
	haste           haste
	tids            *proc.TIDs
}

// width says where the gate for calls has probes. A narrow gate is asked to widen, which takes a while; one that is not
// wanted wide any more by then ends narrow:
//
//	narrow --widened--> widening --settled--> wide --narrow--> narrow
//	                    widening --narrow--> withdrawn --settled--> narrow
type width uint8

// The widths of a gate.
const (
	narrow    width = iota // nowhere, or where the kernel is too slow in removing them
	widening               // they are on their way
	withdrawn              // they are, and are not wanted any more
	wide                   // where they were wanted
)

// settled returns the width when the probes of a gate are as they were wanted; all says that all of them are there.
func (w width) settled(all bool) width {
	if w == widening && all {
		return wide
	}
	return narrow
}

// narrowed returns the width when a gate is not wanted wide any more.
func (w width) narrowed() width {
	if w == widening || w == withdrawn {
		return withdrawn
	}
	return narrow
}

// serve does for q's agent what only the daemon can: arms its gates, and says which threads were seen outside of the
// driver. The caller holds the lock.
func (s *Source) serve(q *session, now uint64) {
	if q.ring == nil || q.phase == phaseEnded {
		return
	}
	s.witness(q, now)
	if h := &q.arming.haste; h.tid != 0 && now-min(now, h.began) > uint64(longestHaste) {
		h.end(q.process.PID, now)
	}
	if err := s.arm(q); err != nil {
		s.opts.Log.Warn(
			"a gate cannot be armed: the window is not ended by a finalize",
			zap.Uint32("pid", q.process.PID),
			zap.Error(err),
		)
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
	if q.gates[quiesce.Launches].gate == nil || q.gates[quiesce.Calls].gate == nil {
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
	if !s.lost && q.ring.load32(ringGatesLost) != 0 {
		q.ring.store32(ringGatesLost, 0)
		q.ring.wake()
	}
}

// signalsFor chooses signals whose default is to be ignored: SIGWINCH for calls, which the process must not handle, and
// SIGURG for launches of graphs, which every program that handles it must be prepared to get for no reason; its handler
// is called, too. Where it handles SIGWINCH alone, the two change their places.
func signalsFor(caught uint64) (launches, calls unix.Signal) {
	handles := func(sig unix.Signal) bool { return caught>>(sig-1)&1 != 0 }
	switch {
	case !handles(unix.SIGWINCH):
		return unix.SIGURG, unix.SIGWINCH
	case !handles(unix.SIGURG):
		return unix.SIGWINCH, unix.SIGURG
	}
	return unix.SIGURG, unix.SIGWINCH
}

// caughtBy returns the signals that a process handles, as a mask; 0 where that cannot be read.
func caughtBy(p *proc.Process) uint64 {
	text, err := procfile.ReadStatus(procPath(p, "status"))
	if err != nil {
		return 0
	}
	mask, _ := strconv.ParseUint(text.Field("SigCgt"), 16, 64)
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
	if asked == askOut || asked == askAll {
		q.arming.haste.begin(q.agentThread(), clock.Monotonic())
	}
	switch {
	case asked != askIn && asked != askOut && asked != askAll:
		return s.disarm(q)
	case ask == q.ring.load32(ringArmed):
		return s.inspect(q)
	}
	c := q.gates[quiesce.Calls].gate
	if c == nil {
		return nil
	}
	if q.arming.launches == 0 { // an agent that another daemon has left may ask before it hears of our signals
		s.announce(q)
	}
	several := false
	s.paces.of(q.process.PID, func(p *pace) { several = p.callers.several })
	if asked == askIn && !several { // one thread leaves the driver between its calls
		q.ring.store32(ringArmed, ask)
		q.ring.wake()
		return nil
	}
	extent := quiesce.All
	if asked == askIn {
		extent = quiesce.Waits
	}
	if !s.widened(q, c, extent) {
		return nil
	}
	q.arming.armed = true
	but := quiesce.Who{Launcher: q.arming.launcher, Agent: q.agentThread()}
	switch asked {
	case askOut:
		if ready, err := s.armLaunches(q, g); err != nil || !ready {
			return err
		}
		but.Launcher = q.arming.launcher
	case askAll:
		but.Launcher = 0
		if err := g.Arm(q.arming.launches, but, true); err != nil {
			return err
		}
	}
	if err := c.Arm(q.arming.calls, but, asked != askIn); err != nil {
		return err
	}
	q.ring.store32(ringGated, flag(asked != askIn))
	q.ring.store32(ringArmed, ask)
	q.ring.wake()
	return nil
}

// widened has q's gate for calls probe as much as is wanted, and returns whether it does by now. The caller holds the
// lock.
func (s *Source) widened(q *session, c *quiesce.Gate, wanted quiesce.Extent) bool {
	switch {
	case q.arming.width == wide && q.arming.extent >= wanted:
		return true
	case q.arming.width == widening || q.arming.width == withdrawn:
		return false
	}
	now := clock.Monotonic()
	if now < q.arming.widenAt && wanted <= q.arming.extent {
		return false
	}
	c.Want(wanted)
	q.arming.extent = wanted
	q.arming.width, q.arming.widenAt = widening, now+uint64(widenPeriod)
	s.gates.Go(func() {
		has, err := c.Settle()
		if has < wanted { // what there is of it is of no use
			c.Want(quiesce.Nowhere)
			_, bad := c.Settle()
			err = errors.Join(err, bad)
		}
		if err != nil && q.process.Alive() {
			s.gateFailed(q.process.PID, "calls cannot be held: the window is not ended by a finalize", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		q.arming.width = q.arming.width.settled(has >= wanted)
		if q.ring != nil && q.phase != phaseEnded && q.gates[quiesce.Calls].gate == c {
			s.serve(q, clock.Monotonic())
		}
	})
	return false
}

// narrow takes back what widened did. The caller holds the lock.
func (s *Source) narrow(q *session) {
	c := q.gates[quiesce.Calls].gate
	if c == nil || q.arming.width == narrow {
		return
	}
	q.arming.width = q.arming.width.narrowed()
	c.Want(quiesce.Nowhere)
	s.gates.Go(func() {
		if _, err := c.Settle(); err != nil {
			s.gateFailed(q.process.PID, "a gate was not taken away as it should be", err)
		}
	})
}

// armLaunches arms the gate for launches, and then looks who has launched a graph before: whoever is not seen there is
// held. It returns false where the agent must not finalize. The caller holds the lock.
func (s *Source) armLaunches(q *session, g *quiesce.Gate) (bool, error) {
	for range 3 {
		if err := g.Arm(q.arming.launches, quiesce.Who{Launcher: q.arming.launcher}, true); err != nil {
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
			return launcher == 0 || q.orders.grapher == launcher, nil
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

// inspect looks whether a thread could not be held. The caller holds the lock.
func (s *Source) inspect(q *session) error {
	var errs []error
	for _, post := range q.gates {
		if post.gate == nil {
			continue
		}
		state, err := post.gate.State()
		if state.Blocked > 0 || state.Overflow > 0 {
			q.arming.blocked = true
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Source) disarm(q *session) error {
	s.narrow(q)
	q.arming.haste.end(q.process.PID, clock.Monotonic())
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
	return s.inspect(q)
}

// witness says which of the threads that q's agent waits for were seen outside of the driver since: a call of theirs
// returned, or a graph was launched. The caller holds the lock.
func (s *Source) witness(q *session, now uint64) {
	inside := q.ring.load32(ringInsideCount)
	q.inside.note(inside, now)
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

// agentThread returns the agent's thread, which is known by its name; 0: there is none. A thread of the target's that
// has that name is not held, and harms nobody but its own process. The caller holds the lock.
func (q *session) agentThread() uint32 {
	if q.arming.agent != 0 && threadLives(q.process.PID, q.arming.agent) {
		return q.arming.agent
	}
	q.arming.agent = 0
	tasks, err := os.ReadDir(procPath(q.process, "task"))
	if err != nil {
		return 0
	}
	for _, task := range tasks {
		name, err := procfile.Comm(procPath(q.process, "task/"+task.Name()+"/comm"))
		tid, bad := strconv.ParseUint(task.Name(), 10, 32)
		if err == nil && bad == nil && name == agentThreadName {
			q.arming.agent = uint32(tid)
			break
		}
	}
	return q.arming.agent
}

// flag is 1 where is.
func flag(is bool) uint32 {
	if is {
		return 1
	}
	return 0
}
