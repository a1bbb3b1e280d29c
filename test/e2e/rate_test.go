package e2e

import (
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// probedCalls adds up the truth's counts of the functions that are probed.
func probedCalls(truth *cudasim.Truth) uint64 {
	total := uint64(0)
	for name, n := range truth.Counts() {
		if r, known := cuda.Match(name); known && byDefault(r) {
			total += n
		}
	}
	return total
}

// TestHalfAMillionCallsPerSecondAreAccountedFor: of the calls of ten seconds each one arrives or is counted as lost,
// with the default settings, and on two cores that others leave some time hardly any is lost.
func TestHalfAMillionCallsPerSecondAreAccountedFor(t *testing.T) {
	needs.Long(t)
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", Level: "counts", Env: []string{"CUDASIM_KERNEL_NS=0"}},
		"wait", "rate 500000 for 10s", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	before := probedCalls(v.Truth())
	v.Go()
	v.WaitLine("done")
	d.recording(v.PID) // drains what is left in the rings
	made := probedCalls(v.Truth()) - before
	status := d.status()
	lost := uint64(0)
	for _, l := range status.Losses {
		if l.Reason == loss.RingFull {
			lost += l.Count
		}
	}
	if status.Rings.Calls+lost != made {
		t.Errorf("%d of %d calls arrived, %d are counted as lost", status.Rings.Calls, made, lost)
	}
	if lost > made/20 {
		t.Errorf("%d of %d calls are lost", lost, made)
	}
	t.Logf("%d calls in 10 s, %d lost; the daemon took %.2f s of CPU and %d MB",
		made, lost, status.Self.CPU, status.Self.RSS/1e6)
	if made < 4_000_000 {
		t.Errorf("the victim made only %d calls: this shows nothing about 500,000 calls/s", made)
	}
	d.stop()
}
