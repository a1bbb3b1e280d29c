// Package hosts finds how far apart the clocks of several hosts are, from collective operations that ranks on all of
// them took part in. It is a pure function of their recordings.
package hosts

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Clock is what has to be added to the times of a recording to have those of the first one.
type Clock struct {
	Shift int64  // ns
	Error uint64 // ns: Shift is at most so far off, as long as both clocks run alike
	// Wall is what Shift would be if the wall clocks of both hosts agreed, ns.
	Wall        int64
	Collectives int  // that it rests on; 0: of the first recording
	Ambiguous   bool // others fit as well, and the wall clocks decided: steps are too regular
}

// ErrNothingInCommon means that no series of collectives of two recordings can be the same one.
var ErrNothingInCommon = errors.New("their collectives fit by no offset of the clocks")

const (
	leastMeetings = 16
	maxMeetings   = 2048
	// slack is by how much the times of a GPU may be off, ns (CUPTI against CLOCK_MONOTONIC, measured on an H200).
	slack = 20_000
	// nearly is the part of the most collectives that an offset must fit to be another answer.
	nearly = 0.8
)

// Solve finds the clocks of recordings against the first one. An operation ends on no rank before it has begun on all:
// each bounds the offset from both sides, and only offsets within all bounds are possible.
func Solve(recs []*recording.Recording) ([]Clock, error) {
	out := make([]Clock, len(recs))
	if len(recs) == 0 {
		return out, nil
	}
	first := collectives.Meetings(timeline.Build(recs[0]))
	for i, rec := range recs[1:] {
		wall := rec.Meta.WallFrom - recs[0].Meta.WallFrom - int64(rec.Meta.From-recs[0].Meta.From)
		c, err := solve(first, collectives.Meetings(timeline.Build(rec)), wall)
		if err != nil {
			return nil, fmt.Errorf("recording %d against the first one: %w", i+2, err)
		}
		out[i+1] = c
	}
	return out, nil
}

// solve finds the offset that fits most collectives of any two series.
func solve(a, b [][]collectives.Meeting, wall int64) (Clock, error) {
	var all []Clock
	most := 0
	for _, x := range a {
		for _, y := range b {
			for _, c := range fits(x, y) {
				c.Wall = wall
				all = append(all, c)
				most = max(most, c.Collectives)
			}
		}
	}
	if len(all) == 0 {
		return Clock{}, ErrNothingInCommon
	}
	c := nearest(all, func(c *Clock) bool { return float64(c.Collectives) >= nearly*float64(most) })
	if c.Ambiguous {
		// Regular steps fit by whatever number of them; the right one may have fewer collectives in common than others.
		c = nearest(all, func(*Clock) bool { return true })
	}
	return c, nil
}

// nearest returns which of some clocks is nearest to the wall clocks, and whether another one is possible as well.
func nearest(all []Clock, some func(c *Clock) bool) (best Clock) {
	far := uint64(1<<64 - 1)
	for i := range all {
		if c := &all[i]; some(c) && distance(c.Shift, c.Wall) < far {
			best, far = *c, distance(c.Shift, c.Wall)
		}
	}
	best.Ambiguous = slices.ContainsFunc(all, func(o Clock) bool {
		return some(&o) && distance(o.Shift, best.Shift) > o.Error+best.Error
	})
	return best
}

func distance(x, y int64) uint64 { return uint64(max(x-y, y-x)) }

// fits returns the clocks by which the collectives of two series can be the same ones.
func fits(x, y []collectives.Meeting) []Clock {
	x, y = x[:min(len(x), maxMeetings)], y[:min(len(y), maxMeetings)]
	common := map[int]int{} // by how much sequences are apart: how many have a partner
	for i := range x {
		for j := range y {
			common[x[i].Sequence-y[j].Sequence]++
		}
	}
	if fromMaking(x) && fromMaking(y) { // they count from one call
		common = map[int]int{0: common[0]}
	}
	var out []Clock
	for _, by := range slices.Sorted(maps.Keys(common)) {
		if n := common[by]; n >= leastMeetings && 4*n >= min(len(x), len(y)) {
			if c, ok := bounded(x, y, by); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// fromMaking reports whether a series counts from the making of its communicator.
func fromMaking(list []collectives.Meeting) bool {
	return !slices.ContainsFunc(list, func(m collectives.Meeting) bool { return !m.Made })
}

// bounded returns the clock by which each collective of one list is that of the other one whose sequence is so far
// apart.
func bounded(x, y []collectives.Meeting, by int) (Clock, bool) {
	low, high := int64(-1<<62), int64(1<<62)
	var ends []int64
	for i, j := 0, 0; i < len(x) && j < len(y); {
		switch d := x[i].Sequence - y[j].Sequence - by; {
		case d < 0:
			i++
			continue
		case d > 0:
			j++
			continue
		}
		low = max(low, int64(x[i].Begin-y[j].End))
		high = min(high, int64(x[i].End-y[j].Begin))
		if x[i].Kernel != y[j].Kernel || low > high+slack {
			return Clock{}, false
		}
		ends = append(ends, int64(x[i].End-y[j].End))
		i++
		j++
	}
	if len(ends) < leastMeetings {
		return Clock{}, false
	}
	low, high = min(low, high), max(low, high)
	slices.Sort(ends)
	shift := min(max(ends[len(ends)/2], low), high) // ranks are through with one at nearly one time
	return Clock{Shift: shift, Error: uint64(max(high-shift, shift-low)) + slack, Collectives: len(ends)}, true
}
