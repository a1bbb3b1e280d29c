package collectives

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
)

// dense are sixty collectives of two ranks, of which rank 0 begins first by 10, 20 and 30 µs in turn. The first ones
// have time between them. The others follow each other so closely, and the ends of rank 1 are off by so much, that the
// end of each is nearest to that of the next one. From a number on the kernels of rank 1 are recorded, and its calls
// unless the making of the communicator was.
func dense(from, spaced uint64, made bool, more func(c *crowd)) *crowd {
	c := newCrowd(2)
	more(c)
	for r, comm := range []uint64{0x110, 0x910} {
		if made {
			c.As(pidOf(r), pidOf(r)).Do("ncclCommInitRank", 0, 10, comm, 2)
		}
	}
	for i := range uint64(60) {
		at, off := 1000*i, uint64(0)
		if i >= spaced {
			at, off = 1000*spaced+50*(i-spaced), 49
		}
		late := 10 * (i%3 + 1)
		c.reduce(0, 0x110, at+100, at+145)
		switch {
		case i >= from:
			c.reduce(1, 0x910, at+100+late, at+145+off)
		case made:
			c.call(1, 0x910, int64(at+95))
		}
	}
	return c
}

func nothing(*crowd) {}

// planted are the skews of collectives from a number on, ns.
func planted(from uint64) []uint64 {
	var out []uint64
	for i := from; i < 60; i++ {
		out = append(out, 10_000*(i%3+1))
	}
	return out
}

// TestSequence: collectives that follow each other closely are told apart by the sequence of the calls: from the making
// of the communicator on, and after a late attach from what most of those agree on that are told apart by their times.
func TestSequence(t *testing.T) {
	for name, c := range map[string]struct {
		from, spaced uint64
		made         bool
	}{
		"attached at once":      {0, 20, false},
		"attached late":         {7, 20, false},
		"made in the recording": {1, 0, true},
	} {
		a := dense(c.from, c.spaced, c.made, nothing).arrived(t)
		if want := planted(c.from); !slices.Equal(a.Skews, want) {
			t.Errorf("%s: skews %v, want %v", name, a.Skews, want)
		}
		if s, ok := a.Straggler(); !ok || s != 1 {
			t.Errorf("%s: straggler %d, %v", name, s, ok)
		}
	}
}

// TestNoSequence: where calls were lost the n-th ones are not the same collective, and times alone decide.
func TestNoSequence(t *testing.T) {
	lost := dense(1, 20, true, func(c *crowd) { c.Loss(loss.Loss{Reason: loss.RingFull, Count: 1}) })
	if got := lost.arrived(t).Skews; slices.Equal(got, planted(1)) {
		t.Error("the ends of dense tell the collectives apart: the tests of sequences prove nothing")
	}
	again := dense(1, 20, true, func(c *crowd) {
		c.As(pidOf(1), pidOf(1)).Do("ncclCommInitRank", 0, 10, 0x910, 2) // an address that is used again
	})
	if got := again.arrived(t).Skews; slices.Equal(got, planted(1)) {
		t.Error("calls of a communicator whose address was used again are told apart by their sequence")
	}
}

// TestRootThatEndsFirst: the root of a broadcast may end before others begin. It waits for as long as it runs.
func TestRootThatEndsFirst(t *testing.T) {
	c := newCrowd(2)
	for i := range uint64(20) {
		end := 1000*i + 600
		if i >= 10 { // the root goes on without the other one
			end = 1000*i + 200
		}
		c.reduce(0, 0x110, 1000*i+100, end)
		c.reduce(1, 0x910, 1000*i+500, 1000*i+600)
	}
	check(t, c.arrived(t), 1, told{
		Sets: 20, Wait: 10*400_000 + 10*100_000, Last: []int{0, 20}, Held: []uint64{0, 10*400_000 + 10*100_000},
	})
}
