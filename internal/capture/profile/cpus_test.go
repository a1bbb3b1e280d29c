package profile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Events of CPUs give each thread as many samples as it ran, and other processes none.
func TestSamplesOfCPUs(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true, Switches: profile.DefaultSwitch})
	if detail := s.State().Detail; strings.Contains(detail, "an event of its own") {
		t.Skip("events of CPUs are refused: ", detail)
	}
	v, other := start(t, buildBusy(t), "busy"), start(t, buildBusy(t), "busy")
	v.tid(t, "main")
	other.tid(t, "main")
	s.follow(v.pid())
	ran, from := cpuTime(t, v.pid()), len(s.events)
	s.until("a second of computing", func([]event.Event) bool { return cpuTime(t, v.pid())-ran > time.Second })
	ran = cpuTime(t, v.pid()) - ran
	got := float64(len(clockOf(s.events[from:], v.pid())))
	if want := ran.Seconds() * 199; got < want*0.8 || got > want*1.2 {
		t.Errorf("%.0f samples of %v of computing, not %.0f", got, ran, want)
	}
	for _, e := range s.events {
		if e.PID != v.pid() {
			t.Fatalf("a sample of process %d, which is not followed", e.PID)
		}
	}
	if runs := s.Runs(v.pid()); runs.Count < uint64(got) || runs.NS < uint64(got)*1000 {
		t.Errorf("%.0f samples are %+v", got, runs)
	}
}

// A lower level takes fewer samples at once, the last one none, and the first one as many as before.
func TestLevels(t *testing.T) {
	needs.Root(t, "it samples other processes")
	for name, opts := range map[string]profile.Options{
		"CPUs": {Hz: 500, OwnOnly: true}, "threads": profile.PerThread(profile.Options{Hz: 500, OwnOnly: true}),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSource(t, opts)
			v := start(t, buildBusy(t), "busy")
			v.tid(t, "main")
			s.follow(v.pid())
			for _, level := range []int{0, 2, 3, 0} {
				if err := s.SetLevel(level); err != nil || s.Level() != level {
					t.Fatalf("level %d: %v, it is %d", level, err, s.Level())
				}
				s.Feed(0, func([]event.Event) {})
				from, ran := len(s.events), cpuTime(t, v.pid())
				s.until("computing", func([]event.Event) bool { return cpuTime(t, v.pid())-ran > 500*time.Millisecond })
				took := (cpuTime(t, v.pid()) - ran).Seconds()
				got, want := float64(len(clockOf(s.events[from:], v.pid()))), took*[]float64{500, 250, 100, 0}[level]
				if got < want*0.7-5 || got > want*1.3+5 {
					t.Errorf("level %s: %.0f samples in %.2f s of computing, not %.0f",
						s.Levels()[level].Name, got, took, want)
				}
			}
			if err := s.SetLevel(4); err == nil {
				t.Error("there is no level 4")
			}
		})
	}
}

// On a CPU that switches very often only some switches come to the program, of both threads that
// take turns, and what did not come is said.
func TestSwitchesOfAStorm(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{OwnOnly: true, Switches: 2000})
	v := pingpong(t)
	fmt.Fprintln(v.In, "go 1000000000")
	s.follow(v.pid())
	s.until("skipped switches", func([]event.Event) bool {
		for _, l := range s.Losses() {
			if strings.Contains(l.Detail, "on CPUs that switch more than") && l.Count > 20_000 {
				return true
			}
		}
		return false
	})
	from := len(s.events)
	byThread := map[uint32]int{}
	s.until("stacks of switches", func(e []event.Event) bool {
		clear(byThread)
		for i := range e[from:] {
			if e[from+i].Func == uint16(event.Switch) {
				byThread[e[from+i].TID]++
			}
		}
		return byThread[v.pid()] > 100 && len(byThread) == 2
	})
	for tid, n := range byThread {
		if n < byThread[v.pid()]/4 || n > byThread[v.pid()]*4 {
			t.Errorf("thread %d has %d of the stacks: %v", tid, n, byThread)
		}
	}
}
