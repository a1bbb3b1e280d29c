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

// Gate keeps the threads of a process out of the driver for moments while its agent waits for that: gate.Gate.
type Gate interface {
	Count() (gate.Count, error)
	Close() error
}

// keepOut has a gate put before the driver in q's process where several threads call it: as a rule before the first window, for a wait
// in cuptiSubscribe may hold threads up for as long as it lasts. It stays as long as the agent's ring. The caller holds the lock.
func (s *Source) keepOut(q *session) {
	if s.opts.Gate == nil || q.gated || s.shut {
		return
	}
	several := false
	s.paces.of(q.process.PID, func(p *pace) { several = p.callers.several })
	if !several {
		return
	}
	q.gated = true
	r := q.ring
	s.gates.Go(func() { s.openGate(q, r) })
}

func (s *Source) openGate(q *session, r *ring) {
	g, err := s.gateFor(q.process, r.inode)
	if err != nil {
		s.opts.Log.Info("no gate before the driver of a process: where its threads are always inside, CUPTI lets the agent in late", zap.Uint32("pid", q.process.PID), zap.Error(err))
		return
	}
	s.mu.Lock()
	if q.ring == r && !s.shut {
		q.gate = g
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.closeGate(q.process.PID, g)
}

func (s *Source) gateFor(p *target.Process, inode uint64) (Gate, error) {
	at, err := ringAddress(p, inode)
	if err != nil {
		return nil, err
	}
	return s.opts.Gate(p, at+ringOpening)
}

// dropGate takes q's gate away, if it has one. The caller holds the lock.
func (s *Source) dropGate(q *session) {
	g := q.gate
	q.gate = nil
	if g != nil {
		s.gates.Go(func() { s.closeGate(q.process.PID, g) })
	}
}

// shutGates takes all gates away, and lets no other be put up.
func (s *Source) shutGates() {
	s.mu.Lock()
	for _, q := range s.sessions {
		s.dropGate(q)
	}
	for _, q := range s.retired {
		s.dropGate(q)
	}
	s.shut = true
	s.mu.Unlock()
	s.gates.Wait()
}

func (s *Source) closeGate(pid uint32, g Gate) {
	c, err := g.Count()
	if err = errors.Join(err, g.Close()); err != nil {
		s.opts.Log.Warn("a gate was not taken away as it should be", zap.Uint32("pid", pid), zap.Error(err))
	}
	if c.Held == 0 {
		return
	}
	s.opts.Log.Info("threads were kept out of the driver for moments, so that CUPTI let the agent in and out", zap.Uint32("pid", pid), zap.Uint64("times", c.Held), zap.Duration("together", c.Sum), zap.Duration("longest", c.Longest))
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
