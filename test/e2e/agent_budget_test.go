package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
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
// agent says why; without a budget they do not.
func TestWindowsKeepTheBudget(t *testing.T) {
	const dear = "CUDASIM_CUPTI_FINALIZE_NS=25000000" // in the thread of the program that makes the call
	script := []string{
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
		"until { graph-launch stream=1; ssync stream=1; sleep 500us }",
	}
	windows := []string{"--gpu", "windows", "--gpu-window", "60ms", "--gpu-period", "200ms"}
	t.Run("of 2%", func(t *testing.T) {
		v := cudasim.Start(t, cudasim.Options{Env: []string{dear}}, script...)
		d := startDaemon(t, v.PID, windows...)
		d.waitAgent(v.PID, "running")
		waitFor(t, "windows to become rarer", func() bool {
			sleep(200)
			gaps := d.gapsBetween(v.PID)
			return len(gaps) > 0 && gaps[len(gaps)-1] > 1000
		})
		// 25 ms each, of which all windows together may take 1.5%: every 1.7 s at least.
		a := agentIn(d.fetch(v.PID), v.PID)
		t.Logf("%s; from window to window, ms: %v", a.Detail, d.gapsBetween(v.PID))
		if text, _, _ := d.inferscope("status"); !strings.Contains(text, "the budget is 2.0%") ||
			!strings.Contains(text, "gpu windows") {
			t.Errorf("status says nothing of the budget:\n%s", text)
		}
		d.stop()
		unharmed(t, v)
	})
	t.Run("of nothing in particular", func(t *testing.T) {
		v := cudasim.Start(t, cudasim.Options{Env: []string{dear}}, script...)
		d := startDaemon(t, v.PID, append(windows, "--overhead-budget", "0")...)
		d.waitAgent(v.PID, "running")
		d.waitWindows(v.PID, 14) // after 16 in a row there is a pause, to see what they leave in memory
		for _, gap := range d.gapsBetween(v.PID) {
			if gap > 1000 {
				t.Errorf("a window came after %d ms, 200 were asked for", gap)
			}
		}
		d.stop()
		unharmed(t, v)
	})
}
