package whatif

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestNext: a helper that sleeps for 1.8 of 2 ms while the leader computes limits the program once the leader computes
// no more; without the helper the kernels do, and no cause.
func TestNext(t *testing.T) {
	sc := stepwise()
	for i := range uint64(steps) {
		at := start + i*period
		// The leader waits for the helper for 10 µs at the end of each step, and has woken it 2 ms before.
		sc.Off(recordtest.Off{
			TID: leader, TS: at + 3980*us, Dur: 10 * us, Blocked: 10 * us,
			Call: sysFutex, By: [2]uint32{leader, helper},
		})
		sc.Off(recordtest.Off{TID: helper, TS: at + 1100*us, Dur: 2800 * us, Blocked: 2800 * us, Call: sysSleep})
	}
	s := sc.study(t)
	less := cause.Remedy{Cause: cause.PythonWork, Less: true}
	alone, _ := s.Together(less)
	next, ok := s.Next(less)
	if !ok || next != cause.Sleep {
		t.Errorf("after %s (%.2f) the next limit is %v (%v)", alone.Plan, alone.Speedup, next, ok)
	}
	if by, _ := s.Together(cause.Remedy{Cause: cause.Sleep}); by.Speedup > 1.02 {
		t.Errorf("the sleep is not hidden: %+v", by)
	}
	plain := stepwise().study(t)
	if next, ok := plain.Next(cause.Remedy{Cause: cause.PythonWork}); ok {
		t.Errorf("with nothing behind it, %v is next", next)
	}
}
