package e2e

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/cudasim"
)

// TestThreadsThatAreAlwaysInside: where threads wait for the GPU inside the driver nearly all of the time, CUPTI would let the agent in
// and out once in minutes. They are kept out for a moment: it has its windows, and is gone before its daemon.
func TestThreadsThatAreAlwaysInside(t *testing.T) {
	v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_LOCK=1", "CUDASIM_KERNEL_SLOTS=8"}},
		"thread 4 nowait { stream-new nonblocking; repeat 100000000 { launch 1 kernel=k_us1000 stream=1; ssync stream=1 } }; until { sleep 50ms }")
	d := startDaemon(t, v.PID, "--gpu", "windows", "--gpu-window", "50ms", "--gpu-period", "200ms")
	for _, w := range closedWindows(d.waitWindows(v.PID, 5), v.PID) {
		if w.End != "finalized" && w.End != "kept" {
			t.Errorf("a window ended %q", w.End)
		}
	}
	d.stop()
	if log := d.log.String(); !strings.Contains(log, "threads were kept out of the driver") || !strings.Contains(log, `"gone": true`) {
		t.Errorf("want a gate, and an agent that goes before its daemon; the log says\n%s", log)
	}
	unharmed(t, v)
}
