package overhead

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
)

// metered is a Source that comes and goes by itself and measures what that costs: windows of GPU records.
// It is not switched in slices.
type metered interface {
	Source
	// Cost returns what it takes of a target's time; without a Basis where nothing is known of it.
	Cost(pid uint32) recording.Cost
	// Near reports whether it comes within a time, or is there, where it ever stays away for so long.
	Near(pid uint32, within time.Duration) bool
}

// Change is a level that was changed to stay.
type Change struct {
	Source, From, To, Reason string
}

// Options are the settings of New.
type Options struct {
	Budget  float64 // share of a target's time that watching it may take
	Sources []Source
	// Pinned names sources whose level is not the governor's to change, nor to switch in slices.
	Pinned []string
	// Carrier is the source whose events are the progress of targets: in slices it goes down to the last
	// level before off.
	Carrier string
	// Even names the sources that all of a target's CPU time pays alike.
	Even  []string
	Clock func() uint64 // ns
	Seed  uint64
	Log   func(Change) // may be nil
	// Name names a function for people; may be nil.
	Name func(fn uint16) string
}

// governed is a source under the governor.
type governed struct {
	Source
	levels   []Level
	metered  metered
	level    int  // that was chosen; in a slice it may be at floor
	floor    int  // its level in slices in which it is reduced
	fixed    bool // its level is not the governor's to change
	whole    bool // it is not reduced in slices
	pinned   bool
	even     bool
	reason   string
	changed  uint64
	held     uint64        // ns: it is not raised before
	backoff  time.Duration // how long it is held the next time
	costs    []float64     // by level: what it took when it was reduced from there, -1: it never was
	measured bool          // they were measured in slices, not predicted from what it counts
	// foreseen is, by level, what it was known to take there when it was last reduced, by its counts; 0: not known.
	foreseen []float64
	from     int     // the level at which it began to be reduced,
	took     float64 // and what it was predicted to take there
	stuck    uint64  // ns: until when it is not reduced, because that did not help
	usual    float64 // what it was predicted to take at its level when it came there, -1: not known yet
	unscaled bool    // it came from a level at which it counts nothing: what costs says is of another load
}

// switched reports whether it is reduced in slices, to be measured.
func (s *governed) switched() bool { return !s.fixed && !s.whole && s.level < s.floor }

// phase is what the governor is doing.
type phase int

const (
	watching phase = iota
	settlingA
	sliceA
	settlingB
	sliceB
)

// Governor holds what watching takes of every target within the budget. Step is called by one
// goroutine; the others may be called from any.
type Governor struct {
	opts    Options
	random  *rand.Rand
	mu      sync.Mutex
	sources []*governed
	targets []*watched

	phase    phase
	on       []bool // in the slice under way
	length   uint64 // ns, of a slice
	effects  []effect
	apart    bool       // each of effects has a sign of its own
	begin    []counters // by target
	first    []slice    // by target
	began    uint64     // ns: when the pair under way did
	due      uint64     // ns: when Step is to be called
	tick     uint64     // ns: the next look
	off      float64    // ns that may still be spent with sources reduced
	filled   uint64     // ns: when off was last added to
	asked    int        // recordings that want everything from now on
	hindered bool       // a pair of slices waits until what is metered is over
	history  history
}

// Times of the governor.
const (
	tickEvery  = 1_000_000_000
	tickSoon   = 200_000_000 // where what a target pays is not known yet
	guard      = 50_000_000  // ns after a change of levels that belong to no slice
	minSlice   = 100_000_000
	maxSlice   = 1_000_000_000
	between    = 30_000_000  // ns between pairs
	retry      = 100_000_000 // ns after which a pair that something stood in the way of is tried again
	offMost    = 8e9         // ns for which sources may be reduced to be measured at once,
	offShare   = 0.03        // of all the time,
	offSuspect = 0.1         // and of that in which they seem to cost more than the budget
	recheck    = 5 * 60 * 1_000_000_000
	hold       = 30 * time.Second
	longestFor = time.Hour
	forgiven   = 10 * 60 * 1_000_000_000 // ns at a level after which its next failure counts as a first one
)

// whole are the sources that are never reduced in slices, because what they watch would be cut: requests, and what was
// allocated before a slice and not freed. Their costs are as predicted.
var whole = []string{recording.RequestsSource, recording.MemorySource}

// New returns a governor; it changes nothing before the first Step.
func New(opts Options) *Governor {
	g := &Governor{opts: opts, random: rand.New(rand.NewPCG(opts.Seed, 1)), off: offMost}
	for _, s := range opts.Sources {
		q := &governed{
			Source:  s,
			levels:  s.Levels(),
			level:   s.Level(),
			backoff: hold,
			usual:   -1,
			pinned:  slices.Contains(opts.Pinned, s.Name()),
			even:    slices.Contains(opts.Even, s.Name()),
		}
		q.metered, _ = s.(metered)
		q.floor = len(q.levels) - 1
		if s.Name() == opts.Carrier {
			q.floor = max(0, len(q.levels)-2)
		}
		q.fixed, q.whole = q.pinned, q.metered != nil || slices.Contains(whole, s.Name())
		q.costs, q.foreseen = slices.Repeat([]float64{-1}, len(q.levels)), make([]float64, len(q.levels))
		g.sources = append(g.sources, q)
		g.on = append(g.on, true)
	}
	g.history.begin(opts.Clock(), g.sources)
	return g
}

// Step does what is due, and returns when it is to be called again (ns). It may be called earlier: for a new target,
// which is looked at unless slices are under way.
func (g *Governor) Step(targets []Target) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.opts.Clock(); g.phase == watching || now >= g.due {
		g.due = g.step(now, targets)
	}
	return g.due
}

func (g *Governor) step(now uint64, targets []Target) uint64 {
	switch g.phase {
	case settlingA, settlingB:
		g.begin = g.readAll(now)
		g.phase++
		return now + g.length
	case sliceA:
		g.first = g.slices(now)
		for i := range g.on {
			if !g.alike(i) {
				g.on[i] = !g.on[i]
			}
		}
		g.set()
		g.phase = settlingB
		return g.opts.Clock() + guard
	case sliceB:
		g.finish(now)
		g.phase = watching
		return now + between
	}
	g.refill(now)
	if now >= g.tick || slices.ContainsFunc(targets, g.isNew) {
		g.look(now, targets)
		g.tick = now + tickEvery
		if slices.ContainsFunc(g.targets, func(w *watched) bool { return w.known == 0 }) {
			g.tick = now + tickSoon
		}
	}
	if g.plan() {
		g.began = g.opts.Clock()
		g.set()
		g.phase = settlingA
		return g.opts.Clock() + guard
	}
	if g.hindered {
		return min(g.tick, now+retry)
	}
	return g.tick
}

// isNew reports whether a target has not been looked at yet.
func (g *Governor) isNew(t Target) bool {
	return !slices.ContainsFunc(g.targets, func(w *watched) bool { return w.target.PID() == t.PID() })
}

// alike reports whether a source is at the same level in both slices.
func (g *Governor) alike(i int) bool {
	return !slices.ContainsFunc(g.effects, func(e effect) bool { return e.source == i })
}

func (g *Governor) readAll(now uint64) []counters {
	out := make([]counters, len(g.targets))
	for i, w := range g.targets {
		out[i] = w.read(now, g.sources)
	}
	return out
}

// slices ends those under way, one by target.
func (g *Governor) slices(now uint64) []slice {
	ends := g.readAll(now)
	out := make([]slice, len(ends))
	for i := range ends {
		out[i] = slice{g.begin[i], ends[i], slices.Clone(g.on)}
		g.noteFloor(g.targets[i], &out[i])
	}
	return out
}

// noteFloor notes what the sources that are reduced in a slice still take.
func (g *Governor) noteFloor(w *watched, s *slice) {
	took, cpu := float64(s.to.at-s.from.at), float64(s.to.cpu-min(s.to.cpu, s.from.cpu))
	for i, on := range s.on {
		if !on && took > 0 {
			share := float64(s.to.ns[i]-min(s.to.ns[i], s.from.ns[i])) / took / w.payers(g.sources[i], cpu/took, 1)
			w.floor[i] += 0.2 * (share - w.floor[i])
		}
	}
}

func (g *Governor) finish(now uint64) {
	second := g.slices(now)
	for i, w := range g.targets {
		if w.yard.ok {
			w.notePair(pair{g.first[i], second[i], slices.Clone(g.effects), g.apart})
		}
	}
	for i := range g.on {
		g.on[i] = true
	}
	g.set()
	if !g.apart { // what is known to be too much is worth its slices
		g.off -= float64(g.opts.Clock()-g.began) - float64(g.length+guard) // of which the other slice is none
	}
}

// set brings every source to the level that is wanted now.
func (g *Governor) set() {
	for i, s := range g.sources {
		want := s.level
		if !g.on[i] {
			want = s.floor
		}
		if s.Level() == want {
			continue
		}
		at := g.opts.Clock() // it records less from before the change, and more from after it
		if err := s.SetLevel(want); err != nil {
			s.fixed, s.reason = true, fmt.Sprintf("its level cannot be changed: %v", err)
		}
		if g.on[i] {
			at = g.opts.Clock()
		}
		g.history.note(at, i, want, !g.on[i])
	}
}

// refill adds to the time for which sources may be reduced.
func (g *Governor) refill(now uint64) {
	share := offShare
	if slices.ContainsFunc(g.targets, func(w *watched) bool { return w.verdict.suspect }) {
		share = offSuspect
	}
	if g.filled != 0 {
		g.off = min(offMost, g.off+share*float64(now-g.filled))
	}
	g.filled = now
}

// plan chooses what the next pair of slices compares; false: none is wanted now.
//
// Every source that can be switched is, in each pair: on in one slice and reduced in the other, in random order. All of
// them together tell the sum. Once that is known to be too much, each goes its own way, which tells them apart.
func (g *Governor) plan() bool {
	g.hindered = false
	if g.asked > 0 || !slices.ContainsFunc(g.targets, func(w *watched) bool { return w.undecided }) {
		return false
	}
	apart := slices.ContainsFunc(g.targets, func(w *watched) bool { return w.apart })
	g.length = minSlice
	for _, w := range g.targets {
		if w.undecided {
			g.length = max(g.length, min(w.yard.each*3/4, maxSlice))
		}
	}
	if !apart && g.off < float64(g.length+guard) {
		return false
	}
	if g.hindered = g.isNear(2 * (g.length + guard)); g.hindered {
		return false
	}
	g.effects, g.apart = nil, apart
	sign := g.sign()
	for i, s := range g.sources {
		if g.on[i] = true; s.switched() {
			if apart {
				sign = g.sign()
			}
			g.effects = append(g.effects, effect{column{i, s.level}, sign})
			g.on[i] = sign > 0
		}
	}
	return len(g.effects) > 0
}

// isNear reports whether what is metered comes to a target within so many ns: then it would be seen by less than all
// sources.
func (g *Governor) isNear(ns uint64) bool {
	for _, s := range g.sources {
		for _, w := range g.targets {
			if s.metered != nil && s.metered.Near(w.target.PID(), time.Duration(ns)) {
				return true
			}
		}
	}
	return false
}

func (g *Governor) sign() float64 { return float64(2*g.random.IntN(2) - 1) }

// Busy says that somebody records from now on for a time that was asked for: nothing is reduced to be measured until
// end is called.
func (g *Governor) Busy() (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked--
	})
}

// follow brings the list of targets up to date.
func (g *Governor) follow(now uint64, targets []Target) {
	for _, w := range g.targets {
		w.seen = false
	}
	for _, t := range targets {
		i := slices.IndexFunc(g.targets, func(w *watched) bool { return w.target.PID() == t.PID() })
		if i < 0 {
			g.targets = append(
				g.targets,
				&watched{
					target: t, predicted: make([]float64, len(g.sources)), floor: make([]float64, len(g.sources)),
					lower: make([][]float64, len(g.sources)), since: now,
				},
			)
			i = len(g.targets) - 1
		}
		g.targets[i].target, g.targets[i].seen = t, true
	}
	g.targets = slices.DeleteFunc(g.targets, func(w *watched) bool { return !w.seen })
	slices.SortFunc(g.targets, func(a, b *watched) int { return cmp.Compare(a.target.PID(), b.target.PID()) })
}

// look judges every target, and changes the level of one source at most.
func (g *Governor) look(now uint64, targets []Target) {
	g.follow(now, targets)
	for _, w := range g.targets {
		before, at := w.threads, w.last.at
		c := w.read(now, g.sources)
		makers := w.makers(w.target.Threads())
		w.noteCalls(float64(now-at), before)
		w.predict(c, g.sources, makers)
		if at != 0 && now > at {
			w.choose(now, float64(now-at), before)
		}
		w.forget(g.opts.Budget)
		w.settle(now)
		w.verdict = g.judge(w, now)
		w.undecided, w.apart = w.verdict.open, false
	}
	for i, s := range g.sources {
		if s.usual < 0 && now-s.changed > settled {
			s.usual = g.most(i)
			if took := s.costs[s.level]; s.unscaled && took > 0 {
				s.scale(s.level, min(1, s.usual/took))
			}
			s.unscaled = false
			g.giveUp(s, now)
		}
	}
	g.act(now)
}
