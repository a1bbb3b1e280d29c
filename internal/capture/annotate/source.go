// Package annotate is the source of the scopes that a program names with the Python
// package inferscope: it finds the memory in which the package writes them, says
// that somebody reads it, and makes events of kind Range of what it finds there.
//
// The memory is described in python/inferscope/_ring.py. It is the target's, which
// may write to it at any time: a record is copied once and then checked, and
// names, counts and times are bounded.
package annotate

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// sourceName is what the source is called in status and reports.
const sourceName = "scopes"

const (
	// leaseTime is how long a program may go on writing scopes for nobody once the daemon is gone.
	leaseTime = 2 * time.Second
	// A Python program is looked at again after a while, twice as long each time: the package makes
	// its memory when it is imported, which goes along with mapping libraries, so that a look soon
	// after a change finds it. Reading the mappings of a PyTorch takes 3 ms.
	firstLook, lastLook = 100 * time.Millisecond, 5 * time.Second
	// maxPrograms bounds how many processes are read, and maxGone how many ends are remembered.
	maxPrograms, maxGone = 1024, 256
)

// Source reads the scopes of all targets. It implements daemon.Source.
type Source struct {
	log   *zap.Logger
	clock func() uint64
	texts *texts

	mu       sync.Mutex
	programs map[proc.ID]*program
	retired  []*program // whose rings are to be read to their end
	ended    []ended
	closed   bool
}

// program is one program of one process. Its reader belongs to Feed.
type program struct {
	process *proc.Process
	image   string
	python  bool
	pause   time.Duration
	look    uint64 // ns: when to look for a ring
	refused string // why its ring cannot be used
	reader  *reader
	seen    counts // as of the last pass
}

// ended is what a process that is gone has left to be told.
type ended struct {
	pid  uint32
	seen counts
}

// New makes a source; it touches no process before the first Follow.
func New(log *zap.Logger) *Source {
	return &Source{log: log, clock: clock.Monotonic, texts: newTexts(), programs: map[proc.ID]*program{}}
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow looks whether p runs Python, and has its scopes read then.
func (s *Source) Follow(p *proc.Process) error {
	image, err := proc.Image(p)
	if !p.Alive() {
		return nil // Forget follows
	}
	if err != nil {
		return fmt.Errorf("read the auxiliary vector of pid %d: %w", p.PID, err)
	}
	q, err := s.enter(p, image)
	if err != nil || q == nil {
		return err
	}
	if !s.isPython(q) {
		found, err := proc.Libraries(p, python)
		if err != nil {
			return fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
		}
		if len(found) == 0 {
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q.python, q.pause, q.look = true, firstLook, min(q.look, s.clock()+uint64(firstLook))
	return nil
}

// enter returns the program that p runs now; nil where nothing more is followed.
func (s *Source) enter(p *proc.Process, image string) (*program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	q := s.programs[p.ID()]
	if q != nil && q.image == image {
		q.process = p
		return q, nil
	}
	if q != nil {
		s.retire(q)
	}
	if len(s.programs) >= maxPrograms {
		return nil, fmt.Errorf("more than %d processes: scopes of pid %d are not read", maxPrograms, p.PID)
	}
	q = &program{process: p, image: image, look: s.clock()}
	s.programs[p.ID()] = q
	return q, nil
}

func (s *Source) isPython(q *program) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.python
}

// python reports whether a file of this name may be an interpreter of Python.
func python(base string) bool {
	return strings.HasPrefix(base, "python") || strings.HasPrefix(base, "libpython") ||
		strings.HasPrefix(base, "pypy") ||
		strings.HasPrefix(base, "libpypy")
}

// Forget ends the reading of p, which is gone: what its ring holds is still read.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.programs[p.ID()]; q != nil {
		s.retire(q)
	}
}

// retire ends a program. The caller holds the lock.
func (s *Source) retire(q *program) {
	delete(s.programs, q.process.ID())
	if q.reader != nil {
		s.retired = append(s.retired, q)
	}
}

// Feed hands over what the rings hold, says that they are read, and looks for new ones.
func (s *Source) Feed(_ uint64, emit func([]event.Event)) {
	now := s.clock()
	for _, q := range s.due(now) {
		s.open(q)
	}
	living, last := s.readers()
	for _, q := range living {
		q.reader.ring.lease(now + uint64(leaseTime))
		q.reader.read(now, false, emit)
	}
	for _, q := range last {
		q.reader.ring.lease(0)
		q.reader.read(now, true, emit)
	}
	s.note(living, last)
}

// due returns the programs in which a ring may have appeared, and plans the next look.
func (s *Source) due(now uint64) []*program {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*program
	for _, q := range s.programs {
		if !q.python || q.reader != nil || q.refused != "" || now < q.look {
			continue
		}
		out = append(out, q)
		q.look, q.pause = now+uint64(q.pause), min(2*q.pause, lastLook)
	}
	return out
}

// open looks for the ring of a program.
func (s *Source) open(q *program) {
	r, err := open(q.process)
	switch {
	case errors.Is(err, errNoRing) || err != nil && !q.process.Alive():
		return
	case err != nil:
		s.log.Warn("scopes of a process are not read", zap.Uint32("pid", q.process.PID), zap.Error(err))
		s.mu.Lock()
		defer s.mu.Unlock()
		q.refused = err.Error()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.reader = newReader(r, s.texts, q.process); s.programs[q.process.ID()] != q { // it ended meanwhile
		s.retired = append(s.retired, q)
	}
}

// readers returns the programs that have a ring; last are those that are read once more.
func (s *Source) readers() (living, last []*program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, s.retired = s.retired, nil
	for _, q := range s.programs {
		if q.reader != nil {
			living = append(living, q)
		}
	}
	if s.closed {
		living, last = nil, append(last, living...)
		clear(s.programs)
	}
	return living, last
}

// note takes over what was counted, and lets rings go that were read to their end.
func (s *Source) note(living, last []*program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range living {
		q.seen = q.reader.count
	}
	for _, q := range last {
		if err := q.reader.ring.close(); err != nil {
			s.log.Warn("the memory of scopes was not unmapped", zap.Uint32("pid", q.process.PID), zap.Error(err))
		}
		if s.ended = append(s.ended, ended{q.process.PID, q.reader.count}); len(s.ended) > maxGone {
			s.ended = s.ended[1:]
		}
		q.reader = nil
	}
}

// Ranges returns the texts with these numbers, and for each number its index + 1 among them.
func (s *Source) Ranges(used []int32) (rows []string, at map[int32]int32) {
	at = make(map[int32]int32, len(used))
	for _, n := range used {
		if text, ok := s.texts.row(n); ok {
			rows = append(rows, text)
			at[n] = int32(len(rows))
		}
	}
	return rows, at
}

// State says of how many processes scopes are read. It names no process.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := recording.Source{
		Name:   sourceName,
		State:  "waiting",
		Detail: "no process has imported the Python package inferscope yet",
	}
	read, refused := 0, 0
	for _, q := range s.programs {
		if q.reader != nil {
			read++
		}
		if q.refused != "" {
			refused++
		}
	}
	if read > 0 {
		st.State, st.Detail = "running", fmt.Sprintf("processes whose scopes are read: %d", read)
	}
	if refused > 0 {
		st.Detail += fmt.Sprintf("; refused: %d", refused)
	}
	return st
}

// Losses reports which scopes are missing.
func (s *Source) Losses() []loss.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []loss.Loss
	tell := func(pid uint32, c counts, refused string) {
		where := fmt.Sprintf("pid %d", pid)
		add := func(r loss.Reason, n uint64, detail string) {
			if n > 0 {
				out = append(out, loss.Loss{Reason: r, Count: n, PID: pid, Where: where, Detail: detail})
			}
		}
		add(loss.ScopesLost, c.lost, "")
		add(loss.ScopesUnnamed, c.unnamed, "")
		add(loss.Malformed, c.malformed, "in the memory of its scopes")
		if refused != "" {
			add(loss.ScopesRefused, 1, refused)
		}
	}
	for _, g := range s.ended {
		tell(g.pid, g.seen, "")
	}
	for _, q := range s.programs {
		tell(q.process.PID, q.seen, q.refused)
	}
	return out
}

// Close declares that nobody reads any more; what the rings hold is taken by one more Feed.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// memfd is what the package calls its memory.
const memfd = "inferscope-scopes"

// The layout of the memory, python/inferscope/_ring.py; offsets and sizes in bytes.
const (
	magic       = "ISSCOPE1"
	headerBytes = 4096
	recordBytes = 64

	headRecord = 8  // u32: recordBytes
	headSlots  = 12 // u32: a power of two
	headNames  = 16 // u64: bytes of the names' area
	headPID    = 24 // u64: the process, as it sees itself
	headLease  = 32 // u64: until when somebody records, ns of CLOCK_MONOTONIC
	headBegun  = 40 // u64: records begun

	noName  = 0xffffffff
	longest = 1024 // bytes of a name
)

// Bounds of a ring's size, so that a target cannot make the daemon map what it likes.
const (
	maxSlots = 1 << 16
	maxNames = 16 << 20 // bytes
)
