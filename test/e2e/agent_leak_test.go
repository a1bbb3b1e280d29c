package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestWindowsThatLeaveMemoryEnd: where each window leaves memory in the target, no more are opened when that is too
// much; the agent, status and report say so, the target goes on, and so does what needs no agent.
func TestWindowsThatLeaveMemoryEnd(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Env: []string{"CUDASIM_CUPTI_LEAK_BYTES=16000000"}},
		"until { launch 20 kernel=k_us5; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("60ms", "1s", "--overhead-budget", "0")...)
	for end := time.Now().Add(3 * testTimeout); agentIn(d.fetch(v.PID), v.PID).State != "dormant"; sleep(100) {
		if time.Now().After(end) {
			break // waitAgent says what it is
		}
	}
	a := d.waitAgent(v.PID, "dormant")
	windows := len(closedWindows(d.fetch(v.PID), v.PID))
	t.Logf("after %d windows: %s", windows, a.Detail)
	if windows < 5 || windows > 40 {
		t.Errorf("%d windows of 16 MB each were opened, want 5 to 40", windows)
	}
	if !strings.Contains(a.Detail, "more than the 64 MB") {
		t.Errorf("the agent says %q, and nothing of memory", a.Detail)
	}
	for _, ask := range [][]string{{"status"}, {"report", "--full"}} {
		if text, _, _ := d.inferscope(ask...); !strings.Contains(
			strings.Join(strings.Fields(text), " "),
			"more than the 64 MB",
		) {
			t.Errorf("%s says nothing of the memory:\n%s", ask[0], text)
		}
	}
	waitFor(t, "the agent's thread to end", func() bool { return agentThreads(v.PID) == 0 })
	before := v.Truth().Counts()["cuLaunchKernel"]
	sleep(3000)
	if got := len(closedWindows(d.fetch(v.PID), v.PID)); got > windows+1 {
		t.Errorf("%d windows were opened after the agent was told to go", got-windows)
	}
	if agentThreads(v.PID) != 0 || agentIn(d.fetch(v.PID), v.PID).State != "dormant" {
		t.Error("the agent came back")
	}
	if after := v.Truth().Counts()["cuLaunchKernel"]; after <= before {
		t.Errorf("the target made %d launches before and %d after: it does not go on", before, after)
	}
	d.stop()
	unharmed(t, v)
}
