package gpu

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// checkSteps: of each window it is known what its steps took, and they lie around the on for which it was open.
func checkSteps(t *testing.T, a recording.AgentStatus, on time.Duration) {
	t.Helper()
	if len(a.Steps) != int(a.Windows) {
		t.Errorf("%d windows, the steps of %d", a.Windows, len(a.Steps))
	}
	for _, w := range a.Steps {
		if w.Began+w.Subscribe+w.SetUp+w.Callbacks+w.Kinds > w.Opened || w.Opened+uint64(on) > w.Off ||
			w.Disable == 0 ||
			w.Finalize == 0 {
			t.Errorf("the steps of a window are %+v", w)
		}
	}
}

// TestRareCalls: a server that answers few requests makes a call each second, the next one long after
// the time for which a thread is waited for at first.
func TestRareCalls(t *testing.T) {
	opts := simOptions(t, Windows)
	v := cudasim.Start(t, cudasim.Options{}, "until { launch 1; sleep 900ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	eventually(t, "the agent runs", func() bool { return stateOf(s, p.PID) == string(running) })
}

// TestLongSubscription: a step can say no more of itself than 32 bits of ns; what a longer subscription took follows
// from the others.
func TestLongSubscription(t *testing.T) {
	const began, opened = 1_000_000_000, 21_000_000_000
	for subscribe, want := range map[uint64]uint64{9_000_000: 9_000_000, 1<<32 - 1: opened - began - 600} {
		f := newFacts(1)
		f.took(
			recording.WindowSteps{Began: began, Subscribe: subscribe, SetUp: 100, Callbacks: 200, Kinds: 300},
			opened,
			opened+5,
		)
		if got := f.lastSteps(); len(got) != 1 || got[0].Subscribe != want {
			t.Errorf("a subscription that says %d ns took %+v, want %d", subscribe, got, want)
		}
	}
	f := newFacts(1)
	f.took(
		recording.WindowSteps{Began: began, Subscribe: 1<<32 - 1, SetUp: 1<<32 - 1},
		began+5,
		began+6,
	) // what a hostile ring may say
	if got := f.lastSteps(); len(got) != 1 || got[0].Subscribe != 1<<32-1 {
		t.Errorf("steps that do not fit into their window: %+v", got)
	}
}

// TestWhoFinalized: what a thread of the process itself has to do on the way out is a cost of the window, what the
// agent's does is not.
func TestWhoFinalized(t *testing.T) {
	const opened, dur, left = 2_000_000, 200_000_000, 7_000_000
	for own, held := range map[bool]uint64{false: left, true: 0} {
		f := newFacts(1)
		d := decoder{facts: f, now: 1_000_000_000, pid: 1}
		w := event.Event{
			Kind:  event.Kind(kindWindow),
			TS:    opened,
			Dur:   dur,
			Flags: event.Timed,
			Func:  windowCalls,
			Ret:   endFinalized,
			Args:  [4]uint64{1, 0, 1_000_000, left},
		}
		if own {
			w.Func |= windowOwn
		}
		for _, e := range []event.Event{
			{Kind: event.Kind(kindOpened), TS: opened, Args: w.Args},
			{Kind: event.Kind(kindSteps), TS: opened - 1_000_000},
			w,
		} {
			d.decode(&e)
		}
		if steps := f.lastSteps(); len(steps) != 1 || steps[0].Own != own || f.last.held != held ||
			!f.windows[0].Calls ||
			d.count.malformed != 0 {
			t.Errorf("own %t: steps %+v, %d ns held, windows %+v, %d malformed; want %d held",
				own, steps, f.last.held, f.windows, d.count.malformed, held)
		}
	}
}
