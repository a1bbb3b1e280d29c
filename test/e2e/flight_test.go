package e2e

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// flights returns the recordings that triggers with this name have made.
func flights(dir, why string) []string {
	var out []string
	finished, _ := kept(dir)
	for _, path := range finished {
		if strings.Contains(path, "-flight-"+why) {
			out = append(out, path)
		}
	}
	return out
}

// TestFlightOfACrash: what a program did before it crashed is on the disk, once.
func TestFlightOfACrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "launch 321", "wait", "crash")
	d := startDaemon(
		t,
		v.PID,
		append([]string{"--record-dir", dir, "--record-length", "0", "--record-free-mb", "1"}, probesOnly...)...)
	v.Go()
	// The helper must have looked once before the target ends: what has ended before is not news.
	waitFor(t, "a look", func() bool { _, err := d.client().Save(t.Context(), uint32(v.PID)); return err == nil })
	v.Go()
	_ = v.Wait()
	waitFor(t, "the crash to be saved", func() bool { return len(flights(dir, "crash")) > 0 })
	if n := launchesIn(t, flights(dir, "crash")); n != 321 {
		t.Errorf("it holds %d launches, want 321", n)
	}
	rec, err := archive.Read(flights(dir, "crash")[0], archive.DefaultLimits())
	must.NoError(t, err)
	if p := rec.Meta.Processes; len(p) != 1 || p[0].Died == 0 {
		t.Errorf("it does not say how the program ended: %+v", p)
	}
	d.waitLog("a trigger has saved")
	if s := d.status().Kept; s.Flights != 1 || s.FlightsOmitted != 0 {
		t.Errorf("status says %+v", s)
	}
}

// TestFlightOfSlowIterations: iterations that take too long are saved, and not again within the cooldown; what is as it
// should be is not. A crash within the cooldown is saved.
func TestFlightOfSlowIterations(t *testing.T) {
	needs.Long(t)
	t.Setenv("INFERSCOPE_TRIGGER_ITERATION", "10ms for 1s")
	dir := t.TempDir()
	slow := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "until { launch 5; sync; sleep 20ms }", "wait")
	fast := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "until { launch 5; sync; sleep 1ms }", "wait")
	d := startDaemon(
		t,
		slow.PID,
		append(
			[]string{
				"--pid",
				strconv.Itoa(fast.PID),
				"--record-dir",
				dir,
				"--record-length",
				"0",
				"--record-free-mb",
				"1",
			},
			probesOnly...)...)
	waitFor(t, "slow iterations to be saved", func() bool { return len(flights(dir, "slow")) > 0 })
	if n := launchesIn(t, flights(dir, "slow")[:1]); n < 100 {
		t.Errorf("it holds %d launches: the time before the trigger is not in it", n)
	}
	saved := d.status().Kept.Flights
	for _, path := range flights(dir, "slow") {
		if !strings.Contains(path, "-"+strconv.Itoa(slow.PID)+"-") {
			t.Errorf("%s is of another program", path)
		}
	}
	if saved > 1 {
		t.Errorf("%d were saved within the cooldown", saved)
	}
	must.NoError(t, syscall.Kill(slow.PID, syscall.SIGSEGV))
	waitFor(t, "the crash to be saved", func() bool { return len(flights(dir, "crash")) > 0 })
}
