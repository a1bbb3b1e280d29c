package gpu

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/gate"
	"github.com/inferscope/inferscope/internal/target"
)

// post is the place of one gate of a session.
type post struct {
	asked bool       // for a gate
	done  bool       // it is there, or cannot be had
	err   error      // why it cannot be had
	gate  *gate.Gate // nil: there is none
}

// keepOut has gates put before the driver in q's process: the one for launches of graphs everywhere, for any thread may launch its first
// one at any time; the other one where several threads call the driver, as a rule before the first window, for a wait
// in cuptiSubscribe may hold threads up for as long as it lasts. They stay as long as the agent's ring. The caller holds the lock.
func (s *Source) keepOut(q *session) {
	s.putUp(q, gate.Launches)
	several := false
	s.paces.of(q.process.PID, func(p *pace) { several = p.callers.several })
	if several {
		s.putUp(q, gate.Calls)
	}
}

func (s *Source) putUp(q *session, kind gate.Kind) {
	if s.opts.Gate == nil || q.gates[kind].asked || s.shut {
		return
	}
	q.gates[kind].asked = true
	r := q.ring
	s.gates.Go(func() { s.openGate(q, kind, r) })
}

func (s *Source) openGate(q *session, kind gate.Kind, r *ring) {
	g, err := s.gateFor(q.process, kind, r.inode)
	s.mu.Lock()
	q.gates[kind].done, q.gates[kind].err = true, err
	kept := err == nil && q.ring == r && !s.shut
	if kept {
		q.gates[kind].gate = g
	}
	s.mu.Unlock()
	switch {
	case err != nil && !q.process.Alive():
	case err != nil:
		s.opts.Log.Warn(withoutGate(kind), zap.Uint32("pid", q.process.PID), zap.Error(err))
	case !kept:
		s.closeGate(q.process.PID, kind, g)
	}
}

// withoutGate says what it means that there is none.
func withoutGate(kind gate.Kind) string {
	if kind == gate.Launches {
		return "launches of CUDA graphs cannot be held while CUPTI is taken out of a process, which one that comes just then would kill: no window opens there"
	}
	return "no gate before the driver of a process: where its threads are always inside, CUPTI lets the agent in late"
}

func (s *Source) gateFor(p *target.Process, kind gate.Kind, inode uint64) (*gate.Gate, error) {
	at, err := ringAddress(p, inode)
	if err != nil {
		return nil, err
	}
	return s.opts.Gate(p, kind, at+ringOpening)
}

// ungated says why no window may open in q's process; "" where launches of graphs are held, or will be. The caller holds the lock.
func ungated(q *session) string {
	err := q.gates[gate.Launches].err
	if err == nil {
		return ""
	}
	return fmt.Sprintf("no window opens where a thread that launches its first CUDA graph cannot be held while CUPTI is taken out of the process: %v; restart the daemon, and report it with the kernel's version if that does not help", err)
}

// guarded says whether the gate for launches of graphs is up in q's process, or cannot be. The caller holds the lock.
func (s *Source) guarded(q *session) bool { return s.opts.Gate == nil || q.gates[gate.Launches].done }

// dropGates takes q's gates away, those that it has. The caller holds the lock.
func (s *Source) dropGates(q *session) {
	for kind := range q.gates {
		g := q.gates[kind].gate
		q.gates[kind].gate = nil
		if g != nil {
			s.gates.Go(func() { s.closeGate(q.process.PID, gate.Kind(kind), g) })
		}
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

func (s *Source) closeGate(pid uint32, kind gate.Kind, g *gate.Gate) {
	c, err := g.Count()
	if err = errors.Join(err, g.Close()); err != nil {
		s.opts.Log.Warn("a gate was not taken away as it should be", zap.Uint32("pid", pid), zap.Error(err))
	}
	if c.Held == 0 {
		return
	}
	why := "threads were kept out of the driver for moments, so that CUPTI let the agent in and out"
	if kind == gate.Launches {
		why = "launches of CUDA graphs were held while CUPTI was taken out of a process"
	}
	s.opts.Log.Info(why, zap.Uint32("pid", pid), zap.Uint64("times", c.Held), zap.Duration("together", c.Sum), zap.Duration("longest", c.Longest))
}

// inodeOf returns what identifies an open file among those of the kernel's shared memory.
func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("looking at it: %w", err)
	}
	return st.Ino, nil
}

// ringAddress returns where p has mapped the ring that has this inode.
func ringAddress(p *target.Process, inode uint64) (uint64, error) {
	for _, link := range target.MappedMemfds(p, ringName) {
		var st unix.Stat_t
		if unix.Stat(link, &st) != nil || st.Ino != inode {
			continue
		}
		start, _, _ := strings.Cut(path.Base(link), "-")
		return strconv.ParseUint(start, 16, 64)
	}
	return 0, fmt.Errorf("pid %d does not map its agent's ring", p.PID)
}
