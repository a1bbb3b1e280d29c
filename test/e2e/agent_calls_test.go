package e2e

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestAgentsCallsAreNotThePrograms: the agent's thread calls the driver before each window, in it and to leave CUPTI.
// A recording holds the calls of the program's only thread alone.
func TestAgentsCallsAreNotThePrograms(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, "until { launch 3; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("30ms", "100ms", "--overhead-budget", "0", "--all-calls")...)
	rec := d.waitWindows(v.PID, 5)
	own := 0
	for i := range rec.Events {
		e := &rec.Events[i]
		switch {
		case e.Kind != event.Call || int(e.PID) != v.PID:
		case int(e.TID) == v.PID:
			own++
		default:
			t.Errorf("a call of thread %d: %s", e.TID, rec.Meta.Functions[e.Func].Name)
		}
	}
	if own < 50 {
		t.Errorf("only %d calls of the program's own", own)
	}
	d.stop()
	unharmed(t, v)
}
