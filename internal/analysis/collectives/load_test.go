package collectives

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
)

// compute lets the GPU of a rank run a kernel of its own. Times are in µs.
func (c *crowd) compute(rank int, from, to uint64) {
	c.As(pidOf(rank), pidOf(rank))
	c.id++
	c.Event(event.Event{
		TS: calltest.Start + from*calltest.Microsecond - 2000, Dur: 1000, PID: c.PID, TID: c.TID,
		Func: c.Fn("cuLaunchKernel"), Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(c.id),
	})
	c.Event(event.Event{
		TS: calltest.Start + from*calltest.Microsecond, Dur: (to - from) * calltest.Microsecond, PID: c.PID,
		TID: 1, Func: uint16(rank) | 1<<8, Kind: event.Kernel,
		Flags: event.Timed, Ret: 2, Args: [4]uint64{uint64(c.id)},
	})
}

// steps are twelve steps of a millisecond of three ranks, each with an all-reduce at its end; work is how long one
// computes in a step, and starts when it begins, in µs.
func steps(work, starts func(step uint64, rank int) uint64) *crowd {
	c := newCrowd(3)
	for i := range uint64(12) {
		for r := range 3 {
			from := 1000*i + 100 + starts(i, r)
			c.compute(r, from, from+work(i, r))
			c.reduce(r, 0x10, from+work(i, r)+5, 1000*i+900)
		}
	}
	return c
}

func none(uint64, int) uint64 { return 0 }

// TestImbalance: each step another rank has most to do.
func TestImbalance(t *testing.T) {
	a := steps(func(i uint64, r int) uint64 {
		if int(i)%3 == r {
			return 600
		}
		return 300
	}, none).arrived(t)
	l := &a.Load
	// Twelve collectives part eleven steps; the rank of step 0 is not counted there.
	if !a.Imbalanced() || l.Steps != 11 || l.Max != 11*600_000 || l.Mean != 11*400_000 || l.Wait != 11*2*300_000 ||
		!slices.Equal(l.Most, []int{3, 4, 4}) ||
		!slices.Equal(l.Busy, []uint64{(3*600 + 8*300) * 1000, (4*600 + 7*300) * 1000, (4*600 + 7*300) * 1000}) {
		t.Errorf("%v: %+v", a.Imbalanced(), *l)
	}
}

// TestNoImbalance: ranks that have the same work, and one that always has most, are not imbalanced.
func TestNoImbalance(t *testing.T) {
	for name, c := range map[string]*crowd{
		"the same work, late in turn because of the CPU": steps(func(uint64, int) uint64 { return 300 },
			func(i uint64, r int) uint64 {
				if int(i)%3 == r {
					return 300
				}
				return 0
			}),
		"one rank always has most": steps(func(_ uint64, r int) uint64 { return 200 + 100*uint64(r) }, none),
		"two steps only": func() *crowd {
			c := newCrowd(2)
			for i := range uint64(3) {
				c.compute(int(i)%2, 1000*i+100, 1000*i+600)
				for r := range 2 {
					c.reduce(r, 0x10, 1000*i+200+500*uint64(r), 1000*i+900)
				}
			}
			return c
		}(),
	} {
		if a := c.arrived(t); a.Imbalanced() {
			t.Errorf("%s: %+v", name, a.Load)
		}
	}
}
