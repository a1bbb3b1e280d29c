package profile

import (
	"slices"
	"testing"
)

func waiting(j *joiner, tid uint32, times ...uint64) {
	for _, ts := range times {
		j.add(&pending{header: header{tid: tid, ts: ts}})
	}
}

func taken(j *joiner, now uint64, all bool) (with, without []uint64) {
	j.ready(now, all, func(p *pending) {
		if p.trace != nil {
			with = append(with, p.ts)
		} else {
			without = append(without, p.ts)
		}
	})
	return with, without
}

func TestJoin(t *testing.T) {
	const ms = 1_000_000
	for _, c := range []struct {
		what          string
		samples       []uint64
		traces        []uint64
		now           uint64
		with, without []uint64
		orphans       uint64
	}{
		{
			"each its own",
			[]uint64{10 * ms, 20 * ms},
			[]uint64{10*ms + 5, 20*ms + 5},
			21 * ms,
			[]uint64{10 * ms, 20 * ms},
			nil, 0,
		},
		{
			"traces in any order",
			[]uint64{10 * ms, 20 * ms},
			[]uint64{20*ms + 5, 10*ms + 5},
			21 * ms,
			[]uint64{10 * ms, 20 * ms},
			nil, 0,
		},
		{
			"the last before the trace, not the nearest",
			[]uint64{1000, 1900},
			[]uint64{1800, 2000},
			3000,
			[]uint64{1000, 1900},
			nil, 0,
		},
		{
			"the unwinder passed one by",
			[]uint64{10 * ms, 20 * ms},
			[]uint64{20*ms + 5},
			21 * ms,
			[]uint64{20 * ms},
			[]uint64{10 * ms},
			0,
		},
		{"still waiting", []uint64{10 * ms, 20 * ms}, []uint64{10*ms + 5}, 21 * ms, []uint64{10 * ms}, nil, 0},
		{"waited long enough", []uint64{10 * ms}, nil, 10*ms + traceTimeout + 1, nil, []uint64{10 * ms}, 0},
		{"a trace without a sample", []uint64{10 * ms}, []uint64{9 * ms}, 10 * ms, nil, nil, 1},
		{"a trace of a sample that was lost", []uint64{10 * ms}, []uint64{10*ms + near + 1}, 20 * ms, nil, nil, 1},
		{
			"two traces for one sample",
			[]uint64{10 * ms},
			[]uint64{10*ms + 1, 10*ms + 2},
			20 * ms,
			[]uint64{10 * ms},
			nil, 1,
		},
		{
			"records out of order",
			[]uint64{20 * ms, 10 * ms},
			[]uint64{10*ms + 1, 20*ms + 1},
			21 * ms,
			[]uint64{10 * ms, 20 * ms},
			nil, 0,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			j := newJoiner()
			waiting(j, 7, c.samples...)
			waiting(j, 8, c.now) // another thread's, not to be touched
			for _, at := range c.traces {
				j.match(trace{tid: 7, at: at, stack: &unwound{}})
			}
			with, without := taken(j, c.now, false)
			if !slices.Equal(with, c.with) || !slices.Equal(without, c.without) || j.orphans != c.orphans {
				t.Errorf("with %v, without %v, %d orphans", with, without, j.orphans)
			}
			rest := len(c.samples) + 1 - len(with) - len(without)
			if j.count != rest {
				t.Errorf("%d wait, not %d", j.count, rest)
			}
			if a, b := taken(j, c.now, true); len(a)+len(b) != rest || j.count != 0 || len(j.byTID) != 0 {
				t.Errorf("the end leaves %d of %d", j.count, rest)
			}
		})
	}
}
