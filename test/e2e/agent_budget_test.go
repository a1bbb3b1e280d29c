package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// gapsBetween returns the times from the beginning of each window to the next one's, in ms.
func (d *daemon) gapsBetween(pid int) (out []int64) {
	d.t.Helper()
	last := uint64(0)
	for _, w := range closedWindows(d.fetch(pid), pid) {
		if last > 0 {
			out = append(out, time.Duration(w.From-last).Milliseconds())
		}
		last = w.From
	}
	return out
}

// TestWindowsKeepTheBudget: where a window takes much of the program's time, they become rarer by themselves, and the
// agent says so; without a budget it does not.
func TestWindowsKeepTheBudget(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const dear = "CUDASIM_CUPTI_FINALIZE_NS=25000000" // in the thread of the program that makes the call
	script := []string{
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"until { graph-launch stream=1; ssync stream=1; sleep 500us }",
	}
	windows := inWindows("60ms", "200ms")
	t.Run("of 2%", func(t *testing.T) {
		t.Parallel()
		v := cudasim.Start(t, cudasim.Options{Env: []string{dear}}, script...)
		d := startDaemon(t, v.PID, windows...)
		d.waitAgent(v.PID, "running")
		var a recording.Agent
		// 25 ms each, of which all windows together may take 1.5%: every 1.7 s at least.
		waitFor(t, "windows to become rarer, and the agent to say why", func() bool {
			sleep(200)
			gaps := d.gapsBetween(v.PID)
			a = agentIn(d.fetch(v.PID), v.PID)
			return len(gaps) > 0 && gaps[len(gaps)-1] > 1000 && strings.Contains(a.Detail, "(--overhead-budget)")
		})
		t.Logf("%s; from window to window, ms: %v", a.Detail, d.gapsBetween(v.PID))
		d.stop()
		unharmed(t, v)
	})
	t.Run("of nothing in particular", func(t *testing.T) {
		t.Parallel()
		v := cudasim.Start(t, cudasim.Options{Env: []string{dear}}, script...)
		d := startDaemon(t, v.PID, append(windows, "--overhead-budget", "0")...)
		d.waitAgent(v.PID, "running")
		d.waitWindows(v.PID, 14) // after 16 in a row there is a pause, to see what they leave in memory
		// Load makes gaps longer, so the shortest of the later ones decides.
		if gaps := d.gapsBetween(v.PID); slices.Min(gaps[len(gaps)/2:]) > 1000 {
			t.Errorf("windows became rarer without a budget: %v ms apart", gaps)
		}
		d.stop()
		unharmed(t, v)
	})
}

// TestMeasuringKeepsOutOfWindows: what sources cost is measured between windows of GPU records, so that windows are
// seen by all sources.
func TestMeasuringKeepsOutOfWindows(t *testing.T) {
	needs.Long(t)
	v := cudasim.Start(t, cudasim.Options{},
		"stream-new nonblocking", "until { launch 20 stream=1 kernel=k_us20; ssync stream=1; spin 300us }")
	d := startDaemon(t, v.PID)
	d.waitAgent(v.PID, "running")
	var rec *recording.Recording
	pauses := func() []recording.Pause { return rec.Meta.Overhead.PausedOf(recording.SchedulingSource) }
	waitFor(t, "windows and slices of measuring", func() bool {
		sleep(500)
		rec = d.fetch(v.PID)
		return len(closedWindows(rec, v.PID)) > 6 && len(pauses()) > 6
	})
	met, windows := 0, closedWindows(rec, v.PID)[1:] // before the first nobody knows when it comes
	for _, w := range windows {
		for _, p := range pauses() {
			if p.From < w.To && w.From < p.To {
				met++
				t.Logf("a slice of %d ms began %d ms after a window of %d ms",
					(p.To-p.From)/1e6, (int64(p.From)-int64(w.From))/1e6, (w.To-w.From)/1e6)
				break
			}
		}
	}
	if met > len(windows)/2 {
		t.Errorf("%d of %d windows lie in slices in which scheduling was not recorded", met, len(windows))
	}
	d.stop()
	unharmed(t, v)
}
