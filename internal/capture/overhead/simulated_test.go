package overhead

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
)

// world is a simulated machine: a clock, sources with costs, and a target that pays them.
type world struct {
	now     uint64
	random  *rand.Rand
	sources []*fakeSource
	targets []*fakeTarget
	changes []Change
}

type fakeSource struct {
	name   string
	levels []Level
	level  int
	cost   []float64 // true cost by level, share of the target's time at load 1
	claims []float64 // what its counters predict
	tells  bool      // what it would take at levels beyond the one in force
	sets   int
	slow   func() // what happens while its level is changed; may be nil
}

func (s *fakeSource) Name() string     { return s.name }
func (s *fakeSource) Levels() []Level  { return s.levels }
func (s *fakeSource) Level() int       { return s.level }
func (s *fakeSource) Runs(uint32) Runs { return Runs{} }

func (s *fakeSource) SetLevel(level int) error {
	if s.slow != nil {
		s.slow()
	}
	s.level = level
	s.sets++
	return nil
}

// fakeWindows are on for a while in each period.
type fakeWindows struct {
	*fakeSource
	clock      func() uint64
	on, period uint64
}

func (f *fakeWindows) Cost(uint32) recording.Cost {
	share := f.cost[f.level]
	return recording.Cost{Share: share, Low: share / 2, High: share * 2, Basis: recording.CostPredicted}
}

func (f *fakeWindows) Near(_ uint32, within time.Duration) bool {
	return f.touches(f.clock(), uint64(within))
}

// touches reports whether a window lies in the ns after a time.
func (f *fakeWindows) touches(from, ns uint64) bool {
	at := from % f.period
	return at < f.on || at+ns > f.period
}

// newSource makes one whose cost falls by level as given; "off" costs nothing.
func newSource(name string, cost ...float64) *fakeSource {
	s := &fakeSource{name: name, cost: append(cost, 0), claims: append(append([]float64{}, cost...), 0)}
	for i := range cost {
		s.levels = append(s.levels, Level{Name: fmt.Sprintf("level %d", i), Loses: "something"})
	}
	s.levels[0].Loses = ""
	s.levels = append(s.levels, Level{Name: "off", Loses: "everything"})
	return s
}

// fakeTarget makes a step, then another.
type fakeTarget struct {
	world     *world
	pid       uint32
	progress  *Progress
	rate      float64 // steps a second, unwatched
	noise     float64 // of one step, as a share
	drift     float64 // slow noise of its speed
	burst     float64 // probability that a step is a pause of 20
	prefill   float64 // probability that a step begins an answer too, and takes 3 times as long
	load      float64 // events a step against usual; what it pays is in proportion
	upset     float64 // ns: until then it is slower by a third
	irregular bool
	silent    bool    // makes no call
	clocked   bool    // sleeps until the next step is due
	waits     float64 // times its work for which a step waits for the GPU, in a call
	sleeps    float64 // likewise, not in a call
	next      float64 // ns: end of the step under way
	speed     float64
	cpu       float64
	ns        []float64
	at        [][]uint64 // by source and level
	switches  float64
	paid      float64 // ns
}

func (t *fakeTarget) PID() uint32                   { return t.pid }
func (t *fakeTarget) Progress() *Progress           { return t.progress }
func (t *fakeTarget) CPU() uint64                   { return uint64(t.cpu) }
func (t *fakeTarget) Disturbed(uint64, uint64) bool { return false }
func (t *fakeTarget) Threads() []Thread {
	return []Thread{{TID: t.pid, CPU: uint64(t.cpu), Switches: uint64(t.switches)}}
}

func (t *fakeTarget) Runs(s Source) Runs {
	for i, k := range t.world.sources {
		if s == Source(k) {
			return Runs{NS: uint64(t.ns[i]), At: slices.Clone(t.at[i])}
		}
	}
	return Runs{}
}

// pays is the share of its time that the sources take now.
func (t *fakeTarget) pays() float64 {
	sum := 0.0
	for _, s := range t.world.sources {
		sum += s.cost[s.level] * t.load
	}
	return sum
}

// run goes on until the time to.
func (t *fakeTarget) run(from, to uint64) {
	r := t.world.random
	for t.next < float64(to) {
		begin := max(t.next, float64(from))
		t.speed += 0.001*t.drift*r.NormFloat64() - 0.0005*t.speed
		work := 1e9 / t.rate * math.Exp(t.speed)
		if t.noise > 0 {
			work *= math.Exp(t.noise*r.NormFloat64() - t.noise*t.noise/2)
		}
		if t.irregular {
			work = 1e9 / t.rate * math.Exp(2.5*r.NormFloat64())
		}
		if t.burst > 0 && r.Float64() < t.burst {
			work *= 20
		}
		if t.prefill > 0 && r.Float64() < t.prefill {
			work *= 3
		}
		if begin < t.upset {
			work *= 4 / 3.
		}
		took := work * math.Exp(t.pays())
		if !t.silent {
			t.progress.Note(Key{TID: t.pid, Func: 7}, uint64(begin), uint64(t.waits*work))
		}
		t.paid += took - work
		t.cpu += took
		t.switches++
		if t.clocked {
			took = max(took, 2*work)
		}
		ran := took
		took += (t.waits + t.sleeps) * work
		for i, s := range t.world.sources {
			t.ns[i] += ran * s.claims[s.level] * t.load
			for level := range t.at[i] {
				t.at[i][level] += uint64(ran * s.claims[max(level, s.level)] * t.load)
			}
		}
		t.next = begin + took
	}
}

func newWorld(seed uint64, sources ...*fakeSource) *world {
	return &world{now: 1e12, random: rand.New(rand.NewPCG(seed, 7)), sources: sources}
}

func (w *world) target(rate, noise float64) *fakeTarget {
	t := &fakeTarget{
		world:    w,
		pid:      uint32(100 + len(w.targets)),
		progress: NewProgress(),
		rate:     rate,
		noise:    noise,
		load:     1,
		ns:       make([]float64, len(w.sources)),
		at:       make([][]uint64, len(w.sources)),
	}
	for i, s := range w.sources {
		if s.tells {
			t.at[i] = make([]uint64, len(s.levels))
		}
	}
	w.targets = append(w.targets, t)
	return t
}

func (w *world) governor(seed uint64) *Governor {
	var sources []Source
	for _, s := range w.sources {
		sources = append(sources, s)
	}
	return New(Options{
		Budget:  0.02,
		Sources: sources,
		Clock:   func() uint64 { return w.now },
		Seed:    seed,
		Log:     func(c Change) { w.changes = append(w.changes, c) },
	})
}

// pass lets so many seconds go by, and returns the share of time that a target lost meanwhile.
func (w *world) pass(g *Governor, seconds float64) float64 {
	var list []Target
	for _, t := range w.targets {
		list = append(list, t)
	}
	paid := w.targets[0].paid
	end := w.now + uint64(seconds*1e9)
	for w.now < end {
		next := min(max(g.Step(list), w.now+1e6), end)
		for _, t := range w.targets {
			t.run(w.now, next)
		}
		w.now = next
	}
	for _, t := range w.targets {
		if s := g.State(t.pid, 0, w.now); s != nil {
			if _, err := json.Marshal(s); err != nil {
				panic(err) // an infinite bound
			}
		}
	}
	return (w.targets[0].paid - paid) / (seconds * 1e9)
}

func logChanges(t *testing.T, w *world) {
	for _, c := range w.changes {
		t.Logf("%s: %s -> %s: %s", c.Source, c.From, c.To, c.Reason)
	}
}

// TestWindowsAreSeenByAllSources: no source is reduced to be measured while a window is open, and they are measured all
// the same.
func TestWindowsAreSeenByAllSources(t *testing.T) {
	dear, other := newSource("scheduling", 0.03, 0.006), newSource("cpu samples", 0.004, 0.001)
	w := newWorld(3, dear, other)
	target := w.target(770, 0.1)
	windows := &fakeWindows{newSource("gpu windows", 0.001), func() uint64 { return w.now }, 2e8, 2e9}
	g := New(Options{
		Budget:  0.02,
		Sources: []Source{dear, other, windows},
		Clock:   func() uint64 { return w.now },
		Log:     func(c Change) { w.changes = append(w.changes, c) },
	})
	target.ns = make([]float64, 3)
	began := w.now
	w.pass(g, 60)
	pauses := 0
	for _, s := range g.State(target.pid, began, w.now).Sources {
		for _, p := range s.Paused {
			pauses++
			if windows.touches(p.From, p.To-p.From) {
				t.Errorf("%s was paused for %d ms from %d ms after a window began",
					s.Name, (p.To-p.From)/1e6, p.From%windows.period/1e6)
			}
		}
	}
	if pauses < 10 {
		t.Errorf("there were %d pauses in a minute: nothing is known of what sources cost", pauses)
	}
	if dear.level == 0 {
		t.Error("the source that costs 3% is as it was")
	}
}

// TestDearWindowsBecomeRarer: windows that are predicted to cost too much are made rarer within seconds, and stay so
// while they cost that.
func TestDearWindowsBecomeRarer(t *testing.T) {
	other := newSource("cuda calls", 0.001)
	w := newWorld(3, other)
	target := w.target(770, 0.1)
	target.ns = make([]float64, 2)
	windows := &fakeWindows{newSource("gpu windows", 0.08, 0.04, 0.022, 0.01), func() uint64 { return w.now }, 2e8, 2e9}
	g := New(Options{
		Budget: 0.02, Sources: []Source{other, windows}, Clock: func() uint64 { return w.now },
		Log: func(c Change) { w.changes = append(w.changes, c) },
	})
	w.pass(g, 12)
	if windows.level != 3 {
		t.Errorf("after 12 s windows are at level %d, want 3", windows.level)
	}
	if s := g.State(target.pid, 0, w.now).Sources[1]; s.Cost.Basis != recording.CostPredicted {
		t.Errorf("what they cost is said as %+v, want a prediction", s.Cost)
	}
	w.pass(g, 300)
	if windows.level != 3 || len(w.changes) != 3 {
		t.Errorf("after 300 s windows are at level %d after %d changes, want 3 and 3", windows.level, len(w.changes))
	}
	for i := range windows.cost {
		windows.cost[i] /= 10
	}
	w.pass(g, 300)
	if windows.level != 0 {
		t.Errorf("windows that have become cheap are at level %d", windows.level)
	}
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestPredictionCountsWhereSlicesTellNothing: a server whose steps differ so much that slices are off by more than the
// budget is held to what windows are predicted to cost.
func TestPredictionCountsWhereSlicesTellNothing(t *testing.T) {
	for seed := range uint64(10) {
		other := newSource("cpu samples", 0.001)
		w := newWorld(seed, other)
		target := w.target(770, 0.1)
		target.drift, target.ns = 3, make([]float64, 2)
		windows := &fakeWindows{newSource("gpu windows", 0.007, 0.007), func() uint64 { return w.now }, 2e8, 2e9}
		g := New(Options{Budget: 0.02, Sources: []Source{other, windows}, Clock: func() uint64 { return w.now }})
		w.pass(g, 30)
		windows.cost = []float64{0.028, 0.014, 0}
		w.pass(g, 30)
		if windows.level != 1 || other.level != 0 {
			t.Errorf("seed %d: after a minute windows are at level %d and samples at %d, want 1 and 0: %+v",
				seed, windows.level, other.level, g.State(target.pid, 0, w.now))
		}
	}
}

// TestShedsTheDearSource: a source costs far more than its counters tell, as thread switches did of a real
// server; it is found and reduced, the others stay as they are.
func TestShedsTheDearSource(t *testing.T) {
	for seed := range uint64(20) {
		cheap, dear, other := newSource("cuda calls", 0.003, 0.001),
			newSource("scheduling", 0.12, 0.006), newSource("cpu samples", 0.004, 0.002, 0.001)
		dear.claims = []float64{0.007, 0.0005, 0}
		w := newWorld(seed, cheap, dear, other)
		target := w.target(770, 0.1)
		target.drift, target.burst = 0.5, 0.001
		g := w.governor(seed)
		w.pass(g, 40)
		if dear.level == 0 {
			t.Errorf("seed %d: after 40 s the source that costs 12%% is as it was", seed)
		}
		w.pass(g, 60)
		lost := w.pass(g, 60)
		if lost > 0.02 {
			t.Errorf("seed %d: it still pays %.1f%%", seed, 100*lost)
		}
		if levels := g.sources; levels[0].level != 0 || levels[2].level > 1 {
			t.Errorf("seed %d: sources that cost little were reduced: %d, %d", seed, levels[0].level, levels[2].level)
			logChanges(t, w)
		}
		if s := g.State(target.pid, w.now-60e9, w.now); seed == 0 {
			t.Logf("%+v", s)
			logChanges(t, w)
		}
	}
}
