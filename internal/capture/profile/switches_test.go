package profile_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// switchesOf returns the switch samples of a thread.
func switchesOf(events []event.Event, tid uint32) []event.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
		return e.TID != tid || e.Func != uint16(event.Switch)
	})
}

// Stacks of switches are those that went to sleep.
func TestSwitches(t *testing.T) {
	python := pythonOrSkip(t)
	s := newSource(t, profile.Options{Hz: 99, OwnOnly: true, Switches: 50})
	v := start(t, python, "testdata/victim.py", "wait")
	v.Line()
	s.follow(v.pid())
	s.until("switches", func(e []event.Event) bool { return len(switchesOf(e, v.pid())) >= 30 })
	for _, e := range switchesOf(s.events, v.pid()) {
		frames := s.stack(e)
		if names := names(frames, recording.PythonFrame); first(names) != "waits" {
			t.Fatalf("Python frames are %q", names)
		}
		if len(names(frames, recording.KernelFrame)) == 0 {
			t.Fatal("a switch has no kernel frames")
		}
	}
}

// A thread that switches often gives as many samples in its fourth second as in its first, and
// not more than its half of the budget; beside it one that switches rarely has nearly all of its switches. The events
// are those of threads: events of a CPU leave switches out where other programs make the CPU switch very often.
func TestSwitchesKeepComing(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.PerThread(profile.Options{OwnOnly: true, Switches: 200}))
	v := start(t, buildBusy(t), "rates")
	often, rare := v.tid(t, "often"), v.tid(t, "rare")
	var from, to [4]switchCount // of often, in each second
	s.follow(v.pid())
	rareFrom := countSwitches(t, rare)
	begin := clock.Monotonic()
	s.until("four seconds", func([]event.Event) bool {
		n := countSwitches(t, often)
		if i := (n.read - begin) / uint64(time.Second); i < uint64(len(to)) {
			if from[i].read == 0 {
				from[i] = n
			}
			to[i] = n
			return false
		}
		return true
	})
	rareTo := countSwitches(t, rare)
	s.Feed(0, func(batch []event.Event) { s.events = append(s.events, batch...) })
	for i := range to {
		got := 0
		for _, e := range switchesOf(s.events, often) {
			if e.TS >= from[i].read && e.TS <= to[i].before {
				got++
			}
		}
		// Its half of the budget are 10 samples in a tenth of a second, which begins anywhere.
		waits := to[i].waits - from[i].waits
		if got < waits/10 || got > 112 {
			t.Errorf("second %d: %d samples of %d waits; the budget gives it 100", i+1, got, waits)
		}
	}
	if got, waits := len(switchesOf(s.events, rare)), rareTo.waits-rareFrom.waits; got < waits*9/10-1 ||
		waits < 10 { // on a busy machine some are missed; a share of the budget would be a few
		t.Errorf("%d samples of %d waits of the thread that waits rarely", got, waits)
	}
}

// Of a thread that waits for long and briefly by turns both waits have their share of the stacks:
// what it does after a long wait must not take the place of the wait.
func TestSwitchesOfAllKinds(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{OwnOnly: true, Switches: 200})
	v := start(t, buildBusy(t), "turns")
	s.follow(v.tid(t, "main"))
	const enough = 200
	s.until("switches", func(e []event.Event) bool { return len(switchesOf(e, v.pid())) >= enough })
	long, brief := 0, 0
	for _, e := range switchesOf(s.events, v.pid()) {
		stack := strings.Join(names(s.stack(e), recording.KernelFrame), " ")
		switch {
		case strings.Contains(stack, "nanosleep"):
			long++
		case strings.Contains(stack, "poll"):
			brief++
		}
	}
	// Half and half, with five standard deviations of chance, and some that were preempted.
	if least := enough/2 - 40; long < least || brief < least {
		t.Errorf("%d stacks of long waits and %d of brief ones, of as many", long, brief)
	}
}

// switchCount is how often a thread left its CPU so far, by the kernel's own count.
type switchCount struct {
	waits        int
	before, read uint64 // ns, when it was about to be read, and was
}

func countSwitches(t *testing.T, tid uint32) switchCount {
	t.Helper()
	n := switchCount{before: clock.Monotonic()}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	must.NoError(t, err)
	_, counts, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
	if _, err := fmt.Sscan(counts, &n.waits); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	n.read = clock.Monotonic()
	return n
}
