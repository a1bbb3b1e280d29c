package e2e

import (
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// detach releases a process, as a user does.
func (d *daemon) detach(pid int) {
	d.t.Helper()
	if _, said, code := d.inferscope("detach", "--pid", strconv.Itoa(pid)); code != 0 {
		d.t.Fatalf("it ended with %d: %s", code, said)
	}
}

// TestDetach: on request nothing of ours is left in a process, while the daemon goes on; and it can be watched again.
func TestDetach(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms")...)
	d.waitAgent(v.PID, "running")
	d.waitWindows(v.PID, 1)
	d.detach(v.PID)
	waitFor(t, "the agent to leave", func() bool { return agentThreads(v.PID) == 0 && agentFiles(v.PID) == 0 })
	waitFor(t, "the probes to come off", func() bool { return changedText(t, v.PID, "libcuda.so") == 0 })
	before := v.Truth().Count("cuGraphLaunch")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+10 })
	c, err := api.Dial(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if targets, err := c.Targets(t.Context()); err != nil || len(targets) != 1 || targets[0].State != api.Released {
		t.Errorf("targets are %+v, %v; want one that is released", targets, err)
	}
	if agentThreads(v.PID) != 0 || changedText(t, v.PID, "libcuda.so") != 0 {
		t.Error("something of ours came back")
	}
	if err := c.Watch(t.Context(), uint32(v.PID)); err != nil {
		t.Fatal(err)
	}
	began := now()
	waitFor(t, "windows of its new agent", func() bool {
		sleep(50)
		for _, w := range closedWindows(d.fetch(v.PID), v.PID) {
			if w.From > began && w.End == "finalized" {
				return true
			}
		}
		return false
	})
	d.stop()
	unharmed(t, v)
}
