package gpu

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// answerTime is how long an agent has to hand over what CUPTI holds before a recording is cut without it: twice the
// 500 ms for which it waits for gates, the second between two tries (flush_gated in agent/src/loop.c), and a flush.
// One that did not answer the last question has lateTime.
const (
	answerTime = 2200 * time.Millisecond
	lateTime   = 300 * time.Millisecond
)

// Flush asks the agents of these processes for what CUPTI holds, and returns when it lies
// in their rings, or when they have had time enough.
func (s *Source) Flush(ctx context.Context, pids []uint32) {
	asked := s.ask(pids)
	for len(asked) > 0 && ctx.Err() == nil {
		sleep(ctx, 2*time.Millisecond)
		asked = s.unanswered(asked)
	}
}

// question is a flush that an agent was asked for, when, and until when the answer is awaited (ns).
type question struct {
	session   *session
	number    uint32
	at, until uint64
}

func (s *Source) ask(pids []uint32) []question {
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked []question
	for _, q := range s.sessions {
		if q.ring == nil || !slices.Contains(pids, q.process.PID) {
			continue
		}
		switch q.ring.load32(ringState) {
		case stateOpening, stateOpen, stateClosing: // one that leaves has handed everything over
			wait := answerTime
			if last := q.flushes.asked; last.session != nil && q.ring.answered(last.number) {
				q.flushes.done = max(q.flushes.done, last.at)
			} else if last.session != nil {
				wait = lateTime
			}
			number, now := q.ring.flush(), clock.Monotonic()
			q.flushes.asked = question{q, number, now, now + uint64(wait)}
			asked = append(asked, q.flushes.asked)
		}
	}
	return asked
}

func (s *Source) unanswered(asked []question) []question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(asked, func(a question) bool {
		q := a.session
		switch {
		case q.ring == nil || q.ring.load32(ringState) == stateGone:
			return true
		case q.ring.answered(a.number):
			q.flushes.done = max(q.flushes.done, a.at)
			return true
		}
		return clock.Monotonic() > a.until
	})
}

// GPU returns what is known of these processes of the target root within [from, to] (ns), with
// the names of the kernels and ranges of these numbers; kernels and ranges give for
// each number its index + 1 among them.
func (s *Source) GPU(
	root uint32,
	pids []uint32,
	from, to uint64,
	usedKernels, usedRanges []int32,
) (g *recording.GPU, kernels, ranges map[int32]int32) {
	g = &recording.GPU{Mode: string(s.modeOf(root)), Agents: []recording.Agent{}, Windows: []recording.GPUWindow{}}
	g.Kernels, kernels = s.tables.kernels.kernels(usedKernels)
	g.Ranges, ranges = s.tables.ranges.texts(usedRanges)
	for _, pid := range pids {
		if s.opts.Launches != nil {
			g.Windows = append(g.Windows, s.opts.Launches.LaunchWindows(pid, from, to)...)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.latest() {
		if slices.Contains(pids, q.process.PID) && q.process.Born <= to {
			q.facts.put(g, from, to, min(q.flushes.done, to))
			if q.phase != phaseIdle {
				a := q.describe()
				a.Dropped = q.facts.droppedWithin(from, to)
				g.Agents = append(g.Agents, a)
			}
		}
	}
	order(g)
	return g, kernels, ranges
}

func order(g *recording.GPU) {
	slices.SortFunc(g.Agents, func(a, b recording.Agent) int { return cmp.Compare(a.PID, b.PID) })
	slices.SortStableFunc(g.Windows, func(a, b recording.GPUWindow) int { return cmp.Compare(a.From, b.From) })
	slices.SortFunc(g.Devices, func(a, b recording.Device) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
}

func (s *Source) modeOf(root uint32) Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.continuous[root] > 0 {
		return Continuous
	}
	return s.opts.Mode
}

// latest returns one session of each process, the one of its last program. The caller
// holds the lock.
func (s *Source) latest() []*session {
	var out []*session
	seen := map[*facts]bool{}
	for _, q := range s.sessions {
		seen[q.facts] = true
		out = append(out, q)
	}
	for _, q := range slices.Backward(s.gone) {
		if !seen[q.facts] {
			seen[q.facts] = true
			out = append(out, q)
		}
	}
	return out
}

// long is how long an agent waits to enter or leave CUPTI before that is reported, and launches are probed
// instead.
const long = time.Second

// waited is for how long the agent has waited to enter or leave CUPTI; 0: it does not.
func (v *agentView) waited(now uint64) time.Duration {
	switch {
	case v.state == stateOpening && v.opening != 0:
		return since(now, v.opening)
	case v.state == stateLeaving && v.leaving != 0:
		return since(now, v.leaving)
	}
	return 0
}

// starving says why CUPTI was not removed.
const starving = "the thread that would remove it waits for CPUs so often that others would be held for over 10 ms " +
	"(40 ms with CUDA graphs)"

// hindrance says what keeps an agent that runs from recording, or others from what it holds;
// "" where nothing does. The caller holds the lock.
func (q *session) hindrance(now uint64) string {
	const lock = "the driver's lock, which this process's threads hold nearly always"
	waited := q.agent.waited(now)
	switch {
	case waited > long && q.agent.state == stateLeaving:
		return fmt.Sprintf(
			"waits in cuptiFinalize for %s: %d s so far; until it is out, no window opens, launches are probed and "+
				"nothing is known of what the GPU does; the process itself is not slowed",
			lock,
			waited/time.Second,
		)
	case waited > long:
		return fmt.Sprintf(
			"waits in cuptiSubscribe for %s: %d s so far; until it is in, launches are probed and nothing is known "+
				"of what the GPU does; the process itself is not slowed",
			lock,
			waited/time.Second,
		)
	case q.inside.waited(now) > long:
		return fmt.Sprintf(
			"no window opens before %d threads of this process are seen to have returned from CUPTI's callbacks, in "+
				"which they were when the last one ended: where one of them has only lost its CPU there, another "+
				"window would kill the process; %d s so far",
			q.inside.count,
			q.inside.waited(now)/time.Second,
		)
	case q.facts.starves() && q.facts.stays():
		return "stays subscribed to CUPTI after the last window: " + starving + "; other profilers in this process " +
			"are refused (CUPTI error 39), and records of that window may be missing, until a later window gets CPU " +
			"time, or the daemon stops; give the process more CPU time"
	case q.facts.starves():
		return "the last window ended without cuptiFinalize: " + starving + "; CUDA graphs that ran in it stay " +
			"slower until a later window gets CPU time, or the daemon stops; give the process more CPU time"
	case q.facts.stays():
		return "stays subscribed to CUPTI between windows, because it took too long to get in or out to do it for " +
			"each, or a thread could not be proven to be outside of it: other profilers in this process are refused " +
			"(CUPTI error 39) until the daemon stops"
	}
	return ""
}

// heldSoFar returns how threads of q's process were held; nil where none was. The caller holds the lock.
func (q *session) heldSoFar() *recording.Held {
	if q.ring == nil {
		return nil
	}
	h := recording.Held{Sum: q.ring.load64(ringHoldNS), Longest: q.ring.load64(ringHoldLongest)}
	for i := range h.Threads {
		h.Threads[i] = q.ring.load32(ringHolds + 4*i)
	}
	if h == (recording.Held{}) {
		return nil
	}
	return &h
}

// describe returns the agent's row. One that CUPTI does not let in waits, whatever it is ready for: reports then say
// that, where they would else ask for a longer time. The caller holds the lock.
func (q *session) describe() recording.Agent {
	st := q.phase.state()
	if st == running && q.agent.outside {
		st = waiting
	}
	a := recording.Agent{
		PID: q.process.PID, State: string(st), Detail: q.detail, CUPTI: q.agent.path,
		Version: q.agent.version, Stopped: uint64(q.entry.stopped), Joined: q.entry.joined,
	}
	switch q.agent.graphs {
	case 1:
		a.Slower = "CUDA graphs that ran while it recorded stay slower (measured: 6%) until they are instantiated " +
			"anew or a window ends in the good way"
	case 2:
		a.Slower = "launches may stay slower (measured: 1.5%) until a window ends in the good way"
	}
	return a
}

// Agents returns the agents of all processes, ordered by pid.
func (s *Source) Agents() []recording.AgentStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []recording.AgentStatus{}
	for _, q := range s.latest() {
		if q.phase == phaseIdle {
			continue
		}
		c := q.facts.total()
		a := recording.AgentStatus{
			Agent:    q.describe(),
			Kernels:  c.kernels,
			Events:   c.events,
			Windows:  c.windows,
			Observed: c.observed,
			Disabled: c.disabled,
			Kept:     c.kept,
			Starved:  c.starved,
			Sections: q.facts.held(),
			Steps:    q.facts.lastSteps(),
		}
		a.Dropped, a.Held = saturating(c.dropped, c.full), q.heldSoFar()
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b recording.AgentStatus) int { return cmp.Compare(a.PID, b.PID) })
	return out
}

// State says how many agents there are. It names no process.
func (s *Source) State() recording.Source {
	st := recording.Source{Name: sourceName, State: "waiting", Detail: "no process has mapped libcuda yet"}
	if s.opts.Inject == nil {
		st.State, st.Detail = recording.SourceOff, "no agent is loaded (--no-inject): launches are seen by "+
			"probes, nothing of the GPU"
		return st
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[state]int{}
	for _, q := range s.sessions {
		n[q.phase.state()]++
	}
	if len(s.sessions) == 0 {
		return st
	}
	st.Detail = fmt.Sprintf(
		"%s; agents: %d record, %d wait for a CUDA call, %d refused",
		s.plan(),
		n[running],
		n[waiting],
		n[refused]+n[dormant],
	)
	switch {
	case n[running] > 0:
		st.State = "running"
	case n[waiting] == 0:
		st.State = "unavailable"
	}
	return st
}

// plan says what is recorded when.
func (s *Source) plan() string {
	if s.opts.Mode == Windows {
		return fmt.Sprintf("windows of %s every %s", s.opts.On, s.opts.Period)
	}
	return string(s.opts.Mode)
}

// Losses says what of GPU activity is missing or in doubt.
func (s *Source) Losses() []loss.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []loss.Loss
	for _, q := range s.latest() {
		where := fmt.Sprintf("pid %d", q.process.PID)
		add := func(r loss.Reason, n uint64, detail string) {
			if n > 0 {
				out = append(out, loss.Loss{Reason: r, Count: n, PID: q.process.PID, Where: where, Detail: detail})
			}
		}
		c := q.facts.total()
		add(loss.GPURingFull, c.full, "")
		add(loss.GPURingThrottled, c.throttled, "")
		add(loss.GPURecordsDropped, c.dropped, "")
		add(loss.GPUWindowDisabled, c.disabled, "")
		add(loss.GPUNamesLost, c.unnamed, "")
		add(loss.Malformed, c.malformed, "in the agent's ring")
		if st := q.phase.state(); st == refused || st == dormant {
			add(loss.AgentRefused, 1, q.detail)
		}
	}
	return out
}
