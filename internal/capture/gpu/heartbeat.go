package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/logfield"
)

// heartbeatPeriod is how often agents are told that the daemon lives: six times within alone.
const heartbeatPeriod = 250 * time.Millisecond

// sendHeartbeats tells every agent that the daemon lives, and looks how it is, until ctx is done. It
// waits for nothing but Source.mu, which nobody holds for long: a slow drain does not
// make agents believe that the daemon is gone.
func (s *Source) sendHeartbeats(ctx context.Context) {
	defer close(s.heartbeatsDone)
	ticker := time.NewTicker(heartbeatPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sendHeartbeat(clock.Monotonic())
		}
	}
}

func (s *Source) sendHeartbeat(now uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.sessions {
		if q.ring != nil {
			q.ring.store64(ringHeartbeat, now)
			s.look(q, now)
		}
	}
	for _, q := range s.retired {
		if q.shuttingDown(now) {
			s.keepAlive(q, now)
		}
	}
}

// wanted returns the mode that a process's agent should have. The caller holds the lock.
func (s *Source) wanted(p *proc.Process) uint32 {
	switch {
	case s.opts.Mode == Off || s.opts.Unobservable(p) != nil:
		return modeOff
	case s.opts.Mode == Continuous || s.continuous[p.Root] > 0:
		return modeContinuous
	}
	return modeWindows
}

// look notes how an agent is, and tells it what is wanted. The caller holds the lock.
func (s *Source) look(q *session, now uint64) {
	r := q.ring
	v := agentView{
		state:   r.load32(ringState),
		graphs:  r.load32(ringGraphs),
		version: r.load32(ringCUPTI),
		err:     int32(r.load32(ringError)),
		opening: r.load64(ringOpening),
		leaving: r.load64(ringLeaving),
	}
	if v.path = q.agent.path; v.path == "" {
		v.path = r.path()
	}
	v.outside = v.waited(now) > long
	q.agent = v
	s.quiesceThreads(q)
	s.announce(q)
	s.warn(q) // also while agents leave: that is when it counts
	if s.closing || q.phase == phaseHarmful {
		return
	}
	if v.state == stateGone {
		s.ended(q)
		return
	}
	refusal := s.refusal(q)
	why := cmp.Or(s.withoutGates(q), cmp.Or(s.whyUnobservable(q.process), cmp.Or(ungated(q), s.stranded(q, now))))
	switch {
	case why != "":
		s.step(q, isHindered, why)
	case refusal != "":
		s.step(q, isHindered, refusal)
	case !q.orders.begun:
		s.step(
			q,
			isWatched,
			"the first window opens when it is known which threads launch CUDA graphs, within a second",
		)
	default:
		s.step(q, isFree, cmp.Or(q.hindrance(now), cmp.Or(q.leaving(), s.spending(q))))
	}
	s.instruct(q, now, why == "")
	s.weigh(q)
	s.guard(q, now)
	s.balance(q)
}

// refusal says why CUPTI refuses q's agent, as that said last; "" where it does not. The caller holds the lock.
func (s *Source) refusal(q *session) string {
	if q.agent.state != stateRefused {
		q.logged.refusal = 0
		return ""
	}
	why := explain(q.agent.err, q.ring.holder())
	if q.agent.err != q.logged.refusal {
		q.logged.refusal = q.agent.err
		s.opts.Log.Warn(
			"the agent of a process cannot record what its GPU does; the rest goes on",
			zap.Uint32("pid", q.process.PID),
			zap.String("because", why),
		)
	}
	return why
}

// instruct tells an agent what is wanted, where that is something new; nothing where no window may open. The caller
// holds the lock.
func (s *Source) instruct(q *session, now uint64, may bool) {
	mode := s.wanted(q.process)
	if q.orders.begun = s.watched(q, now); !q.orders.begun || !may {
		mode = modeOff
	}
	if mode != q.orders.mode {
		q.orders.mode = mode
		q.ring.command(mode, s.times(q))
	}
}

// An agent that ends again and again by itself is injected less and less often: it does not hear of a daemon that has
// no CPU for a while, and that ends.
const (
	settled     = time.Minute      // an agent that was there for so long has come well
	longestRest = 10 * time.Minute // between two that did not
)

// ended handles an agent that ended although nobody asked it to: it did not hear of us for a
// while, or another daemon told it to. It is injected again, at first at once.
func (s *Source) ended(q *session) {
	if !q.process.Alive() {
		return // Forget follows
	}
	s.step(q, hasEnded, "")
	again := newSession(q.process, q.image, q.facts)
	again.entry, again.windows = q.entry.again(clock.Monotonic(), s.rests.end), q.windows.again()
	again.orders.begun = q.orders.begun
	s.retired = append(s.retired, q)
	s.sessions[q.process.ID()] = again
	s.opts.Log.Warn(
		"an agent ended by itself; it is loaded again",
		zap.Uint32("pid", q.process.PID),
		zap.Duration("in", again.entry.rest),
		logfield.Reported(), // the report has a table of agents
	)
	s.attach(again)
	if again.entry.rest > 0 {
		s.step(
			again,
			isTired,
			fmt.Sprintf(
				"the agent ended by itself %d times: give the daemon more CPU time if it was starved; it is loaded "+
					"again in %s",
				again.entry.restarts,
				again.entry.rest,
			),
		)
	}
	s.balance(again)
}

// explain says why an agent cannot use CUPTI, and what to do: enum agent_error, or a CUptiResult. holder is who holds
// it, where CUPTI tells.
func explain(err int32, holder string) string {
	switch err {
	case errorBusy:
		if holder != "" {
			holder = fmt.Sprintf(": it calls itself %q", holder)
		}
		return "another profiler holds CUPTI in this process (CUPTI error 39)" + holder + ", or held it in its parent when it was forked: GPU activity is recorded when it lets go; the agent looks again every 10 s"
	case errorNoCUPTI:
		return "no libcupti was found in the target: name one with --cupti PATH, as the target sees it"
	case errorNoSymbol:
		return "the target's libcupti lacks a function: name one of CUDA 11.8 or newer with --cupti PATH"
	case errorTooOld:
		return "the target's libcupti is too old: name one of CUDA 11.8 or newer with --cupti PATH"
	case errorGraphThreads:
		return "several threads of this process launch CUDA graphs: CUPTI, once it records there, cannot be taken " +
			"out again without killing the process, so GPU activity is not recorded; calls, launches and the CPU " +
			"side are. " +
			"Launch graphs from one thread and restart the program, or use a profiler that starts with the program " +
			"and stays to its end (nsys profile)"
	case errorMemory:
		return "the target had no memory for the agent's buffers (45 MB of addresses, of which it uses a few): raise " +
			"its limit of address space (ulimit -v) or of mappings (vm.max_map_count); the agent looks again every 10 s"
	}
	return fmt.Sprintf(
		"CUPTI cannot be used in this process (CUPTI error %d): see whether it serves this driver, or name another "+
			"one with --cupti PATH; the agent looks again every 10 s",
		err,
	)
}

// balance lets launches be probed where no agent sees them, or will within a second: probes that come and go for so
// little are cost and, where the daemon is killed just then, stay (docs/limitations.md). While probes come off, both
// may see some: the timeline takes those for one. The caller holds the lock.
func (s *Source) balance(q *session) {
	mode := cudaapi.LaunchesWindows
	switch {
	case !q.agent.outside && q.mayOpen(), s.opts.Mode == Off:
		mode = cudaapi.LaunchesOff
	case s.wanted(q.process) == modeContinuous:
		mode = cudaapi.LaunchesOn
	}
	if q.launches != mode {
		q.launches = mode
		if s.opts.Launches != nil {
			s.opts.Launches.SetLaunches(q.process.ID(), mode)
		}
	}
}

// openTime is how long Continuous waits for agents beside the time to the next window: CUPTI
// takes 7 to 30 ms to enable, seconds where it is cold.
const openTime = time.Second

// Continuous records all of the time of a target until end is called, once. It returns when
// every agent records, or has had time enough to begin. It is an error (clierror.Usage)
// where GPU activity is switched off.
func (s *Source) Continuous(ctx context.Context, root uint32) (end func(), err error) {
	if s.opts.Mode == Off {
		return nil, clierror.New(
			clierror.Usage,
			"start the daemon without --gpu off",
			errors.New("GPU activity is switched off in this daemon"),
		)
	}
	s.demand(root, 1)
	ctx, cancel := context.WithTimeout(ctx, min(s.opts.Period, 10*time.Second)+openTime)
	defer cancel()
	for !s.recording(root) && ctx.Err() == nil {
		sleep(ctx, 5*time.Millisecond)
	}
	return func() { s.demand(root, -1) }, nil
}

// recording reports whether every agent of a target that can record does.
func (s *Source) recording(root uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.sessions {
		if q.process.Root == root && q.mayOpen() && q.ring.load32(ringState) != stateOpen {
			return false
		}
	}
	return true
}

func (s *Source) demand(root uint32, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.continuous[root] += by; s.continuous[root] == 0 {
		delete(s.continuous, root)
	}
	now := clock.Monotonic()
	for _, q := range s.sessions {
		switch {
		case q.process.Root != root || s.closing:
		case q.ring != nil:
			s.look(q, now)
		default:
			s.balance(q)
		}
	}
}

// slack is what an agent gets beside its deadline to end, before it is left alone.
const slack = time.Second

// Close tells every agent to end its window in the good way and to go, and waits for it,
// within a bound. What their rings hold comes out at the next Feed. An agent that did not
// end in time is told of in the log; it ends by itself as well, since nobody beats for it.
func (s *Source) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	for _, q := range s.sessions {
		q.entry.cancel()
		if q.ring != nil {
			s.quit(q)
		}
	}
	s.mu.Unlock()
	s.stop()
	s.tasks.Wait()
	s.drainAgents()
	var err error
	if s.opts.Inject != nil {
		err = s.opts.Inject.Wait()
	}
	s.quiet()
	<-s.heartbeatsDone
	s.shutGates()
	s.life.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return err
}
