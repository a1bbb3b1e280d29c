package gpu

import (
	"fmt"
	"os"
	"time"

	"github.com/inferscope/inferscope/internal/target"
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

// launchers are the threads of a process that launch CUDA graphs, as probes see it all of the time. CUPTI cannot be taken out of a
// process while another thread launches graphs: it dies (agent/src/graphs.c; measured with libcuda 580, CUPTI 13.0). An agent sees
// launches in its windows only, and a window that ends without taking CUPTI out leaves graphs slower; so it is told before.
type launchers struct {
	first   uint32 // thread; 0: none was seen
	taken   int    // others that came after it had ended, or have ended themselves
	last    uint32 // of those
	several bool   // another one launched graphs, too, while that one lived, or too many took over: for good
}

// takeovers is how many threads may launch graphs one after the other. Of a thread's first launch nobody knows before: the gate holds it
// while CUPTI is taken out, but for one that loses its CPU in just the microsecond between gate and driver. That must not be tried all the time.
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
		l.several = l.taken > takeovers
	}
	if !lives {
		l.first = tid
	}
}

func threadLives(pid, tid uint32) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
	return err == nil
}

// warn tells q's agent which thread launches graphs, since no other may finalize then, or that several do: it opens no window then. The
// caller holds the lock.
func (s *Source) warn(q *session) {
	var l launchers
	s.paces.of(q.process.PID, func(p *pace) { l = p.launchers })
	switch {
	case l.several:
		q.ring.store32(ringGraphThreads, 1)
	case l.first != q.grapher:
		if own, ok := target.OwnTID(q.process, l.first); ok {
			q.grapher = l.first
			q.ring.store32(ringGraphThread, own)
		}
	}
}

// watched says whether probes have seen q's process for long enough to open its first window: for Options.Watch since they saw a
// first call, or for twice as long without one; and whether launches of graphs are held by then while CUPTI is taken out.
func (s *Source) watched(q *session, now uint64) bool {
	switch {
	case q.begun:
		return true
	case !s.guarded(q):
		return false
	case since(now, q.joined) >= 2*s.opts.Watch:
		return true
	}
	enough := false
	s.paces.of(q.process.PID, func(p *pace) { enough = p.began != 0 && since(now, p.began) >= s.opts.Watch })
	return enough
}

// blindly says why no window may open in p, since a finalize while a thread that nobody knows of launches a graph kills the process; ""
// where probes see who does.
func (s *Source) blindly(p *target.Process) string {
	err := s.opts.Blind(p)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("no window opens while it is not known which threads launch CUDA graphs: %v", err)
}

// DefaultWatch is long enough to see most threads launch that launch graphs at all: they do it many times a second.
const DefaultWatch = 500 * time.Millisecond
