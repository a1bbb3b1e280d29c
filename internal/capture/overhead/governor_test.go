package overhead

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
)

// simulated runs so many seeds on all CPUs.
func simulated(runs int, f func(seed uint64)) {
	var next atomic.Uint64
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for seed := next.Add(1); seed <= uint64(runs); seed = next.Add(1) {
				f(seed)
			}
		})
	}
	all.Wait()
}

// TestFreeSourcesStay: where sources cost nothing, noise sheds nothing: at most the error rate of 1,000 runs.
func TestFreeSourcesStay(t *testing.T) {
	runs := 1000
	if testing.Short() {
		runs = 100
	}
	var shed, decided, open atomic.Uint64
	simulated(runs, func(seed uint64) {
		w := newWorld(
			seed,
			newSource("cuda calls", 0, 0),
			newSource("scheduling", 0, 0),
			newSource("cpu samples", 0, 0),
		)
		target := w.target(150, 0.1)
		target.drift, target.burst = 0.5, 0.001
		g := w.governor(seed)
		w.pass(g, 120)
		if len(w.changes) > 0 {
			shed.Add(1)
		}
		switch v := g.targets[0].verdict; {
		case v.under:
			decided.Add(1)
		case v.open:
			open.Add(1)
		}
	})
	t.Logf("of %d runs with free sources %d shed one; after 120 s %d are decided, %d still measured",
		runs, shed.Load(), decided.Load(), open.Load())
	if float64(shed.Load()) > decideError*float64(runs) {
		t.Errorf("%d of %d runs shed a source that costs nothing", shed.Load(), runs)
	}
	if decided.Load() < uint64(runs)/2 {
		t.Errorf("only %d of %d runs came to an end", decided.Load(), runs)
	}
}

// TestLoadEnds: what was reduced under load comes back when the load ends, and does not flap while it lasts.
func TestLoadEnds(t *testing.T) {
	dear := newSource("scheduling", 0.06, 0.005)
	w := newWorld(1, newSource("cuda calls", 0.002, 0.001), dear, newSource("cpu samples", 0.003, 0.001))
	target := w.target(500, 0.1)
	g := w.governor(1)
	w.pass(g, 300)
	if dear.level != 1 {
		t.Errorf("under load the dear source is at level %d, want 1", dear.level)
	}
	if len(w.changes) > 5 {
		t.Errorf("%d changes in 300 s of one load: it flaps", len(w.changes))
	}
	target.load = 0.1
	w.pass(g, 600)
	if dear.level != 0 {
		t.Errorf("10 minutes after the load has ended the source is still at level %d", dear.level)
	}
	target.load = 1
	lost := w.pass(g, 60)
	if dear.level == 0 {
		t.Error("the load is back, and the source is not reduced again within 60 s")
	}
	t.Logf("in the minute after the load was back it lost %.1f%%", 100*lost)
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestFarBeyondTheBudget: what is predicted far beyond the budget is reduced at once, level after level.
func TestFarBeyondTheBudget(t *testing.T) {
	dear := newSource("cuda calls", 0.2, 0.15, 0.1)
	w := newWorld(5, dear)
	w.target(500, 0.1)
	g := w.governor(5)
	w.pass(g, 3)
	if dear.level != 3 {
		t.Errorf("after 3 s the source is at level %d, want 3", dear.level)
	}
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestNewTargetIsJudgedSoon: what is far beyond the budget of a target that comes between two looks is reduced within half
// a second, also where another one is known; slices under way are not cut short.
func TestNewTargetIsJudgedSoon(t *testing.T) {
	for known := range 2 {
		dear := newSource("cuda calls", 0.2)
		w := newWorld(5, dear)
		g := w.governor(5)
		var list []Target
		for range known {
			idle := w.target(500, 0.1)
			idle.load = 0.001
			list = append(list, idle)
		}
		for end := w.now + 3e9; w.now < end || g.phase != watching; {
			next := max(w.now+1e6, g.Step(list))
			for _, q := range w.targets {
				q.run(w.now, next)
			}
			w.now = next
		}
		g.Step(list)
		w.now += 1e6 // the look before is just over
		target := w.target(500, 0.1)
		target.next = float64(w.now)
		came := w.now
		for dear.level == 0 && w.now < came+2e9 {
			w.pass(g, 0.01)
		}
		if took := (w.now - came) / 1e6; took > 500 {
			t.Errorf("with %d other targets, the source was reduced after %d ms, want 500 at most", known, took)
		}
	}
}

// TestLevelsInBetweenAreLeftOut: a source that knows what it takes at other levels goes at once to the first at which
// that is not far beyond the budget, and comes back by all of them.
func TestLevelsInBetweenAreLeftOut(t *testing.T) {
	dear := newSource("cuda calls", 0.08, 0.06, 0.05, 0.001)
	dear.tells = true
	w := newWorld(5, dear)
	target := w.target(500, 0.1)
	g := w.governor(5)
	w.pass(g, 0.8)
	if dear.level != 3 || len(w.changes) != 1 {
		t.Errorf("after 0.8 s the source is at level %d after %d changes, want 3 after 1", dear.level, len(w.changes))
	}
	w.pass(g, 10)
	target.load = 0.05
	w.pass(g, 600)
	if dear.level != 0 {
		t.Errorf("10 minutes after the load has ended the source is still at level %d", dear.level)
	}
	for _, c := range w.changes {
		if c.Reason == "" {
			t.Errorf("from %q to %q without a reason", c.From, c.To)
		}
	}
	if s := g.State(target.pid, 0, w.now); s.Sources[0].Reason != "" {
		t.Errorf("a source at full detail has the reason %q", s.Sources[0].Reason)
	}
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestLastLevelIsTriedBeforeOff: a source that would fit by itself at its last level is not turned off for what another
// takes, and a level that saves nothing is left out.
func TestLastLevelIsTriedBeforeOff(t *testing.T) {
	dear, other := newSource("scheduling", 0.05, 0.05, 0.02), newSource("cuda calls", 0.03, 0)
	dear.tells = true
	w := newWorld(5, dear, other)
	w.target(500, 0.1)
	g := w.governor(5)
	w.pass(g, 0.8)
	if len(w.changes) == 0 || w.changes[0].Source != dear.name || w.changes[0].To != "level 2" {
		t.Errorf("the first change is not one of %s to level 2", dear.name)
	}
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestChangesTakeTime: probes come off slowly. What they cost until then is no reason to reduce another source.
func TestChangesTakeTime(t *testing.T) {
	dear, other := newSource("cuda calls", 0.2), newSource("cpu samples", 0.004, 0.002)
	w := newWorld(5, dear, other)
	target := w.target(500, 0.1)
	dear.slow = func() {
		target.run(w.now, w.now+1e9)
		w.now += 1e9
	}
	w.pass(w.governor(5), 5)
	if len(w.changes) != 1 || w.changes[0].Source != dear.name {
		t.Errorf("%d changes, want one of the dear source: %+v", len(w.changes), w.changes)
	}
	if t.Failed() {
		logChanges(t, w)
	}
}

// TestNothingToMeasureBy: a target without an even signal, or without any, is held to what is predicted.
func TestNothingToMeasureBy(t *testing.T) {
	for name, spoil := range map[string]func(*fakeTarget){
		"irregular": func(f *fakeTarget) { f.irregular, f.rate = true, 40 },
		"silent":    func(f *fakeTarget) { f.silent, f.rate = true, 5000 },
	} {
		t.Run(name, func(t *testing.T) {
			dear := newSource("scheduling", 0.05, 0.004)
			w := newWorld(3, newSource("cuda calls", 0.002, 0.001), dear)
			target := w.target(500, 0.1)
			spoil(target)
			g := w.governor(3)
			w.pass(g, 8)
			s := g.State(target.pid, 0, w.now)
			if dear.level != 1 || s.Total.Basis != recording.CostPredicted {
				t.Errorf("after 8 s the source is at level %d and the cost is %s, want 1 and predicted: %+v",
					dear.level, s.Total.Basis, s)
			}
			if lost := w.pass(g, 30); lost > 0.02 {
				t.Errorf("it still pays %.1f%%", 100*lost)
			}
			if dear.sets > 3 || w.sources[0].sets > 0 {
				t.Errorf("levels were set %d and %d times though there is nothing to measure by",
					dear.sets, w.sources[0].sets)
			}
		})
	}
}

// TestWaitsForTheGPU: what a target pays whose threads wait for the GPU in calls is a share of its steps, not only of
// the CPU time in them: they do not become slower by more.
func TestWaitsForTheGPU(t *testing.T) {
	dear := newSource("scheduling", 0.05, 0.004) // of its CPU time, and a tenth of that of its steps
	w := newWorld(3, newSource("cuda calls", 0.002, 0.001), dear)
	target := w.target(500, 0.01)
	target.waits = 9
	g := w.governor(3)
	w.pass(g, 30)
	if s := g.State(target.pid, 0, w.now); dear.level != 0 || s.Total.Share > 0.015 {
		t.Errorf("a source that makes a step 0.5%% longer is at level %d, and all cost %+v", dear.level, s.Total)
	}
	target.waits = 0
	w.pass(g, 30)
	if dear.level == 0 {
		t.Errorf("without waits it pays 5%%: %+v", g.State(target.pid, 0, w.now))
	}
}

// TestByTheClock: a target that works when the clock says so is as fast as ever whatever it pays. Its CPU time tells.
func TestByTheClock(t *testing.T) {
	dear := newSource("scheduling", 0.10, 0.004)
	dear.claims = []float64{0.001, 0.001, 0}
	w := newWorld(5, newSource("cuda calls", 0.002, 0.001), dear)
	target := w.target(500, 0.1)
	target.clocked = true
	g := w.governor(5)
	w.pass(g, 40)
	s := g.State(target.pid, 0, w.now)
	if dear.level == 0 {
		t.Errorf("a source that takes 10%% of its CPU time is as it was: %+v", s)
	}
}

// TestNearlyIdle: a program that allocates 350 times a second and sleeps else pays 0.11% of a CPU for seeing that, much
// of its own CPU time, which is said. Nothing is reduced for that; what takes 1% of a CPU is.
func TestNearlyIdle(t *testing.T) {
	const (
		perSecond = 350
		work      = 57e3             // ns of an allocation and what is done with it: 2% of a CPU in all
		run       = 1500 + 700 + 925 // ns of probes on it and on its free, and of the stacks of some
	)
	for i, name := range []string{recording.MemorySource, recording.RequestsSource, "measured", "too"} {
		seed := uint64(i)
		allocations := newSource(name, run/work, 0.7*run/work)
		w := newWorld(seed, newSource("cuda calls", 0.002, 0.001), allocations)
		target := w.target(1e9/work, 0.05)
		target.sleeps = 1e9/perSecond/work - 1
		g := w.governor(seed)
		w.pass(g, 120)
		s := g.State(target.pid, 0, w.now)
		const truth = run/work + 0.002
		if len(w.changes) > 0 || s.Total.Share < 0.8*truth || s.Total.Share > 1.25*truth ||
			!strings.HasPrefix(s.State, "within the budget") || !strings.Contains(s.State, "of a quarter of a CPU") {
			t.Errorf("seed %d: %.1f%% is paid, and said to be %.1f%%: %s", seed, 100*truth, 100*s.Total.Share, s.State)
			logChanges(t, w)
		}
		allocations.cost, allocations.claims = []float64{0.5, 0.02, 0}, []float64{0.5, 0.02, 0}
		if w.pass(g, 30); allocations.level == 0 {
			t.Errorf("seed %d: a source that takes 1%% of a CPU is as it was: %+v", seed, g.State(target.pid, 0, w.now))
		}
	}
}

// TestNothingIsSwitchedForARecording: while somebody records from now on, no source is reduced to be measured,
// and what time that took before is told.
func TestNothingIsSwitchedForARecording(t *testing.T) {
	dear := newSource("scheduling", 0.001)
	w := newWorld(6, dear)
	target := w.target(100, 0.3)
	target.drift = 2
	g := w.governor(6)
	w.pass(g, 12)
	if dear.sets == 0 {
		t.Fatal("nothing was measured in 12 s")
	}
	end := g.Busy()
	w.pass(g, 2) // the pair under way
	before := dear.sets
	from := w.now
	w.pass(g, 30)
	if dear.sets != before {
		t.Errorf("the level was set %d times during a recording", dear.sets-before)
	}
	if s := g.State(target.pid, from, w.now); len(s.Sources[0].Shares) != 1 || s.Sources[0].Shares[0].Share != 1 {
		t.Errorf("shares of the recording's time are %+v, want all of it at one level", s.Sources[0].Shares)
	}
	if s := g.State(target.pid, 1e12, from); len(s.Sources[0].Shares) != 2 ||
		s.Sources[0].Shares[1].Level != recording.LevelMeasuring {
		t.Errorf("shares of the time before are %+v, want some for measuring", s.Sources[0].Shares)
	}
	end()
	w.pass(g, 30)
	if dear.sets == before {
		t.Error("nothing is measured after the recording")
	}
}

// TestWhole: a source that slices would cut is not switched, and is reduced by what is predicted of it.
func TestWhole(t *testing.T) {
	for _, name := range []string{recording.RequestsSource, recording.MemorySource} {
		cut := newSource(name, 0.001)
		w := newWorld(9, newSource("scheduling", 0.005), cut)
		target := w.target(100, 0.3)
		g := w.governor(9)
		w.pass(g, 30)
		if w.sources[0].sets == 0 || cut.sets > 0 {
			t.Errorf("%s: levels were set %d and %d times, want some and none", name, w.sources[0].sets, cut.sets)
		}
		if s := g.State(target.pid, 0, w.now); s.Sources[1].Cost.Basis != recording.CostPredicted {
			t.Errorf("%s: its cost is %+v", name, s.Sources[1].Cost)
		}
		cut.cost[0], cut.claims[0] = 0.05, 0.05
		w.pass(g, 10)
		if cut.level == 0 {
			t.Errorf("%s: at 5%% it is not reduced: %+v", name, g.State(target.pid, 0, w.now))
		}
	}
}

// TestMeasuringIsBounded: a target that cannot be decided about is not measured for more than its share of the time,
// also where a change of level takes long.
func TestMeasuringIsBounded(t *testing.T) {
	s := newSource("scheduling", 0.005)
	w := newWorld(8, s)
	target := w.target(100, 0.5)
	target.drift = 3
	s.slow = func() {
		target.run(w.now, w.now+100e6)
		w.now += 100e6
	}
	g := w.governor(8)
	w.pass(g, 600)
	for _, l := range g.State(target.pid, 1e12, w.now).Sources[0].Shares {
		if l.Level == recording.LevelMeasuring && l.Share > 0.05 {
			t.Errorf("%.1f%% of the time went into measuring", 100*l.Share)
		}
	}
}

// TestWhatDoesNotHelpIsUndone: a source whose cost no level changes gets its first level back, and those that cost next
// to nothing are not reduced in its place.
func TestWhatDoesNotHelpIsUndone(t *testing.T) {
	dear, cheap := newSource("cuda calls", 0.05, 0.05), newSource("cpu samples", 0.0005, 0.0002)
	dear.cost[2], dear.claims[2] = 0.05, 0.05
	w := newWorld(10, dear, cheap)
	target := w.target(500, 0.1)
	target.silent = true
	g := w.governor(10)
	w.pass(g, 60)
	if dear.level != 0 || cheap.level != 0 {
		t.Errorf("levels are %d and %d, want both at the first", dear.level, cheap.level)
		logChanges(t, w)
	}
	if s := g.State(target.pid, 0, w.now); s.Sources[0].Reason == "" || s.Total.Share < 0.04 {
		t.Errorf("what it costs, and that nothing helps, is not said: %+v", s)
	}
}

// TestPinnedStays: a level that is pinned is not changed, whatever it costs.
func TestPinnedStays(t *testing.T) {
	dear := newSource("scheduling", 0.2, 0.01)
	w := newWorld(9, dear, newSource("cuda calls", 0.002, 0.001))
	w.target(500, 0.1)
	g := New(Options{
		Budget:  0.02,
		Sources: []Source{dear, w.sources[1]},
		Pinned:  []string{"scheduling"},
		Clock:   func() uint64 { return w.now },
	})
	w.pass(g, 60)
	if dear.sets != 0 {
		t.Errorf("a pinned level was set %d times", dear.sets)
	}
}

// TestTimeUniform: looked at after every pair, an interval is left by the truth in less than 5% of the runs, whatever
// the noise is like.
func TestTimeUniform(t *testing.T) {
	const runs, most, truth = 200, 200, 0.01
	walk := 0.0
	for name, noise := range map[string]func(r *rand.Rand, i int) float64{
		"normal":  func(r *rand.Rand, _ int) float64 { return 0.03 * r.NormFloat64() },
		"pauses":  func(r *rand.Rand, _ int) float64 { return 0.02 * r.NormFloat64() / max(0.01, r.Float64()) },
		"one way": func(r *rand.Rand, _ int) float64 { return 0.1 * r.ExpFloat64() },
		"periods": func(r *rand.Rand, i int) float64 { return 0.05*math.Sin(float64(i)/2) + 0.01*r.NormFloat64() },
		"a walk":  func(r *rand.Rand, _ int) float64 { walk += 0.01 * r.NormFloat64(); return walk },
		"steps":   func(_ *rand.Rand, i int) float64 { return 0.04 * float64(i/50) },
	} {
		left, width := 0, 0.0
		for seed := range uint64(runs) {
			r := rand.New(rand.NewPCG(seed, 3))
			var added []float64
			out := false
			walk = 0
			for i := range most {
				added = append(added, truth+float64(2*r.IntN(2)-1)*noise(r, i))
				if i%4 > 0 {
					continue
				}
				v := estimate(added)
				out = out || v.low > truth || v.high < truth
				width = v.half()
			}
			if out {
				left++
			}
		}
		t.Logf("%s: of %d runs of %d pairs %d left the interval, which is at last %.2f%% to each side",
			name, runs, most, left, 100*width)
		if left > runs*5/100 {
			t.Errorf("%s: %d of %d runs left the interval", name, left, runs)
		}
	}
}

// TestProgressRate: a regular loop has no error of counting, and what was not drained yet is not taken for a stop.
func TestProgressRate(t *testing.T) {
	p := NewProgress()
	key := Key{TID: 1, Func: 2}
	const period = 7_300_000
	for i := range uint64(1000) {
		p.Note(key, 1e9+i*period, 0)
	}
	for from := uint64(2e9); from < 6e9; from += 170e6 {
		if r, ok := p.rateOf(key, from, from+150e6); !ok || math.Abs(r-1e9/period) > 0.01 {
			t.Fatalf("in [%d, +150 ms) it is %.2f a second (%v), want %.2f", from, r, ok, 1e9/period)
		}
	}
	last := uint64(1e9 + 999*period)
	if _, ok := p.rateOf(key, last-50e6, last+100e6); ok {
		t.Error("a rate is told for a time whose events have not come")
	}
	if _, ok := p.rateOf(key, last-50e6, last+uint64(time.Hour)); ok {
		t.Error("a rate is told for a time that is still to come")
	}
}

// TestSignalsAreBounded: a target that calls everything from ever new threads takes no more memory.
func TestSignalsAreBounded(t *testing.T) {
	p := NewProgress()
	for i := range uint64(100_000) {
		p.Note(Key{TID: uint32(i), Func: uint16(i)}, 1e9+i*1e6, 1)
	}
	if n := len(p.signals); n > maxSignals {
		t.Errorf("%d signals are remembered, at most %d", n, maxSignals)
	}
}
