package timeline

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// withoutRepeats leaves out counts, made when the recording was taken, of calls that also have an event.
func withoutRepeats(events []event.Event, skipped []int32) []int32 {
	type first struct {
		ts  uint64
		tid uint32
		fn  uint16
	}
	came := map[first]bool{}
	for _, i := range skipped {
		if e := &events[i]; e.Flags&event.Open == 0 {
			came[first{e.TS, e.TID, e.Func}] = true
		}
	}
	return slices.DeleteFunc(skipped, func(i int32) bool {
		e := &events[i]
		return e.Flags&event.Open != 0 && came[first{e.TS, e.TID, e.Func}]
	})
}

// SkippedCalls returns how many calls of an event of kind Skipped lie in the window, as far as that
// can be told of a sum: those that the program made itself, and those inside of such.
func (t *Timeline) SkippedCalls(i int32) (outer, inner uint64) {
	e := &t.Rec.Events[i]
	to := clampedEnd(e)
	inside, whole := min(to, t.To)-min(max(e.TS, t.From), t.To), to-e.TS
	part := func(n uint64) uint64 {
		if whole == 0 || inside >= whole {
			return n
		}
		return uint64(float64(n) * float64(inside) / float64(whole))
	}
	return part(e.Args[0]), part(e.Args[1])
}
