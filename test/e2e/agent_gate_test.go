package e2e

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestThreadsThatAreAlwaysInside: where threads wait for the GPU inside the driver nearly all of the time, CUPTI would
// let the agent in and out once in minutes. They are kept out for a moment: it has its windows, and is gone before its
// daemon.
func TestThreadsThatAreAlwaysInside(t *testing.T) {
	t.Parallel()
	v := alwaysInside(t)
	d := startDaemon(t, v.PID, inWindows("50ms", "200ms")...)
	for _, w := range closedWindows(d.waitWindows(v.PID, 5), v.PID) {
		if w.End != "finalized" && w.End != "kept" {
			t.Errorf("a window ended %q", w.End)
		}
	}
	d.stop()
	if log := d.log.String(); !strings.Contains(log, "threads were kept out of the driver") ||
		!strings.Contains(log, `"gone": true`) {
		t.Errorf("want a gate, and an agent that goes before its daemon; the log says\n%s", log)
	}
	unharmed(t, v)
}

// alwaysInside is a program whose threads wait for the GPU inside the driver nearly all of the time.
func alwaysInside(t *testing.T) *cudasim.Victim {
	return cudasim.Start(
		t,
		cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_LOCK=1", "CUDASIM_KERNEL_SLOTS=8"}},

		"thread 4 nowait { stream-new nonblocking; repeat 100000000 { launch 1 kernel=k_us1000 stream=1; ssync "+
			"stream=1 } }; until { sleep 50ms }",
	)
}

// TestDetachOfThreadsThatAreAlwaysInside: they are kept out for a moment, too, when the process is released: its agent
// is not left to linger.
func TestDetachOfThreadsThatAreAlwaysInside(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := alwaysInside(t)
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	d.waitKernels(v.PID, "", 1)
	d.detach(v.PID)
	d.waitLog("an agent is done with")
	if log := d.log.String(); !strings.Contains(log, `"gone": true`) {
		t.Errorf("want an agent that goes; the log says\n%s", log)
	}
	waitFor(t, "the end of its thread", func() bool { return agentThreads(v.PID) == 0 })
	waitFor(t, "the probes to come off", func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	for _, w := range closedWindows(d.fetch(v.PID), v.PID) {
		if w.End != "finalized" {
			t.Errorf("the window ended %q", w.End)
		}
	}
	d.stop()
	unharmed(t, v)
}
