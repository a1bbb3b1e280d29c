package discover

import (
	"os"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// TestForgetsEndedProcesses: after a look at all processes, nothing is known any more of those that are gone.
func TestForgetsEndedProcesses(t *testing.T) {
	d := New(Options{})
	living := proc.User{PID: uint32(os.Getpid()), StartTime: 1}
	d.PlaceOf(living.ID())
	for round := range uint64(50) {
		for i := range uint64(100) {
			u := proc.User{PID: living.PID, StartTime: 2 + 100*round + i} // that had the pid before
			d.PlaceOf(u.ID())
			d.note(&u, "it is not allowed")
		}
		d.forget([]proc.User{living})
		if _, known := d.places[living.ID()]; len(d.places) != 1 || !known || len(d.refused) != 0 {
			t.Fatalf("in round %d, places of %d processes are known, and %d refusals", round, len(d.places), len(d.refused))
		}
	}
}
