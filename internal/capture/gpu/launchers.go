package gpu

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// graphLaunches returns the numbers of the driver's functions that launch CUDA graphs.
func graphLaunches(index func(name string) (uint16, bool)) (numbers []uint16) {
	for _, name := range []string{"cuGraphLaunch", "cuGraphLaunch_ptsz"} {
		if n, ok := index(name); ok {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// waits returns the numbers of the driver's functions at whose ends the agent may leave CUPTI: those marked ENDS in
// agent/src/calls.c.
func waits(index func(name string) (uint16, bool)) (numbers []uint16) {
	for _, name := range []string{
		"cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuStreamSynchronize",
		"cuStreamSynchronize_ptsz", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds",
	} {
		if n, ok := index(name); ok {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// launchers are the threads of a process that launch CUDA graphs, as probes see it all of the time. CUPTI cannot be
// taken out of a process while another thread launches graphs: it dies (agent/src/graphs.c; measured with libcuda 580,
// CUPTI 13.0). An agent sees launches in its windows only, and a window that ends without taking CUPTI out leaves
// graphs slower; so it is told before.
type launchers struct {
	first   uint32 // thread; 0: none was seen
	taken   int    // others that came after it had ended, or have ended themselves
	last    uint32 // of those
	several bool   // another one launched graphs, too, while that one lived, or too many took over: for good
	most    int    // takeovers; 0: that many
}

// takeovers is how many threads may launch graphs one after the other. Each first launch while the gate is armed keeps
// a window from its end: where they come with each request, windows would be ended by their deadline, and graphs left
// slower.
const takeovers = 16

// note hears of a launch, by a thread that may have ended since: what several CPUs saw comes in any order.
func (l *launchers) note(pid, tid uint32) {
	if l.first == tid || l.last == tid || l.several {
		return
	}
	lives := l.first != 0 && threadLives(pid, l.first)
	switch {
	case l.first == 0:
	case lives && threadLives(pid, tid):
		l.several = true
	default:
		l.last = tid
		l.taken++
		l.several = l.taken > cmp.Or(l.most, takeovers)
	}
	if !lives {
		l.first = tid
	}
}

func threadLives(pid, tid uint32) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
	return err == nil
}

// warn tells q's agent which thread launches graphs, since no other may finalize then, or that several do: it opens no
// window then. The caller holds the lock.
func (s *Source) warn(q *session) {
	var l launchers
	s.paces.of(q.process.PID, func(p *pace) { l = p.launchers })
	switch {
	case l.several:
		q.ring.store32(ringGraphThreads, 1)
	case l.first != q.orders.grapher:
		if own, ok := proc.OwnTID(q.process, l.first); ok {
			q.orders.grapher = l.first
			q.ring.store32(ringGraphThread, own)
		}
	}
}

// watched reports whether probes have seen q's process for long enough to open its first window: for Options.Watch
// since they saw a first call, or for twice as long without one; and whether launches of graphs are held by then while
// CUPTI is taken out, and the thread that launches graphs, if there is one, is known to make a call in which it can be.
func (s *Source) watched(q *session, now uint64) bool {
	_, unwaited := s.unwaited(q)
	switch {
	case q.orders.begun:
		return true
	case !s.guarded(q) || unwaited:
		return false
	case since(now, q.entry.joined) >= 2*s.opts.Watch:
		return true
	}
	enough := false
	s.paces.of(q.process.PID, func(p *pace) { enough = p.began != 0 && since(now, p.began) >= s.opts.Watch })
	return enough
}

// whyUnobservable says why no window may open in p, since a finalize while a thread that nobody knows of launches a
// graph kills the process; "" where probes see who does.
func (s *Source) whyUnobservable(p *proc.Process) string {
	err := s.opts.Unobservable(p)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("no window opens while it is not known which threads launch CUDA graphs: %v", err)
}

// DefaultWatch is long enough to see most threads launch that launch graphs at all: they do it many times a second.
const DefaultWatch = 500 * time.Millisecond

// strandedAfter is how long a thread that launches graphs may take to make a call in which the agent could leave CUPTI,
// before no window opens for want of one.
const strandedAfter = time.Second

// stranded says why no window may open in q's process: with graphs only the thread that launches them can leave CUPTI,
// and this one makes no call in which it could. A window would end by turning the kinds off, which leaves its graphs
// slower. The caller holds the lock.
func (s *Source) stranded(q *session, now uint64) string {
	launched, unwaited := s.unwaited(q)
	if !unwaited || since(now, launched) <= strandedAfter {
		return ""
	}
	return "no window opens: the thread of this process that launches CUDA graphs makes no call that waits for the " +
		"GPU (a synchronization, or a copy to the host), at whose end alone CUPTI could be taken out again; " +
		"calls, launches and the CPU side are recorded, and windows open once it makes one"
}

// unwaited reports whether one thread of q's process launches graphs and was not seen to make a call in which the agent
// could leave CUPTI, and when it was first seen to launch one (ns). The caller holds the lock.
func (s *Source) unwaited(q *session) (launched uint64, unwaited bool) {
	s.paces.of(q.process.PID, func(p *pace) {
		l := &p.launchers
		launched = p.launches
		unwaited = l.first != 0 && p.launches != 0 && p.waiter != l.first && threadLives(q.process.PID, l.first)
	})
	return launched, unwaited
}
