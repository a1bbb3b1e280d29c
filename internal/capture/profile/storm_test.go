package profile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// A process that does nothing but switch is sampled in slices, again and again, and that is said.
func TestStormIsSampledInSlices(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.PerThread(profile.Options{Switches: profile.DefaultSwitch, Budget: 0.01, OwnOnly: true}))
	v := pingpong(t)
	fmt.Fprintln(v.In, "go 1000000000")
	s.follow(v.pid())
	s.until("the first pause", func([]event.Event) bool { return pauses(s) >= 1 })
	from, ran := len(s.events), cpuTime(t, v.pid())
	s.until("two more", func([]event.Event) bool { return pauses(s) >= 3 })
	ran = cpuTime(t, v.pid()) - ran
	got := 0
	for _, e := range s.events[from:] {
		if e.Func == uint16(event.Clock) {
			got++
		}
	}
	if all := ran.Seconds() * profile.DefaultHz; got == 0 || float64(got) > all/2 {
		t.Errorf("%d samples of %v of computing, of which all would be %.0f", got, ran, all)
	}
}

// Without a storm nothing is paused.
func TestNoPausesWithoutAStorm(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.PerThread(profile.Options{Switches: profile.DefaultSwitch, Budget: 0.02, OwnOnly: true}))
	v := start(t, buildBusy(t), "rates")
	v.tid(t, "often")
	v.tid(t, "rare")
	s.follow(v.pid())
	begin := time.Now()
	s.until("three looks",
		func(e []event.Event) bool { return time.Since(begin) > 3500*time.Millisecond && len(e) > 0 })
	if n := pauses(s); n != 0 {
		t.Errorf("%d pauses in a process that switches some hundred times a second", n)
	}
}

// pauses returns how many the source says there were, with their rate.
func pauses(s *following) uint64 {
	for _, l := range s.Losses() {
		if l.Reason == loss.SamplesPaused && strings.Contains(l.Detail, "times a second") {
			return l.Count
		}
	}
	return 0
}

// cpuTime returns how long the threads of a process have run (proc_pid_schedstat(5)).
func cpuTime(t *testing.T, pid uint32) time.Duration {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatal("no threads: ", err)
	}
	var sum time.Duration
	for _, f := range files {
		var ran time.Duration
		text, err := os.ReadFile(f)
		must.NoError(t, err)
		if _, err := fmt.Sscan(string(text), &ran); err != nil {
			t.Fatal(err)
		}
		sum += ran
	}
	return sum
}
