package cudaapi

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Levels of detail. Launches have modes of their own (LaunchMode).
const (
	levelEach = iota
	levelSampled
	levelNoFrequent
	levelDriver
	levelWaits
	levelOff
)

var levels = []overhead.Level{
	levelEach: {Name: "each call"},
	levelSampled: {
		Name:  "allocations sampled",
		Loses: "allocations and frees one by one, of threads that make more than 500 a second: what stays allocated",
	},
	levelNoFrequent: {Name: "no allocations", Loses: "allocations and frees"},
	levelDriver: {
		Name: "driver calls",
		Loses: "allocations and frees; calls of the runtime by their own names: each is seen as the call of the " +
			"driver that it makes",
	},
	levelWaits: {
		Name:  "waits",
		Loses: "all calls but launches, synchronizations and copies that block",
	},
	levelOff: {Name: recording.LevelOff, Loses: "synchronizations, copies and all calls but launches"},
}

// frequentCalls is how many allocations, or frees, of a thread each have an event in a second, by level.
var frequentCalls = []uint64{
	levelEach: 5000, levelSampled: 500, levelNoFrequent: 500, levelDriver: 500, levelWaits: 500, levelOff: 500,
}

// What one call costs its thread, in ns, by what is seen of it: the probe, and the program
// (docs/accuracy.md, Probes; on the machine with a GPU a launch took 700).
const (
	timedNS   = 1300
	entryNS   = 700
	skippedNS = 700
)

// Levels implements overhead.Source.
func (s *Source) Levels() []overhead.Level { return append([]overhead.Level(nil), levels...) }

// Level implements overhead.Source.
func (s *Source) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel implements overhead.Source. Probes go on or off where the level is beyond sampling, which takes
// tens of milliseconds, in which the targets run on.
func (s *Source) SetLevel(level int) error {
	if level < 0 || level >= len(levels) {
		return fmt.Errorf("CUDA calls have no level %d", level)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	all := s.setLevel(level)
	return errors.Join(s.attacher.SetFrequent(frequentCalls[level]),
		atOnce(all, func(l *library) error { return s.put(l, l.row.PID) }))
}

// setLevel returns the libraries whose probes change.
func (s *Source) setLevel(level int) (all []*library) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level >= levelWaits { // calls of NCCL were not seen
		s.comms.doubt()
	}
	s.level = level
	for _, p := range s.procs {
		all = append(all, p.libraries...)
	}
	return all
}

// put puts the probes on a library that the level wants there, and takes off the others. The caller
// holds changing.
func (s *Source) put(l *library, pid uint32) error {
	level := s.Level()
	seen := l.identity.Kind != cuda.Runtime || level < levelDriver || l.shadowed
	return errors.Join(
		s.putSome(l, pid, &l.waits, l.sites.waits, seen && level < levelOff),
		s.putSome(l, pid, &l.attachment, l.sites.plain, seen && level < levelWaits),
		s.putSome(l, pid, &l.frequent, l.sites.frequent, level < levelNoFrequent),
	)
}

func (s *Source) putSome(l *library, pid uint32, at **uprobe.Attachment, sites []uprobe.Site, on bool) error {
	if !on {
		return l.off(at)
	}
	if *at != nil || len(sites) == 0 || l.file == nil {
		return nil
	}
	made, err := s.attacher.Attach(l.file, pid, sites)
	if err == nil {
		*at = made
	}
	return err
}

// failed returns the sites that could not be probed.
func (l *library) failed() []uprobe.Failure {
	var out []uprobe.Failure
	for _, at := range []*uprobe.Attachment{l.waits, l.attachment, l.frequent} {
		if at != nil {
			out = append(out, at.Failed()...)
		}
	}
	return out
}

// Complete returns what was counted of frequent calls and is in no event yet.
func (s *Source) Complete(to uint64) []event.Event { return s.attacher.Skipped(to) }

// probedUntil is, by function, the last level at which it is probed in one library at least.
type probedUntil []int8

// put notes the level of a function.
func (u *probedUntil) put(fn uint16, level int) {
	if n := int(fn) + 1 - len(*u); n > 0 {
		*u = append(*u, make([]int8, n)...)
	}
	(*u)[fn] = max((*u)[fn], int8(level))
}

// of returns the level of a function; the first where none is known.
func (u *probedUntil) of(fn uint16) int {
	if u == nil || int(fn) >= len(*u) {
		return levelEach
	}
	return int((*u)[fn])
}

// counted counts the calls of processes.
type counted struct {
	mu    sync.Mutex
	byPID map[uint32]*spent
	all   overhead.Runs
}

// spent is what was counted of a process.
type spent struct {
	overhead.Runs
	entries    uint64               // ns that seeing launches took: only their entry is probed
	due        uint64               // ns, the part of entries that Runs does not have yet
	reportedAt uint64               // ns: when Runs was last asked for
	at         [levelOff + 1]uint64 // ns, by level, that the other calls would have taken there
}

// spread is over how long what a window of launches cost is told: a governor that looks once a second would take each
// for a storm, and reduce what costs nothing.
const spread = 4_000_000_000

// release moves of what is due as much as the time since the last call has come for.
func (s *spent) release(now uint64) {
	if s.reportedAt != 0 && now > s.reportedAt {
		out := uint64(float64(s.due) * min(1, float64(now-s.reportedAt)/spread))
		s.due, s.NS = s.due-out, s.NS+out
	}
	s.reportedAt = now
}

// account returns what the calls took, at the level in force and at the others.
func (s *spent) account() overhead.Runs {
	r := s.Runs
	launches := r.NS - s.at[0]
	for _, ns := range s.at {
		r.At = append(r.At, ns+launches)
	}
	return r
}

// note counts a call that has an event, or calls that were only counted, of a function that is probed until a level.
func (s *spent) note(e *event.Event, calls, ns uint64, until int) {
	s.Count += calls
	if e.Kind == event.Call && e.Flags&event.Timed == 0 {
		s.entries, s.due = s.entries+ns, s.due+ns
		return
	}
	s.NS += ns
	for level := 0; level <= until; level++ {
		if level == levelSampled && until == levelSampled {
			ns = min(ns, calls*skippedNS) // most have no event there
		}
		s.at[level] += ns
	}
}

// maxCounted bounds the processes whose calls are counted apart.
const maxCounted = 4096

// Observe counts what the programs said, and reads the communicators that calls use.
func (s *Source) Observe(batch []event.Event) {
	s.comms.observe(batch)
	c := &s.counted
	c.mu.Lock()
	defer c.mu.Unlock()
	var last *spent
	pid, until := uint32(0), s.until.Load()
	for i := range batch {
		n, ns := costOf(&batch[i])
		if n == 0 {
			continue
		}
		if last == nil || pid != batch[i].PID {
			pid = batch[i].PID
			last = c.of(pid)
		}
		last.note(&batch[i], n, ns, until.of(batch[i].Func))
		c.all.Count, c.all.NS = c.all.Count+n, c.all.NS+ns
	}
}

func (c *counted) of(pid uint32) *spent {
	if c.byPID == nil || len(c.byPID) >= maxCounted {
		c.byPID = map[uint32]*spent{}
	}
	r := c.byPID[pid]
	if r == nil {
		r = &spent{}
		c.byPID[pid] = r
	}
	return r
}

// launches returns what seeing the launches of a process has cost it so far.
func (c *counted) launches(pid uint32) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.byPID[pid]; r != nil {
		return time.Duration(r.entries)
	}
	return 0
}

// costOf returns how many calls an event tells of, and what seeing them cost; none where no probe did.
func costOf(e *event.Event) (calls, ns uint64) {
	switch {
	case e.Kind == event.Skipped:
		n := e.Args[0] + e.Args[1]
		return n, n * skippedNS
	case e.Kind != event.Call || e.Flags&event.Correlated != 0:
		return 0, 0
	case e.Flags&event.Timed != 0:
		return 1, timedNS
	}
	return 1, entryNS
}

// Runs implements overhead.Source. The agent's launches are none of it.
func (s *Source) Runs(pid uint32) overhead.Runs {
	c := &s.counted
	c.mu.Lock()
	defer c.mu.Unlock()
	if pid == 0 {
		return c.all
	}
	if r := c.byPID[pid]; r != nil {
		r.release(clock.Monotonic())
		return r.account()
	}
	return overhead.Runs{}
}
